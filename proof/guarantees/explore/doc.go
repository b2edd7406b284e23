// Package explore runs every execution of a few requests, within a bound, and judges each of them.
//
// # The world
//
// Up to three processes, each with a Runner or a Middleware of its own, do one or two operations on one store. The
// library is the real library. The explorer supplies the store, the network between, the handlers and the clock, and decides
// step by step what happens next:
//
//   - A request arrives, and calls Begin.
//   - A call of the store ends. The call succeeds, fails without an effect, or fails with an effect. Or the call is slow: the reply
//     is delayed, or the call itself is delayed, and takes effect later, perhaps after the caller has stopped waiting.
//   - A handler has its effect, fails, or exits after its effect. The effect may be a step, or a row that a step writes in a
//     transaction. The commit may take effect without a reply, or late.
//   - A process crashes before or after any of these.
//   - Time passes until an event: a renewal is due, a call reaches its deadline, a lease lapses, or a pause of the library
//     ends. While a request is being served, at most 35 % of a lease passes. Each execution has a clock of its own
//     (testing/synctest).
//   - The clock of the store jumps to the end of a lease. For the store, a jump is the same as a process that has stood still.
//
// The store decides about each call at once, unless the call is slow.
//
// # The search
//
// The search tries every choice, depth first, and runs similar executions too. A bound limits requests, faults and passages of
// time; pauses of the library do not count. The choices determine an execution. A violation prints the choices as a schedule.
//
//	go test ./proof/guarantees/explore                      # all bounds
//	go test ./proof/guarantees/explore -times 10            # one more fault in each: hours
//	go test ./proof/guarantees/explore -schedule '{...}'    # one execution, which a violation has printed
//
// # What must hold
//
//   - No handler runs beside a live claim of another attempt, or after the answer is stored.
//   - The library tells an owner before the lease lapses in the store, and tells no owner without a reason. If the clock of
//     the store has jumped, the promise holds from the time when the lease has also lapsed by the clock of the owner.
//   - The number of the attempt grows, and the operation stays the same.
//   - The effect happens once. With ReExecute, each interrupted attempt may add an effect.
//   - If the effect is a step, the effect does not happen again once the result of the step is stored.
//   - If the effect is a row, there is one row, even after interruptions.
//   - All clients get the same answer, and the request that the answer names has had an effect. Each request has one outcome.
//   - No work is left behind, and every key can be used again.
//
// The explorer can fail, because it finds the bugs of TestExplorerFindsBugsOfAStore and the mutants of the library
// (proof/mutants).
package explore
