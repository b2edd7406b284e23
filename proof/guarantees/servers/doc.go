// Package servers holds tests that kill, empty and replace the servers of stores, and count what is lost.
//
// Clients send payments to two HTTP servers with the real middleware, and retry at either of them until they have an answer.
// A ledger counts the effects of each key. When a fault is over, every client asks for its answer again. It gets the same
// answer, or another one, or the answer was lost and the key is new.
//
// Each fault has a loss. It says which answers the fault may cost according to the documentation, which it must not cost, and
// which it is certain to cost, if any, by the instants at which a client asked for its answer and saw it. A test fails if more is
// lost than may be, and also if less is lost than is certain: then the fault had no effect.
//
// Where replicas replace masters, each row is a fault and what answers wait for. An answer that was known to be on all replicas
// when it was seen must not be lost. [The table] of such rows was measured by
//
//	go test -v -run TestRedisFailsOver ./proof/guarantees/servers -times 8
//	go test -v -run TestRedisClusterFailsOver ./proof/guarantees/servers -times 8
//
// [The table]: https://github.com/idempotency-go/idempotency/blob/main/proof/guarantees/servers/README.md
package servers
