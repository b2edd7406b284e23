// Package death kills servers by SIGKILL while clients send them requests, and checks the answers and effects of every key.
//
// Two servers share one store. Each server is a small program that the tests build. When a server dies, the next server
// starts at once. 64 clients send requests over HTTP, in pairs that share a key, and retry until they have the final answer.
// Then one client requests the answer once more. A ledger counts the effects of each key. The ledger is either a table, into
// which a step of the handler inserts a row in a transaction, or a file outside of the store, to which the handler appends a
// line without a step. Before the effect, the handler calls a provider, which charges, see [killtest.Provider].
//
// # How a server dies
//
//   - At a point that the request names: while its body is read, before or after the claim, the effect, a renewal of the
//     lease or the completion, in the transaction of the effect, or before, in the middle of or after an answer or a replay.
//     The server prints the key and the point, and kills itself. Only such deaths are counted.
//   - At random: the request gives a time after which its server dies, unless the request has ended before.
//
// # What must hold
//
//   - With a step, a key has exactly one row and one answer, wherever its servers have died.
//   - Without a step, a key that has killed its server at a point has exactly the effects and answers that the policy promises
//     for this point. The promise holds for one death only, so no other death interrupts the retries of such a key.
//   - Without a step, after a death at random, Refuse has no second effect, and with ReExecute each effect belongs to a
//     different attempt. The same check applies to a key with a point if an attempt was not recorded in time, because the
//     attempt outlived its lease on a slow machine. The tests count such keys.
//   - All answers to a key are the same, and no answer is lost, because the other server replays the answer.
//   - A key is charged once, wherever its servers have died, because the provider gets the same key from every attempt.
//
// The proof can fail: TestBrokenPromisesAreNoticed writes rows outside of the transaction, and runs servers with a policy
// that differs from the promised policy.
//
//	go test ./proof/guarantees/death -times 10 -timeout 1h
//
// kills ten times as many servers as usual. With the race detector, the tests kill three hundredths of the usual number. The
// servers are built without the race detector.
package death
