// Package guarantees contains tests that try to disprove the promises of this repository.
//
// # Linearizability
//
// Several clients call a store at the same time. The test records the arguments, the results, the start and the end of each
// call. The checker porcupine then searches for an order of the calls in which a simple model of the contract gives the same
// results, and in which each call takes effect between its start and its end. If the search fails, the store has broken its
// contract, and the test prints the history of the key.
//
// The model is the contract of idempotency.Store and idempotency.Claim: which calls may claim a key, the contents of the record,
// the effect of each step on the record, and the error of a step if the record is gone or belongs to another claim. Leases and
// records end during a history. The model computes two instants between which each lease and each record ends, and rejects an
// end outside of these instants. A failed call may take effect at any later time, or never, and so may a try that the store has
// repeated by itself.
//
// Where the contract leaves the result open, the model allows every result. For example, if the record of a settled claim is
// gone, the store may restore the record when the claim is completed again (ErrRestored), but need not. The store may refuse
// (ErrClaimLost) or ignore a second response.
//
// Steps in a transaction are calls, too. Each step writes a row, and the number of the row is the result of the step. Other
// clients read the rows. A row exists if and only if its number is the result of the step, and only the owner of the claim adds
// rows.
//
// The model does not cover isolation levels above read committed, where renewals rest while a step runs; Record.Created; and
// Record.Remaining in stores that read the remaining time with a separate call.
//
// The proof can fail: TestLinearizableHistoriesFindBugs puts one bug at a time into a store, and the histories find every bug.
//
//	go test ./proof/guarantees -run Linearizable -times 100 -limit 1h
//
// runs a hundred times as many histories as usual, for at most an hour per store. The subdirectories contain the other proofs,
// and cmd/prove runs all of them.
package guarantees
