package mysqlstore_test

import (
	"database/sql"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/stores/mysqlstore"
)

// newBoundedStore returns a store whose table was made with or without the option.
func newBoundedStore(t testing.TB, db *sql.DB, bound int) (*mysqlstore.Store, mysqlstore.Options) {
	t.Helper()
	opts := newOptions()
	if bound%2 == 0 { // Migrate adds the index
		require.NoError(t, mysqlstore.Migrate(t.Context(), db, opts))
	}
	opts.MaxUserRecords = bound
	require.NoError(t, mysqlstore.Migrate(t.Context(), db, opts))
	return mysqlstore.New(db, opts), opts
}

func TestUserRecords(t *testing.T) {
	t.Parallel()
	db := openPool(t, sharedServer(t).DSN())
	open := func(t *testing.T, bound int) idempotency.Store {
		store, _ := newBoundedStore(t, db, bound)
		return store
	}
	testservice.OpenBounded(open).TestUserRecords(t, idempotencytest.Run, idempotencytest.RunSteps)
}

// Claims that run at the same time do not see each other. So of 40 claims, 39 may each add a record too many.
func TestConcurrentClaimsOfAUser(t *testing.T) {
	t.Parallel()
	db := openPool(t, sharedServer(t).DSN())
	store, opts := newBoundedStore(t, db, 7)
	stores := []idempotency.Store{store, mysqlstore.New(openPool(t, sharedServer(t).DSN()), opts)}
	testservice.RequireConcurrentBound(t, stores, 7, 40, 39)
}

// The transaction of a step locks its record, but no claim of the user waits for the transaction.
func TestUserRecordsBesideATransaction(t *testing.T) {
	t.Parallel()
	db := openPool(t, sharedServer(t).DSN())
	store, _ := newBoundedStore(t, db, 2)
	_, claim := claimKey(t, store, "1")
	var tx *sql.Tx
	_, err := claim.(idempotency.TxCheckpointer).CheckpointTx(t.Context(), &idempotency.TxStep{
		Name: "book", Var: &tx, Timeout: request.Lease, Run: func() ([]byte, error) {
			completeKey(t, store, "2")
			_, claim, err := store.Begin(t.Context(), keyOf("3"), request)
			require.ErrorIs(t, err, idempotency.ErrUserQuota)
			require.Nil(t, claim)
			return nil, nil
		},
	})
	require.NoError(t, err)
}

// The count reads a range of the index, so that neither other users nor expired records cost anything.
func TestPlanOfUserRecords(t *testing.T) {
	t.Parallel()
	db := openPool(t, sharedServer(t).DSN(), "interpolateParams=true")
	store, opts := newBoundedStore(t, db, 1000)
	for i := range 20 {
		completeKey(t, store, fmt.Sprint(i))
	}
	execStatement(t, db, "ANALYZE TABLE "+opts.Table)
	user := []byte(fmt.Sprintf("%x", "user 42"))
	rows, err := db.QueryContext(t.Context(), "EXPLAIN "+opts.Statements()["read_counted"], user, user, 1000, 1000, []byte("00"))
	require.NoError(t, err)
	defer rows.Close()
	columns, err := rows.Columns()
	require.NoError(t, err)
	var plans []string
	for rows.Next() {
		values := make([]sql.NullString, len(columns))
		targets, plan := make([]any, len(columns)), map[string]string{}
		for i := range values {
			targets[i] = &values[i]
		}
		require.NoError(t, rows.Scan(targets...))
		for i, name := range columns {
			plan[name] = values[i].String
		}
		plans = append(plans, plan["table"]+" "+plan["type"]+" "+plan["key"])
	}
	require.NoError(t, rows.Err())
	require.Contains(t, plans, opts.Table+" range users")
}

// Without the index, claims fail with the remedy, and Check reports the index.
func TestUserRecordsWithoutIndex(t *testing.T) {
	t.Parallel()
	db := openPool(t, sharedServer(t).DSN())
	_, table := newStore(t, db)
	store := mysqlstore.New(db, mysqlstore.Options{Table: table, MaxUserRecords: 1})
	_, _, err := store.Begin(t.Context(), keyOf("1"), request)
	require.ErrorContains(t, err, "the table has no index for MaxUserRecords: call Migrate")
	require.ErrorContains(t, store.Check(t.Context()), "the table has no index for MaxUserRecords: call Migrate")

	opts := mysqlstore.Options{Table: "?", MaxUserRecords: -1}
	_, err = idempotency.New(mysqlstore.New(db, opts), idempotency.SingleUser, idempotency.Options{})
	require.ErrorContains(t, err, "mysqlstore: MaxUserRecords -1 is negative")
	require.ErrorContains(t, err, "Table is")
}

func BenchmarkUserRecords(b *testing.B) {
	db := openPool(b, servertest.MariaDB(b).DSN())
	plain, _ := newStore(b, db)
	counted, _ := newBoundedStore(b, db, 1000)
	testservice.CompareUserRecords(b, plain, counted)
}
