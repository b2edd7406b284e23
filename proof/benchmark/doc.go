// Package benchmark compares the library with others, and with the least that could keep its contract. All subjects do
// the same work, side by side in one process.
//
// [Limits] is the one table of what the library may cost. What can be counted (allocations, bytes, round trips, WAL) is
// exact: [Measure] counts it, and a test fails above the limit. Time is not: [Compare] runs short batches of all
// subjects in turns and takes the median of the ratios within each round, and the report shows it beside the limit. On
// a server, processor time of client and server together is steadier than throughput. No test depends on time.
//
// What a user pays is measured over HTTP: a real server, and clients of it, on loopback ([Scenario].Served). The same
// without HTTP is for finding causes.
//
// Every batch is checked: how often the handler ran, the status and length of each answer, and replays byte for byte
// against the first answer.
//
//	go run ./proof/benchmark/cmd/report          # all of it, into proof/benchmark/results/README.md and cost.svg
//	go run ./proof/benchmark/cmd/report -quick   # a first impression, printed only
//	go run ./proof/benchmark/cmd/durable         # the stores on a disk, into proof/benchmark/results/durable.md
//	go run ./proof/benchmark/cmd/footprint       # bytes of a record in each store, into proof/benchmark/results/footprint.md
//	go run ./proof/benchmark/cmd/growth          # how cost grows, into proof/benchmark/results/growth.md and its plots
//
// The race detector changes what is allocated, so the test of the limits is not built under -race.
package benchmark
