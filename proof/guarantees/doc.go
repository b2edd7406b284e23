// Package guarantees holds tests that try to prove the promises of this repository wrong.
//
// # Linearizability
//
// Several clients call a store at the same time. The test records what each call asked, what it returned, and when it began
// and ended. A checker, porcupine, then looks for an order of the calls in which a simple model of the contract gives the
// same answers, and in which each call has its place between its beginning and its end. If there is none, the store has
// broken its contract, and the test prints the history of the key.
//
// The model is the contract of idempotency.Store and idempotency.Claim: who may claim a key, what the record says, what
// each step does to it, and what a step says of a record that is somebody else's, or gone. Leases and records end
// during a history. The model knows between which two instants each of them ends, and accepts no end before or after.
// A call that failed may take effect at any later time, or never. The same is true of a try that the store has repeated by
// itself.
//
// Where the contract leaves the answer open, the model allows each. A claim that was settled and whose record is gone
// may be completed again (ErrRestored), or not. A second response may be refused (ErrClaimLost), or ignored.
//
// Steps in a transaction are calls, too. Each writes a row, whose number is the result, and other clients read the rows: there
// is a row if and only if the step has the result, and the owner of another claim adds none.
//
// Not covered are isolation levels above read committed, where renewals rest while a step runs; Record.Created; and
// Record.Remaining where the store has to be asked for it.
//
// The proof can fail: TestLinearizableHistoriesFindBugs puts one bug at a time into a store, and every bug is found.
//
//	go test ./proof/guarantees -run Linearizable -times 100 -limit 1h
//
// runs a hundred times as many histories as usual, for at most an hour a store. The directories below hold the other proofs,
// and cmd/prove runs all of them.
package guarantees
