// Package steps kills processes at random while they run operations of three steps, on every store that outlives a process,
// with leases and with transactions. A provider does the steps, and keeps a journal.
//
// These must hold: a step whose result was stored is not called again, and every later attempt has that result. A step that
// is done at most once is called at most once. Every operation completes, and its answer has the results of its steps.
//
//	go test ./internal/proof/steps
//
// kills two thousand processes for each store, in a quarter of an hour.
package steps
