package steps_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/guarantees/effort"
	"github.com/idempotency-go/idempotency/step"
	"github.com/idempotency-go/idempotency/stores/mysqlstore"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// openSmallStore has a function for each kind of store, which opens a store whose pool has four connections.
var openSmallStore = map[string]func(t *testing.T, place string) idempotency.Store{
	"postgres": func(t *testing.T, place string) idempotency.Store {
		config, err := pgxpool.ParseConfig(place)
		require.NoError(t, err)
		config.MaxConns = 4
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		return pgxstore.New(pool, pgxstore.Options{})
	},
	"mysql": func(t *testing.T, place string) idempotency.Store {
		db, err := sql.Open("mysql", place)
		require.NoError(t, err)
		db.SetMaxOpenConns(4)
		t.Cleanup(func() { _ = db.Close() })
		return mysqlstore.New(db, mysqlstore.Options{})
	},
}

// A handler that waits for its provider holds no connection. With a pool of four connections, 24 concurrent requests wait for a
// provider that takes two seconds, and all requests have their rows and answers. Meanwhile, the middleware answers replays.
func TestHandlersWaitWithoutConnections(t *testing.T) {
	t.Parallel()
	const keys, providerTime = 24, 2 * time.Second
	for kind, open := range openSmallStore {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			place := preparePlace[kind](t)
			database, err := openDatabases[kind](place)
			require.NoError(t, err)
			defer database.close()
			require.NoError(t, database.createTable(t.Context()))
			var waiting atomic.Int64
			provided := make(chan struct{})
			m, err := idempotency.New(open(t, place), idempotency.SingleUser, idempotency.Options{
				Logger: slog.New(slog.DiscardHandler),
			})
			require.NoError(t, err)
			h := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				key := r.Header.Get("Idempotency-Key")
				_, err := step.Do(r.Context(), "charge", func(context.Context) (string, error) {
					if key != "before" {
						waiting.Add(1)
						<-provided
					}
					return "receipt", nil
				})
				if err == nil {
					_, err = database.runStep(r.Context(), "book", func(write func(row string) error) (string, error) {
						return key, write(key)
					})
				}
				if assert.NoError(t, err) {
					w.WriteHeader(http.StatusCreated)
				}
			}))
			sendRequest := func(key string) (w *httptest.ResponseRecorder, took time.Duration) {
				r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/payments", nil)
				r.Header.Set("Idempotency-Key", key)
				w = httptest.NewRecorder()
				began := time.Now()
				h.ServeHTTP(w, r)
				return w, time.Since(began)
			}
			sendRequest("before")

			began := time.Now()
			var requests sync.WaitGroup
			var mu sync.Mutex
			var created int
			var slowest time.Duration
			for i := range keys {
				requests.Go(func() {
					w, took := sendRequest(fmt.Sprint("key-", i))
					mu.Lock()
					defer mu.Unlock()
					slowest = max(slowest, took)
					if w.Code == http.StatusCreated {
						created++
					}
				})
			}
			allWait := func() bool { return waiting.Load() == keys }
			require.Eventually(t, allWait, time.Minute, time.Millisecond, "all wait for the provider at the same time")
			var slowestReplay time.Duration
			for range keys {
				w, took := sendRequest("before")
				require.Equal(t, "true", w.Header().Get("Idempotent-Replayed"))
				slowestReplay = max(slowestReplay, took)
			}
			time.Sleep(time.Until(began.Add(providerTime)))
			close(provided)
			requests.Wait()
			require.Equal(t, keys, created)
			for i := range keys {
				n, err := database.countRows(t.Context(), fmt.Sprint("key-", i))
				require.NoError(t, err)
				require.Equal(t, 1, n)
			}
			effort.Count(t, "keys beside slow providers", keys)
			effort.Count(t, "replays beside slow providers", keys)
			t.Logf("pool of 4, provider %v: %d x 201, the slowest after %v; the slowest replay meanwhile took %v",
				providerTime, created, slowest.Round(time.Millisecond), slowestReplay.Round(10*time.Microsecond))
		})
	}
}
