package benchmark_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/benchmark"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

// TestScenarios runs one batch of every subject in every scenario that has a limit, each of which checks executions and
// answers, and finds out limits on what is not compared.
func TestScenarios(t *testing.T) {
	servers, err := benchmark.Open()
	servertest.Require(t, err)
	t.Cleanup(servers.Close)
	valkey, err := benchmark.OpenValkey()
	if err == nil {
		t.Cleanup(valkey.Close)
	} else {
		require.ErrorIs(t, err, exec.ErrNotFound)
	}
	for _, limit := range benchmark.Limits {
		backends := servers
		if limit.Valkey {
			backends = valkey
		}
		if limit.Beside == nil || backends == nil {
			continue
		}
		subjects := limit.Compared(limit.Subject.Store)
		require.Contains(t, subjects, limit.Subject)
		require.Contains(t, subjects, limit.Beside)
		for _, subject := range subjects {
			t.Run(fmt.Sprintf("%s/%s/%s", limit.Scenario, limit.Of, subject.Name), func(t *testing.T) {
				cost, err := limit.Contender(backends, subject, 2*limit.Workers).Batch()
				require.NoError(t, err)
				require.Positive(t, benchmark.Elapsed(cost))
				require.Positive(t, cost.Client)
				if subject.Store != benchmark.InDynamoDB { // which is no server of its own
					require.Equal(t, subject.Store != benchmark.InMemory, cost.Server > 0)
				}
			})
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
		mark   string
	}{
		"executes again": {path: benchmark.Replay, want: "executions",
			broken: func(app http.Handler) http.HandlerFunc { return app.ServeHTTP }},
		"does not execute": {path: benchmark.First, want: "executions",
			broken: func(http.Handler) http.HandlerFunc {
				return func(w http.ResponseWriter, _ *http.Request) { answer(w, "x") }
			}},
		"refuses": {path: benchmark.First, want: "status 409",
			broken: func(http.Handler) http.HandlerFunc {
				return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusConflict) }
			}},
		"answers short": {path: benchmark.First, want: "0 bytes",
			broken: func(http.Handler) http.HandlerFunc {
				return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }
			}},
		"takes all keys for one": {path: benchmark.First, want: "executions",
			broken: func(app http.Handler) http.HandlerFunc {
				once := onceThen("/1", "x")(app)
				return func(w http.ResponseWriter, r *http.Request) {
					r.Header.Set("Idempotency-Key", "one")
					once(w, r)
				}
			}},
		"replays another body":   {path: benchmark.Replay, broken: onceThen("/1", "y"), want: "another body"},
		"replays another header": {path: benchmark.Replay, broken: onceThen("/2", "x"), want: "replayed with"},
		"marks no replay": {path: benchmark.Replay, broken: onceThen("/1", "x"), want: "Idempotent-Replayed is",
			mark: benchmark.ReplayMark},
	} {
		for _, served := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/served=%v", name, served), func(t *testing.T) {
				t.Parallel()
				subject := &benchmark.Subject{Name: name, Store: benchmark.InMemory, Mark: tt.mark,
					Open: func(_ *benchmark.Backends, app *benchmark.App) (*benchmark.Target, error) {
						return benchmark.NetHTTP(tt.broken(app)), nil
					}}
				s := benchmark.Scenario{Path: tt.path, Work: benchmark.Small, Workers: 1, Served: served}
				_, err := s.Contender(nil, subject, 8).Batch()
				require.ErrorContains(t, err, tt.want)
			})
		}
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
	for i, subject := range []*benchmark.Subject{
		benchmark.Memory, benchmark.FiberMemory, benchmark.Memory, benchmark.FiberMemory,
	} {
		s := benchmark.Scenario{Path: benchmark.First, Work: benchmark.Small, Workers: 1, Served: i > 1}
		batches := func(n int) int {
			for range n {
				_, err := s.Contender(nil, subject, 8).Batch()
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

// TestLeast shows that the least keeps the contract: Measure checks answers and executions.
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

func TestCompare(t *testing.T) {
	t.Parallel()
	rounds := func(times ...time.Duration) func() (benchmark.Cost, error) {
		return func() (benchmark.Cost, error) {
			d := times[0]
			times = times[1:]
			return benchmark.Cost{Client: d, Server: d}, nil
		}
	}
	c, err := benchmark.Compare(4, []benchmark.Contender{
		{Name: "one", Batch: rounds(10, 100, 10, 10)}, {Name: "other", Batch: rounds(11, 130, 12, 14)},
	})
	require.NoError(t, err)
	require.Equal(t, benchmark.Ratio{Median: 1.3, Low: 1.2, High: 1.4}, c.Ratio(1, 0, benchmark.Processor))
	require.Equal(t, 28*time.Nanosecond, c.Median(1, benchmark.Processor))
	_, err = benchmark.Compare(1, []benchmark.Contender{{Name: "broken", Batch: func() (benchmark.Cost, error) {
		return benchmark.Cost{}, errors.New("no")
	}}})
	require.EqualError(t, err, "broken: no")
}

func TestRecordOverhead(t *testing.T) {
	overhead, err := benchmark.RecordOverhead(10_000)
	require.NoError(t, err)
	require.Positive(t, overhead)
}
