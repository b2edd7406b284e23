package benchmark_test

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/benchmark"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

var paths = []benchmark.Path{benchmark.First, benchmark.Replay}

// BenchmarkRequest is for profiles of one path at a time: go test -bench 'Request/memory/first' -memprofile mem.out.
// Use the command to compare times, because the command measures the subjects in turns.
func BenchmarkRequest(b *testing.B) {
	backends, err := benchmark.OpenCounting()
	servertest.Require(b, err)
	b.Cleanup(backends.Close)
	worksOfEachSize := []benchmark.Work{benchmark.Small, benchmark.Medium, benchmark.Large, benchmark.LargeRequest}
	small := worksOfEachSize[:1]
	for _, row := range []struct {
		name    string
		subject *benchmark.Subject
		works   []benchmark.Work
		paths   []benchmark.Path
	}{
		{"memory", benchmark.Memory, worksOfEachSize, paths},
		{"redis", benchmark.Redis, worksOfEachSize, paths},
		{"postgres", benchmark.Postgres, small, paths},
		{"rows", benchmark.PostgresRows, small, paths},
		{"rows-by-hand", benchmark.PostgresByHand, small, paths},
		{"unguarded", benchmark.Memory, small, []benchmark.Path{benchmark.NoKey}},
		{"bare", benchmark.BareHandler, small, []benchmark.Path{benchmark.NoKey}},
	} {
		for _, work := range row.works {
			for _, path := range row.paths {
				call := benchmark.Call{Path: path, Work: work}
				b.Run(fmt.Sprintf("%s/%s/%s", row.name, path, work), func(b *testing.B) {
					all := newKeysFor(path, b.N)
					b.ReportAllocs()
					b.ResetTimer()
					for keys := range slices.Chunk(all, maxBatchSize(call)) {
						b.StopTimer()
						require.NoError(b, backends.Redis.FlushAll(b.Context()).Err())
						target, err := row.subject.Open(backends, benchmark.NewApp(work))
						require.NoError(b, err)
						w := target.Worker(call)
						b.StartTimer()
						for _, key := range keys {
							if status, n, err := w.Do(key); err != nil || status != http.StatusCreated || n != work.Response {
								b.Fatal(status, n, err)
							}
						}
						b.StopTimer()
						again, err := w.Fetch(keys[0])
						require.NoError(b, err)
						isMarked := path != benchmark.NoKey && row.subject.Mark != ""
						require.Equal(b, isMarked, again.Header.Get("Idempotent-Replayed") == "true")
						w.Close()
						b.StartTimer()
					}
				})
			}
		}
	}
}

// maxBatchSize returns the number of calls whose answers fit into the memory of a small machine.
func maxBatchSize(call benchmark.Call) int {
	if call.Path == benchmark.First {
		return (256 << 20) / (call.Work.Response + 1<<10)
	}
	return math.MaxInt
}

// newKeysFor returns the keys of n requests. Replays share one key.
func newKeysFor(path benchmark.Path, n int) []string {
	if path == benchmark.Replay {
		return slices.Repeat(benchmark.NewKeys(1), n)
	}
	return benchmark.NewKeys(n)
}
