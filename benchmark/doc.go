// Package benchmark compares the library with others, with the least that any of them could cost, and with what its
// stores cost without it: everybody does the same work, side by side in one process.
//
// A machine is noisy, so a time alone says little. [Compare] interleaves short batches of all subjects and reports the
// medians of the ratios within each round; where one operation may stall, a control stands beside it. What can be
// counted is exact: [Measure] counts allocations, bytes, commands, round trips and WAL, and the tests of this package
// hold the library to the limits of [Gates]. No test depends on time.
//
// Every batch is checked: how often the handler ran, the status and length of each answer, and a replay byte for byte
// against the first answer.
//
//	go run ./benchmark/cmd/report          # all of it, into docs/benchmarks
//	go run ./benchmark/cmd/report -quick   # a first impression
//
// The race detector changes what is allocated, so the tests with limits are not built under -race: run them by a plain
// "go test" of this module.
package benchmark
