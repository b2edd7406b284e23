// Package killtest kills processes at random while they work with one store, and then asks whether what they have said
// and done can be explained.
//
// A test starts its own binary again with [KillAll]. The environment variables that it passes tell its TestMain to call
// [Live], which never returns. A process says what it knows, one line at a time on its standard output: what it was
// answered, which attempts it has ended, and what it lost. A [Witness] keeps that. [Operations] is the witness of
// operations whose effects are no steps, so they may be executed again after a death. [Errands] is the witness of operations
// of three steps. [Transfers] is the witness of operations of two: a charge, and rows in a transaction.
//
// Every operation is charged before its effect takes place, with [idempotency.Operation.DownstreamKey]. A [Provider],
// which nobody kills, keeps a journal. However often an operation is executed, it has one key, and is charged once.
//
// The test of a store adds what is its own: it opens the store, and has a [Book], which writes rows in a transaction of the
// store.
//
// It is for the tests of this repository, and may change at any time.
package killtest
