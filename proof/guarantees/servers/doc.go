// Package servers tests stores whose servers are killed, emptied and replaced, and counts the lost answers.
//
// Clients send payments to two HTTP servers with the real middleware, and repeat a payment at alternating servers until the payment
// has an answer. A ledger counts the effects of each key. After a fault, every client asks for its answer again. The client gets
// the same answer, gets a different answer, or learns that the answer was lost and the key is new.
//
// Each fault has a loss, which follows the documentation. A loss says, by the instants at which a client asked for an answer and
// saw the answer, whether the fault may lose the answer, must keep the answer, or is certain to lose the answer. A test fails if
// more is lost than the loss allows. A test also fails if an answer that is certain to be lost is not lost, because then the fault
// had no effect.
//
// Where replicas replace masters, a row has a fault and the number of replicas for which an answer waits. An answer that was known
// to be on all replicas when the client saw the answer must not be lost. [The table] of such rows was measured by
//
//	go test -v -run TestRedisFailsOver ./proof/guarantees/servers -times 8
//	go test -v -run TestRedisClusterFailsOver ./proof/guarantees/servers -times 8
//
// [The table]: https://github.com/idempotency-go/idempotency/blob/main/proof/guarantees/servers/README.md
package servers
