package mysqlstore_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/servertest"
)

// A first execution takes five round trips beside those of the handler, and a replay one, whatever the settings of
// the driver. The server counts them.
func TestTxRoundTrips(t *testing.T) {
	t.Parallel()
	for _, settings := range [][]string{nil, {"interpolateParams=true"}, {"clientFoundRows=true"}} {
		t.Run(fmt.Sprint(settings), func(t *testing.T) {
			t.Parallel()
			m := servertest.MariaDB(t)
			w := newWorldAt(t, m.DSN(), newOptions(), settings...)
			w.db.SetMaxOpenConns(2)
			counter := pool(t, m.DSN())
			counter.SetMaxOpenConns(1)
			completed(t, w.store, "warm")

			const times = 20
			trips := func(do func(key string)) int {
				before := commands(t, counter)
				for i := range times {
					do(fmt.Sprint(i))
				}
				return commands(t, counter) - before - 1 // which is that of the counter
			}
			require.Equal(t, 5*times, trips(func(key string) { completed(t, w.store, key) }))
			require.Equal(t, 1*times, trips(func(key string) { requireReplay(t, w.store, key) }))
			require.Equal(t, 5*times, trips(func(key string) {
				_, claim := begun(t, w.store, "running "+key)
				require.NoError(t, claim.Release(t.Context(), time.Hour))
			}))
			require.Equal(t, (5+1)*times, trips(func(key string) {
				h := w.handle(t, "effect "+key)
				h.exec(t, "INSERT INTO "+w.effects+" (name) VALUES ('an effect')")
				require.NoError(t, h.answer(http.StatusCreated))
			}))
			require.Equal(t, (6+1)*times, trips(func(key string) { // one to roll back
				h := w.handle(t, "refused "+key)
				h.exec(t, "INSERT INTO "+w.effects+" (name) VALUES ('an effect')")
				require.NoError(t, h.answer(http.StatusConflict))
			}))

			_, claim := begun(t, w.store, "held")
			require.Equal(t, 1*times, trips(func(string) {
				record, other, err := w.store.Begin(t.Context(), keyOf("held"), request)
				require.NoError(t, err)
				require.Nil(t, other)
				require.Equal(t, idempotency.Record{NoLease: true}, record)
			}))
			require.NoError(t, claim.Release(t.Context(), time.Hour))
		})
	}
}
