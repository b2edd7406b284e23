// Package steps kills processes at random while they run operations with steps, on every store that outlives a process. The
// steps call a provider, which keeps a journal of the calls.
//
// The tests require:
//
//   - A step whose result was stored is not called again, and every later attempt gets this result.
//   - A step that runs at most once is called at most once.
//   - The rows of a step in a transaction exist once, together with the result of the step.
//   - Every operation completes, and its answer has the results of its steps.
//
// The command
//
//	go test ./proof/guarantees/steps
//
// kills two thousand processes for each store and kind of operation, in half an hour.
package steps
