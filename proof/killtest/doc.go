// Package killtest kills processes at random while the processes work with one store, and then checks that the
// recorded answers and effects are consistent.
//
// A test starts its own binary again with [KillAll]. Environment variables tell the TestMain of the binary to call
// [RunProcess], which never returns. Each process reports on its standard output, one line at a time: answers that
// the process has received, attempts that the process has ended, and attempts whose claim was lost. A [Witness]
// records the lines.
//
//   - [Operations] is the witness of operations without steps, which may be executed again after a kill.
//   - [StepProvider] is the witness of operations with three steps.
//   - [Transfers] is the witness of operations with two steps: a charge, and rows in a transaction.
//
// Every operation is charged before its effect, with the key [idempotency.Operation.DownstreamKey]. A [Provider] in
// the process of the test, which is not killed, keeps a journal. An operation has the same key in each attempt, so
// the provider charges once.
//
// The test of a store opens the store, and provides a [Book], which writes rows in a transaction of the store.
//
// The package is for the tests of this repository, and may change at any time.
package killtest
