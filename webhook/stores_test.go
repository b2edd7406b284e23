package webhook_test

import (
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/stores/cache"
	"github.com/idempotency-go/idempotency/webhook"
)

// stores are the kinds of stores for the records of a Receiver. Each call makes the store of a further process over the
// same memory.
var stores = map[string]func(*testing.T, idempotency.Store) idempotency.Store{
	"alone": func(_ *testing.T, inner idempotency.Store) idempotency.Store { return inner },
	"cached": func(_ *testing.T, inner idempotency.Store) idempotency.Store {
		return cache.New(inner, cache.Options{})
	},
	"sealed": func(t *testing.T, inner idempotency.Store) idempotency.Store {
		return testservice.MustSeal(t, inner, testservice.Sealing("key"))
	},
	"cached in front of sealed": func(t *testing.T, inner idempotency.Store) idempotency.Store {
		return cache.New(testservice.MustSeal(t, inner, testservice.Sealing("key")), cache.Options{})
	},
	"sealed in front of cached": func(t *testing.T, inner idempotency.Store) idempotency.Store {
		return testservice.MustSeal(t, cache.New(inner, cache.Options{}), testservice.Sealing("key"))
	},
}

// A repeated delivery that has succeeded is answered with success, whatever the store has kept of the answer.
func TestSuccessIsToldFromEveryStore(t *testing.T) {
	t.Parallel()
	memory := func(opts idempotency.MemoryOptions) func(*testing.T) idempotency.Store {
		return func(*testing.T) idempotency.Store { return idempotency.NewMemoryStore(opts) }
	}
	redis := func(t *testing.T) idempotency.Store {
		_, client := testservice.NewMiniredis(t)
		return idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	}
	answer := func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(w, strings.Repeat("x", 10_000))
	}
	tombstone := func(w http.ResponseWriter, r *http.Request) {
		idempotency.Decide(r.Context(), idempotency.Tombstone)
		answer(w, r)
	}
	for situation, test := range map[string]struct {
		inner   func(*testing.T) idempotency.Store
		handler http.HandlerFunc
		opts    idempotency.Options
	}{
		"kept in memory":         {inner: memory(idempotency.MemoryOptions{}), handler: answer},
		"kept in Redis":          {inner: redis, handler: answer},
		"too large":              {inner: memory(idempotency.MemoryOptions{}), handler: answer, opts: idempotency.Options{MaxResponse: 100}},
		"too large, Redis":       {inner: redis, handler: answer, opts: idempotency.Options{MaxResponse: 100}},
		"not to be kept":         {inner: memory(idempotency.MemoryOptions{}), handler: tombstone},
		"not to be kept, Redis":  {inner: redis, handler: tombstone},
		"no room in the store":   {inner: memory(idempotency.MemoryOptions{MaxBytes: 5000}), handler: answer},
		"no room for the sender": {inner: memory(idempotency.MemoryOptions{MaxUserBytes: 5000}), handler: answer},
	} {
		for name, wrap := range stores {
			t.Run(situation+"/"+name, func(t *testing.T) {
				t.Parallel()
				inner := test.inner(t)
				var runs atomic.Int64
				process := func() *endpoint {
					opts := test.opts
					opts.Logger = slog.New(slog.DiscardHandler)
					hooks, err := webhook.New(wrap(t, inner), webhook.GitHub("secret"), opts)
					require.NoError(t, err)
					server := testservice.Listen(t, hooks.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						runs.Add(1)
						test.handler(w, r)
					})), false)
					return &endpoint{name: "GitHub", secret: "secret", url: server.URL}
				}
				first, second := process(), process()
				require.Equal(t, http.StatusAccepted, first.deliver(t, "1", "").Status)
				for _, e := range []*endpoint{first, second, first} {
					again := e.deliver(t, "1", "")
					require.True(t, again.Status/100 == 2, "%d: %s", again.Status, again.Body)
				}
				require.EqualValues(t, 1, runs.Load())
			})
		}
	}
}
