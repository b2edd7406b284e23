package benchmark_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/benchmark"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

// TestChecks shows that a comparison fails for a subject that breaks the contract or does too little work.
func TestChecks(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		path          benchmark.Path
		brokenHandler func(app http.Handler) http.HandlerFunc
		want          string
		mark          string
	}{
		"executes again": {path: benchmark.Replay, want: "executions",
			brokenHandler: func(app http.Handler) http.HandlerFunc { return app.ServeHTTP }},
		"does not execute": {path: benchmark.First, want: "executions",
			brokenHandler: func(http.Handler) http.HandlerFunc {
				return func(w http.ResponseWriter, _ *http.Request) { writeAnswer(w, "x") }
			}},
		"refuses": {path: benchmark.First, want: "status 409",
			brokenHandler: func(http.Handler) http.HandlerFunc {
				return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusConflict) }
			}},
		"answers short": {path: benchmark.First, want: "0 bytes",
			brokenHandler: func(http.Handler) http.HandlerFunc {
				return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }
			}},
		"takes all keys for one": {path: benchmark.First, want: "executions",
			brokenHandler: func(app http.Handler) http.HandlerFunc {
				once := executeOnceThenAnswer("/1", "x")(app)
				return func(w http.ResponseWriter, r *http.Request) {
					r.Header.Set("Idempotency-Key", "one")
					once(w, r)
				}
			}},
		"replays another body":   {path: benchmark.Replay, brokenHandler: executeOnceThenAnswer("/1", "y"), want: "another body"},
		"replays another header": {path: benchmark.Replay, brokenHandler: executeOnceThenAnswer("/2", "x"), want: "replayed with"},
		"marks no replay": {path: benchmark.Replay, brokenHandler: executeOnceThenAnswer("/1", "x"), want: "Idempotent-Replayed is",
			mark: benchmark.ReplayMark},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			subject := &benchmark.Subject{Name: name, Store: benchmark.InMemory, Mark: tt.mark,
				Open: func(_ *benchmark.Backends, app *benchmark.App) (*benchmark.Target, error) {
					return benchmark.NetHTTP(tt.brokenHandler(app)), nil
				}}
			s := benchmark.Scenario{Path: tt.path, Work: benchmark.Small, Workers: 1, Served: true}
			_, err := benchmark.Compare(nil, s, []*benchmark.Subject{subject}, 1, 8)
			require.ErrorContains(t, err, tt.want)
		})
	}
}

// writeAnswer answers with a body of the length in benchmark.Small, made of letter.
func writeAnswer(w http.ResponseWriter, letter string) {
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, strings.Repeat(letter, benchmark.Small.Response))
}

// executeOnceThenAnswer runs the handler once for each key, and answers with "/1" and the letter x. Later requests with the
// key get location and letter.
func executeOnceThenAnswer(location, letter string) func(http.Handler) http.HandlerFunc {
	return func(app http.Handler) http.HandlerFunc {
		seen := make(map[string]bool)
		return func(w http.ResponseWriter, r *http.Request) {
			key := r.Header.Get("Idempotency-Key")
			if seen[key] {
				w.Header().Set("Location", location)
				writeAnswer(w, letter)
				return
			}
			seen[key] = true
			app.ServeHTTP(httptest.NewRecorder(), r)
			w.Header().Set("Location", "/1")
			writeAnswer(w, "x")
		}
	}
}

// TestLeast shows that the least subjects keep the contract, because Measure checks answers and executions.
func TestLeast(t *testing.T) {
	backends, err := benchmark.OpenCounting()
	servertest.Require(t, err)
	t.Cleanup(backends.Close)
	for _, subject := range []*benchmark.Subject{benchmark.MemoryLeast, benchmark.RedisLeast, benchmark.PostgresLeast} {
		for _, path := range []benchmark.Path{
			benchmark.First, benchmark.Replay, benchmark.InProgress, benchmark.Reuse,
		} {
			_, err := benchmark.Measure(backends, subject, path, benchmark.Small)
			require.NoError(t, err)
		}
	}
	for subject, takeOver := range map[*benchmark.Subject]func() error{
		benchmark.RedisLeast: func() error { return backends.Redis.Set(t.Context(), "lost", "taken over", 0).Err() },
		benchmark.PostgresLeast: func() error {
			_, err := backends.Postgres.Exec(t.Context(), "UPDATE least SET token = 'another' WHERE key = 'lost'")
			return err
		},
	} {
		app := benchmark.NewApp(benchmark.Small)
		app.During = func() { require.NoError(t, takeOver()) }
		target, err := subject.Open(backends, app)
		require.NoError(t, err)
		w := target.Worker(benchmark.Call{Path: benchmark.First, Work: benchmark.Small})
		defer w.Close()
		status, _, err := w.Do("lost")
		require.NoError(t, err)
		require.Equal(t, http.StatusServiceUnavailable, status, subject.Name)
	}
	require.Equal(t, "taken over", backends.Redis.Get(t.Context(), "lost").Val())
}

func TestComparison(t *testing.T) {
	t.Parallel()
	c := make(benchmark.Comparison, 2)
	for round, processor := range [][2]time.Duration{{10, 11}, {100, 130}, {10, 12}, {10, 14}} {
		for i := range c {
			c[i] = append(c[i], benchmark.Cost{
				Processor: processor[i], PerSecond: float64(100*i + round), Latencies: []time.Duration{processor[i], 1},
			})
		}
	}
	require.InDelta(t, 1.3, c.Ratio(1, 0), 0.001)
	require.InDelta(t, 102, c.PerSecond(1), 0.001)
	require.Equal(t, 1*time.Nanosecond, c.Latency(1, 0.5))
	require.Equal(t, 130*time.Nanosecond, c.Latency(1, 1))
}
