package pgxstore_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/killtest"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// No acknowledged change is lost when the database crashes under load. The rows of a step in a transaction are
// written once. Other rows are written twice only if the reply of the database may have been lost. A provider
// charges once for each key.
func TestDatabaseCrashes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ hasStep, bouncer bool }{
		"no steps": {}, "step": {hasStep: true}, "PgBouncer before a step": {hasStep: true, bouncer: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := servertest.Postgres(t)
			pool, crashes := newPool(t, db.URL()), interface{ Restart() error }(db)
			opts := newTable(t, pool, pgxstore.Options{})
			if test.bouncer {
				bouncer := servertest.PgBouncer(t, db)
				pool, crashes = newPool(t, bouncer.URL(), withoutPreparing), bouncer
			}
			l, provider := newLedger(t, pool, opts), killtest.NewProvider(t)
			var mu sync.Mutex
			failed := make(map[string]int) // by key, how often the outcome of the handler was unknown
			// An answer is sent even if its record could not be written, so the timeout must leave enough time for
			// the write.
			settings := idempotency.Options{StoreTimeout: 30 * time.Second}
			h := newMiddleware(t, pgxstore.New(pool, opts), settings, func(w http.ResponseWriter, r *http.Request) {
				op, _ := idempotency.FromContext(r.Context())
				err := provider.Charge(r.Context())
				body := uuid.NewString()
				switch {
				case err != nil:
				case test.hasStep:
					body, err = pgxstore.DoTx(r.Context(), "book", func(tx pgx.Tx) (string, error) {
						_, err := tx.Exec(r.Context(), l.insertStatement(), op.Key.ID)
						return body, err
					})
				default:
					_, err = pool.Exec(r.Context(), l.insertStatement(), op.Key.ID)
				}
				if err != nil {
					mu.Lock()
					failed[op.Key.ID]++
					mu.Unlock()
					http.Error(w, err.Error(), http.StatusServiceUnavailable)
					return
				}
				w.WriteHeader(http.StatusCreated)
				fmt.Fprint(w, body)
			})
			acknowledged := crashServer(t, crashes, h, 4)
			require.NoError(t, provider.Explain(slices.Collect(maps.Keys(acknowledged))...))
			t.Logf("4 crashes, %d operations acknowledged; %s", len(acknowledged), provider)
			for key, body := range acknowledged {
				require.Equal(t, body, post(h, key).Body.String())
				effects := l.countEffects(t, keyOf(key))
				if test.hasStep {
					require.Equal(t, 1, effects)
				} else {
					require.GreaterOrEqual(t, effects, 1)
					require.LessOrEqual(t, effects, 1+failed[key])
				}
			}
		})
	}
}

// crashServer crashes a server a number of times, while clients send each request until it succeeds. crashServer
// returns the answers of the clients by key.
func crashServer(t *testing.T, server interface{ Restart() error }, h http.Handler, times int) (acknowledged map[string]string) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var mu sync.Mutex
	acknowledged = make(map[string]string)
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for key := uuid.NewString(); ctx.Err() == nil; {
				w := post(h, key)
				if w.Code == http.StatusCreated {
					mu.Lock()
					acknowledged[key] = w.Body.String()
					mu.Unlock()
					key = uuid.NewString()
				}
			}
		})
	}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(acknowledged)
	}
	for range times {
		before := count()
		require.Eventually(t, func() bool { return count() > before+50 }, 30*time.Second, time.Millisecond)
		require.NoError(t, server.Restart())
	}
	stop()
	clients.Wait()
	return acknowledged
}
