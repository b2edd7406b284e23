// Package explore runs every execution of a few requests, within a bound, and judges each of them.
//
// # The world
//
// Up to three processes, each with a Runner or a Middleware of its own, do one or two operations on one store. The
// library is the real one. The store, the network between, the handlers and the clock are the explorer's. It decides
// step by step what happens next:
//
//   - A request arrives, and asks for its claim.
//   - A call of the store ends. It succeeds, or fails without an effect, or fails with an effect. Or it is slow: its
//     reply is held back, or the call itself is. Such a call takes effect later, perhaps when nobody waits for it any more.
//   - A handler has its effect, fails, or exits after its effect. The effect may be a step, or a row that a step writes in a
//     transaction: its commit may have its effect without a reply, or late.
//   - A process crashes before or after any of these.
//   - Time passes until something happens: a renewal is due, a call reaches its deadline, a lease lapses, a pause of
//     the library ends. While somebody is at work, at most 35 % of a lease passes. Each execution has a clock of its own
//     (testing/synctest).
//   - The clock of the store jumps to the end of a lease. To the store this is as if a process had stood still.
//
// The store decides about each call at once, unless the call is slow.
//
// # The search
//
// Every choice is tried, depth first. No execution is left out for being like another one. A bound says how many requests,
// faults and passages of time there are; pauses of the library do not count. An execution is determined by its choices.
// They are its schedule, which a violation prints.
//
//	go test ./proof/guarantees/explore                      # all bounds
//	go test ./proof/guarantees/explore -times 10            # one more fault in each: hours
//	go test ./proof/guarantees/explore -schedule '{...}'    # one execution, which a violation has printed
//
// # What must hold
//
//   - No handler runs beside a live claim of another attempt, or after the answer is stored.
//   - An owner is told before its lease lapses in the store, and nobody loses a claim for no reason. If the clock of the
//     store has jumped, this holds as soon as the lease has lapsed by the clock of the owner, too.
//   - The number of the attempt grows, and the operation stays the same.
//   - The effect happens once. With ReExecute, each attempt that was interrupted may have had one more.
//   - If the effect is a step, it does not happen again once its result is stored.
//   - If the effect is a row, there is one, whoever was interrupted.
//   - All clients get the same answer, which is that of an effect. Each request has one outcome.
//   - Nothing is left behind, and every key can be used again.
//
// The explorer can fail: it finds bugs that are put into the store, and the mutants of the library (proof/mutants).
package explore
