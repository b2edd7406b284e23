package mysqlstore_test

import (
	"database/sql"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/servertest"
)

// A first execution takes three round trips, and a replay one, whatever the settings of the driver. The server counts
// them, as the commands that it was sent.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	for _, settings := range [][]string{nil, {"interpolateParams=true"}, {"clientFoundRows=true"}} {
		t.Run(fmt.Sprint(settings), func(t *testing.T) {
			t.Parallel()
			m := servertest.MariaDB(t)
			db := pool(t, m.DSN(), settings...)
			db.SetMaxOpenConns(1)
			store, _ := newStore(t, db)
			counter := pool(t, m.DSN())
			counter.SetMaxOpenConns(1)
			completed(t, store, "warm")
			requireReplay(t, store, "warm")

			const times = 20
			trips := func(do func(key string)) int {
				before := commands(t, counter)
				for i := range times {
					do(fmt.Sprint(i))
				}
				return commands(t, counter) - before - 1 // which is that of the counter
			}
			require.Equal(t, 3*times, trips(func(key string) { completed(t, store, key) }))
			require.Equal(t, 1*times, trips(func(key string) { requireReplay(t, store, key) }))
			require.Equal(t, 2*times, trips(func(key string) { begun(t, store, "in progress "+key) }))
			require.Equal(t, 1*times, trips(func(key string) {
				record, claim, err := store.Begin(t.Context(), keyOf("in progress "+key), request)
				require.NoError(t, err)
				require.Nil(t, claim)
				require.Positive(t, record.LeaseLeft)
			}))
		})
	}
}

// commands returns how many commands the server was sent: those that run a statement, and those that prepare one.
func commands(t testing.TB, db *sql.DB) int {
	t.Helper()
	return one[int](t, db, `SELECT SUM(VARIABLE_VALUE) FROM information_schema.GLOBAL_STATUS
		WHERE VARIABLE_NAME IN ('QUESTIONS', 'COM_STMT_PREPARE', 'COM_STMT_CLOSE')`)
}
