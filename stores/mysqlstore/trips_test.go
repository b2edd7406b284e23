package mysqlstore_test

import (
	"database/sql"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/mysqlstore"
)

// A first execution takes three round trips and a replay takes one, with all settings of the driver. The test counts
// the commands that the server has received.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	for _, settings := range [][]string{nil, {"interpolateParams=true"}, {"clientFoundRows=true"}} {
		t.Run(fmt.Sprint(settings), func(t *testing.T) {
			t.Parallel()
			m := servertest.MariaDB(t)
			db := openPool(t, m.DSN(), settings...)
			db.SetMaxOpenConns(1)
			counter := openPool(t, m.DSN())
			counter.SetMaxOpenConns(1)
			plain, _ := newStore(t, db)
			counted, _ := newBoundedStore(t, db, 1000)
			requireRoundTrips(t, plain, counter)
			requireRoundTrips(t, counted, counter)
		})
	}
}

// requireRoundTrips counts the round trips of a store by the connection counter to the server.
func requireRoundTrips(t *testing.T, store *mysqlstore.Store, counter *sql.DB) {
	t.Helper()
	completeKey(t, store, "warm")
	requireReplay(t, store, "warm")

	const times = 20
	trips := func(do func(key string)) int {
		before := countCommands(t, counter)
		for i := range times {
			do(fmt.Sprint(i))
		}
		return countCommands(t, counter) - before - 1 // less the query of the counter
	}
	require.Equal(t, 3*times, trips(func(key string) { completeKey(t, store, key) }))
	require.Equal(t, 1*times, trips(func(key string) { requireReplay(t, store, key) }))
	require.Equal(t, 2*times, trips(func(key string) { claimKey(t, store, "in progress "+key) }))
	require.Equal(t, 1*times, trips(func(key string) {
		record, claim, err := store.Begin(t.Context(), keyOf("in progress "+key), request)
		require.NoError(t, err)
		require.Nil(t, claim)
		require.Positive(t, record.LeaseLeft)
	}))
}

// countCommands returns the number of commands that the server has received to run or to prepare a statement.
func countCommands(t testing.TB, db *sql.DB) int {
	t.Helper()
	return queryValue[int](t, db, `SELECT SUM(VARIABLE_VALUE) FROM information_schema.GLOBAL_STATUS
		WHERE VARIABLE_NAME IN ('QUESTIONS', 'COM_STMT_PREPARE', 'COM_STMT_CLOSE')`)
}
