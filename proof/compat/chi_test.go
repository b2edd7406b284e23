package compat_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// chiRouter returns a wrapper that mounts the handler on a router with middlewares.
func chiRouter(middlewares ...func(http.Handler) http.Handler) wrapper {
	return func(_ testing.TB, next http.Handler) http.Handler {
		r := chi.NewRouter()
		r.Use(middlewares...)
		r.Method(http.MethodPost, procedure, next)
		return r
	}
}

func TestChi(t *testing.T) {
	t.Parallel()
	compress := middleware.Compress(5)
	for name, w := range map[string]wrapped{
		"Timeout":   {wrap: chiRouter(middleware.Timeout(long)), panicked: broken},
		"Recoverer": {wrap: chiRouter(quietly, middleware.Recoverer), panicked: "500"},
		"Compress":  {wrap: chiRouter(compress), panicked: broken},
		"Throttle":  {wrap: chiRouter(middleware.Throttle(10)), panicked: broken},
		"all": {
			wrap:     chiRouter(quietly, middleware.Recoverer, compress, middleware.Throttle(10), middleware.Timeout(long)),
			panicked: "500",
		},
	} {
		t.Run(name, w.test)
	}
}

// quietly keeps Recoverer from printing.
func quietly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, middleware.WithLogEntry(r, noLog{}))
	})
}

type noLog struct{}

func (noLog) Write(int, int, http.Header, time.Duration, any) {}
func (noLog) Panic(any, []byte)                               {}

func TestChiTimeout(t *testing.T) {
	t.Parallel()
	timeout := chiRouter(middleware.Timeout(shortly))
	t.Run("obeyed", func(t *testing.T) {
		each(t, timeout, scenario{bubble: true, handler: patient, first: "504", retry: "504", runs: 2})
	})
	t.Run("ignored", func(t *testing.T) {
		each(t, timeout, scenario{bubble: true, handler: stubborn, first: "201", retry: "201", runs: 1})
	})
	t.Run("obeyed, streamed", func(t *testing.T) {
		each(t, timeout, scenario{
			bubble: true, handler: patient, opts: idempotency.Options{Stream: true}, first: "504", retry: "504", runs: 2,
		})
	})
}

// With Refuse, a handler that has given up is not called again, because its effects are unknown.
func TestChiTimeoutWithRefuse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := scenario{
			outer:   chiRouter(middleware.Timeout(shortly)),
			opts:    idempotency.Options{Abandoned: idempotency.Refuse, Lease: 2 * time.Second},
			handler: patient,
		}.start(t, true)
		require.Equal(t, "504", s.send("key").status)
		s.requireUnknown(t, "key")
	})
}

// A request that is refused in front of the middleware leaves its operation unchanged. A request that is refused
// behind the middleware may be retried.
func TestChiThrottle(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]scenario{
		"outside": {outer: chiRouter(middleware.Throttle(1))},
		"inside":  {inner: chiRouter(middleware.Throttle(1))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.handler = patient
			sv := s.start(t, true)
			got := make(chan answer, 1)
			go func() { got <- sv.send("first") }()
			receive(t, sv.entered)
			require.Equal(t, "429", sv.send("second").status)
			sv.goOn()
			first := receive(t, got)
			require.Equal(t, "201", first.status)

			require.Equal(t, first, sv.send("second"))
			require.Equal(t, first, sv.send("first").unmarked())
			require.True(t, sv.send("second").replayed())
			require.EqualValues(t, 2, sv.runs.Load())
		})
	}
}

// The middleware runs the handler once, even if both a router and a route use the middleware.
func TestChiUseAndWith(t *testing.T) {
	t.Parallel()
	twice := func(m *idempotency.Middleware, next http.Handler) http.Handler {
		r := chi.NewRouter()
		r.Use(m.Handler)
		r.With(m.Handler).Method(http.MethodPost, procedure, next)
		return r
	}
	for _, b := range behaviours {
		s := scenario{mount: twice, handler: plainly(b.handler), first: b.first, retry: b.first, runs: b.runs}
		t.Run(b.name, s.run)
	}
	t.Run("panic", scenario{mount: twice, handler: plainly(crash), first: broken, retry: broken, runs: 2}.run)
	t.Run("client leaves", scenario{
		mount: twice, handler: patient, leaves: true, first: broken, retry: "201", runs: 1,
	}.run)
}
