// Package steps kills processes at random while they run operations of steps, on every store that outlives a process. A
// provider does what the steps ask for, and keeps a journal.
//
// These must hold: a step whose result was stored is not called again, and every later attempt has that result. A step that
// is done at most once is called at most once. The rows of a step in a transaction are there once, with its result. Every
// operation completes, and its answer has the results of its steps.
//
//	go test ./proof/guarantees/steps
//
// kills two thousand processes for each store and kind of operation, in half an hour.
package steps
