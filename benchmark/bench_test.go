package benchmark_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/benchmark"
	"github.com/idempotency-go/idempotency/internal/servertest"
)

var paths = []benchmark.Path{benchmark.First, benchmark.Replay}

// BenchmarkRequest is for profiles of one path at a time: go test -bench Request/memory/first -memprofile mem.out.
// Times are compared by the report, which puts the subjects side by side.
func BenchmarkRequest(b *testing.B) {
	backends, err := benchmark.OpenCounting()
	servertest.Require(b, err)
	b.Cleanup(backends.Close)
	for name, subject := range map[string]*benchmark.Subject{
		"memory": benchmark.Memory, "redis": benchmark.Redis,
		"postgres": benchmark.Postgres, "transactional": benchmark.PostgresTx,
	} {
		for _, path := range paths {
			b.Run(name+"/"+string(path), func(b *testing.B) {
				target, err := subject.Open(backends, benchmark.NewApp(benchmark.Small))
				require.NoError(b, err)
				w := target.Worker(benchmark.Call{Path: path, Work: benchmark.Small})
				defer w.Close()
				keys := keysFor(path, b.N)
				b.ReportAllocs()
				b.ResetTimer()
				for _, key := range keys {
					if status, _, err := w.Do(key); err != nil || status != http.StatusCreated {
						b.Fatal(status, err)
					}
				}
			})
		}
	}
}

// keysFor returns the keys of n requests: one for all that are replayed.
func keysFor(path benchmark.Path, n int) []string {
	if path == benchmark.Replay {
		return slices.Repeat(benchmark.NewKeys(1), n)
	}
	return benchmark.NewKeys(n)
}

// BenchmarkHTTP shows what is left of a change over real HTTP: compare go test -bench HTTP -count 10 by benchstat.
func BenchmarkHTTP(b *testing.B) {
	app := benchmark.NewApp(benchmark.Small)
	m, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: 1 << 40}),
		idempotency.SingleUser, idempotency.Options{})
	require.NoError(b, err)
	for name, handler := range map[string]http.Handler{"bare": app, "memory": m.Handler(app)} {
		server := httptest.NewServer(handler)
		b.Cleanup(server.Close)
		for _, path := range paths {
			b.Run(name+"/"+string(path), func(b *testing.B) {
				client := &fasthttp.Client{}
				defer client.CloseIdleConnections()
				request, response := &fasthttp.Request{}, &fasthttp.Response{}
				request.SetRequestURI(server.URL)
				request.Header.SetMethod(http.MethodPost)
				request.SetBody(make([]byte, benchmark.Small.Request))
				keys := keysFor(path, b.N)
				b.ResetTimer()
				for i, key := range keys {
					request.Header.Set("Idempotency-Key", key)
					require.NoError(b, client.Do(request, response))
					require.Equal(b, http.StatusCreated, response.StatusCode())
					replayed := name == "memory" && path == benchmark.Replay && i > 0
					require.Equal(b, replayed, len(response.Header.Peek("Idempotent-Replayed")) > 0)
				}
			})
		}
	}
}
