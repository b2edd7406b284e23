package benchmark_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/benchmark"
	"github.com/idempotency-go/idempotency/internal/servertest"
)

// TestScenarios runs one batch of every subject in every scenario, each of which checks executions and answers.
func TestScenarios(t *testing.T) {
	backends, err := benchmark.OpenBackends(false)
	servertest.Require(t, err)
	t.Cleanup(backends.Close)
	for _, m := range benchmark.Matrices {
		for _, s := range m.Scenarios {
			s.Batch = 2 * s.Workers
			for _, subject := range m.Subjects {
				t.Run(m.Title+"/"+s.String()+"/"+subject.Name, func(t *testing.T) {
					_, err := s.Contender(backends, subject).Batch()
					require.NoError(t, err)
				})
			}
		}
	}
}

// TestChecks shows that a subject is found out which does not do what it is measured for.
func TestChecks(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		path   benchmark.Path
		broken func(app http.Handler) http.HandlerFunc
		want   string
	}{
		"executes again": {benchmark.Replay, func(app http.Handler) http.HandlerFunc { return app.ServeHTTP }, "executions"},
		"does not execute": {benchmark.First, func(http.Handler) http.HandlerFunc {
			return func(w http.ResponseWriter, _ *http.Request) { answer(w, "x") }
		}, "executions"},
		"refuses": {benchmark.First, func(http.Handler) http.HandlerFunc {
			return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusConflict) }
		}, "status 409"},
		"answers short": {benchmark.First, func(http.Handler) http.HandlerFunc {
			return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }
		}, "0 bytes"},
		"replays another body":   {benchmark.Replay, onceThen("/1", "y"), "another body"},
		"replays another header": {benchmark.Replay, onceThen("/2", "x"), "replayed with"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			subject := benchmark.Subject{Name: name, Role: benchmark.Peer, Store: benchmark.InMemory,
				Open: func(_ *benchmark.Backends, app *benchmark.App) (*benchmark.Target, error) {
					return benchmark.OverHTTP(tt.broken(app)), nil
				}}
			s := benchmark.Scenario{Path: tt.path, Work: benchmark.Small, Workers: 1, Batch: 8}
			_, err := s.Contender(nil, subject).Batch()
			require.ErrorContains(t, err, tt.want)
		})
	}
}

// answer answers with the length that the work asks for.
func answer(w http.ResponseWriter, letter string) {
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, strings.Repeat(letter, benchmark.Small.Response))
}

// onceThen runs the handler once for a key, and answers with "/1" and the letter x; from then on as it is told.
func onceThen(location, letter string) func(http.Handler) http.HandlerFunc {
	return func(app http.Handler) http.HandlerFunc {
		seen := make(map[string]bool)
		return func(w http.ResponseWriter, r *http.Request) {
			key := r.Header.Get("Idempotency-Key")
			if seen[key] {
				w.Header().Set("Location", location)
				answer(w, letter)
				return
			}
			seen[key] = true
			app.ServeHTTP(httptest.NewRecorder(), r)
			w.Header().Set("Location", "/1")
			answer(w, "x")
		}
	}
}

// TestBatchesLeaveNothing would find a store of an earlier batch by its goroutine.
func TestBatchesLeaveNothing(t *testing.T) {
	s := benchmark.Scenario{Path: benchmark.First, Work: benchmark.Small, Workers: 1, Batch: 8}
	for _, subject := range []benchmark.Subject{benchmark.Memory, benchmark.Fiber2, benchmark.Fiber3} {
		batches := func(n int) int {
			for range n {
				_, err := s.Contender(nil, subject).Batch()
				require.NoError(t, err)
			}
			return runtime.NumGoroutine()
		}
		before := batches(1) // starts what there is one of
		batches(10)
		require.Eventually(t, func() bool { return runtime.NumGoroutine() <= before+1 }, 10*time.Second, time.Millisecond,
			"goroutines of %s", subject.Name)
	}
}

// TestLoad runs the generator; how fast it goes is not asserted.
func TestLoad(t *testing.T) {
	t.Parallel()
	l := benchmark.Load{Work: benchmark.Small, Rate: 200, Duration: time.Second}
	latencies, err := l.Compare(nil, []benchmark.Subject{benchmark.BareHandler, benchmark.Memory}, 2)
	require.NoError(t, err)
	require.Len(t, latencies, 2)
	for _, latency := range latencies {
		require.Positive(t, latency.P50)
		require.LessOrEqual(t, latency.P50, latency.P99)
		require.LessOrEqual(t, latency.P99, latency.P999)
		require.LessOrEqual(t, latency.P999, latency.Max)
	}
}
