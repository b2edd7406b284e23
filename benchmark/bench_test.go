package benchmark_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/benchmark"
	"github.com/idempotency-go/idempotency/internal/servertest"
)

// BenchmarkRequest is for profiles of one path at a time: go test -bench Request/memory/first -memprofile mem.out.
// Times are compared by the report, which puts the subjects side by side.
func BenchmarkRequest(b *testing.B) {
	backends, err := benchmark.OpenBackends(false)
	servertest.Require(b, err)
	b.Cleanup(backends.Close)
	for name, subject := range map[string]benchmark.Subject{
		"memory": benchmark.Memory, "redis": benchmark.Redis,
		"postgres": benchmark.Postgres, "transactional": benchmark.PostgresTx,
	} {
		for _, path := range []benchmark.Path{benchmark.First, benchmark.Replay} {
			b.Run(name+"/"+string(path), func(b *testing.B) {
				target, err := subject.Open(backends, benchmark.NewApp(benchmark.Small))
				require.NoError(b, err)
				w := target.Worker(benchmark.Call{Path: path, Work: benchmark.Small})
				defer w.Close()
				keys := benchmark.NewKeys(1)
				if path == benchmark.First {
					keys = benchmark.NewKeys(b.N)
				}
				b.ReportAllocs()
				b.ResetTimer()
				for i := range b.N {
					if err := w.Do(keys[i%len(keys)]); err != nil {
						b.Fatal(err)
					}
				}
				b.StopTimer()
				status, _ := w.Answer()
				require.Equal(b, http.StatusCreated, status)
			})
		}
	}
}
