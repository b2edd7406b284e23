// Package death kills servers by SIGKILL while clients send them requests, and looks at what has become of every key.
//
// Two servers work on one store. Each is a small program that the tests build. When one dies, the next one starts at once.
// 64 clients send requests over HTTP, in pairs that share a key, and retry until they have the final answer. Then the answer
// is asked for once more. A ledger counts the effects of each key. It is a table, into which a step of the handler inserts in
// a transaction, or a file outside of the store, to which the handler appends a line without a step. Before its effect, the
// handler has a provider charge, see [killtest.Provider].
//
// # How a server dies
//
//   - At a point that the request names: while its body is read, before or after the claim, the effect, a renewal of the
//     lease or the completion, in the transaction of the effect, or before, in the middle of or after an answer or a replay. The server writes key and point
//     as its last words, and kills itself. Only such deaths are counted.
//   - At random: the request gives a time after which its server dies, if the request is not over by then.
//
// # What must hold
//
// A key has its row exactly once, and one answer, wherever its servers have died. Without a step, a key has exactly what the
// policy promises for the point. So that this is known, no other death hits the retries of a request that has killed its
// server at a point.
//
// At random, Refuse has no second effect, and with ReExecute each effect belongs to an attempt of its own. A key with a
// point is judged like this too if an attempt was not recorded in time, because it outlived its lease on a slow machine.
// Such keys are counted.
//
// All answers to a key are the same, and none is lost: the other server replays it. A key is charged once, wherever its
// servers have died: the provider gets the same key from every attempt.
//
// The proof can fail: TestBrokenPromisesAreNoticed writes rows outside of the transaction, and uses another policy than
// the one that is promised.
//
//	go test ./proof/guarantees/death -times 10 -timeout 1h
//
// kills ten times as many servers as usual. With the race detector three hundredths are killed; the servers are built
// without it.
package death
