// Package benchmark measures the cost of the library, and compares the library with the least work that keeps the contract.
//
// [Limits] bounds countable costs: allocations, bytes, round trips, WAL. [Measure] counts the cost of a request, and
// TestGates fails above a limit. The race detector changes allocations, so TestGates is not built under -race.
//
// [Compare] measures time over HTTP. Short batches of all subjects run in turns, because load from outside must slow all
// subjects alike. The tests are independent of time.
//
// Every batch counts the executions of the handler, checks status and length of each answer, and compares replays byte for
// byte with the first answer.
//
// go run ./proof/benchmark/cmd/benchmark writes proof/benchmark/results/README.md and its plot.
package benchmark
