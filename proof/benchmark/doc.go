// Package benchmark measures what the library costs beside the least that keeps its contract.
//
// [Limits] bounds what can be counted: allocations, bytes, round trips, WAL. [Measure] counts one request, and TestGates
// fails above a limit. The race detector changes allocations, so TestGates is not built under -race.
//
// [Compare] measures time over HTTP. Short batches of all subjects run in turns, so that other work on the machine slows
// all subjects alike. No test depends on time.
//
// Every batch counts the executions of the handler, checks status and length of each answer, and compares replays byte for
// byte with the first answer.
//
// go run ./proof/benchmark/cmd/benchmark writes proof/benchmark/results/README.md and its plot.
package benchmark
