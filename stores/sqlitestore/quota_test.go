package sqlitestore_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

func openBounded(t *testing.T, bound int) idempotency.Store {
	return openStore(t, newPath(t), sqlitestore.Options{MaxUserRecords: bound})
}

func TestUserRecords(t *testing.T) {
	t.Parallel()
	testservice.OpenBounded(openBounded).TestUserRecords(t, idempotencytest.Run, idempotencytest.RunSteps)
}

// The claims of two stores on one file never exceed the bound.
func TestConcurrentClaimsOfAUser(t *testing.T) {
	t.Parallel()
	path, opts := newPath(t), sqlitestore.Options{MaxUserRecords: 7}
	stores := []idempotency.Store{openStore(t, path, opts), openStore(t, path, opts)}
	testservice.RequireConcurrentBound(t, stores, 7, 40, 0)
}

// A file that was made without the option gets the index when the option is set, and works again without the option.
func TestUserRecordsOfAnOldFile(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	completeKey(t, openStore(t, path, sqlitestore.Options{}), "1")
	bounded := openStore(t, path, sqlitestore.Options{MaxUserRecords: 1})
	_, claim, err := bounded.Begin(t.Context(), keyOf("2"), request)
	require.ErrorIs(t, err, idempotency.ErrUserQuota)
	require.Nil(t, claim)
	requireReplay(t, bounded, "1")
	completeKey(t, openStore(t, path, sqlitestore.Options{}), "2")
	require.NoError(t, bounded.Check(t.Context()))

	_, err = sqlitestore.Open(t.Context(), path, sqlitestore.Options{MaxUserRecords: -1, MaxBytes: 1})
	require.ErrorContains(t, err, "sqlitestore: MaxUserRecords -1 is negative")
	require.ErrorContains(t, err, "MaxBytes")
}

// The count reads the index alone, so that a refusal costs no more than the bound.
func TestPlanOfUserRecords(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	openStore(t, path, sqlitestore.Options{MaxUserRecords: 3})
	rows, err := openConn(t, path).QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+sqlitestore.UserFull, "user 42", 1, 3)
	require.NoError(t, err)
	defer rows.Close()
	var plan []string
	for rows.Next() {
		var id, parent, unused int
		var detail string
		require.NoError(t, rows.Scan(&id, &parent, &unused, &detail))
		plan = append(plan, detail)
	}
	require.NoError(t, rows.Err())
	require.Contains(t, plan,
		"SEARCH main.idempotency_records USING COVERING INDEX idempotency_records_user (user_id=? AND expires>?)")
}

func BenchmarkUserRecords(b *testing.B) {
	testservice.CompareUserRecords(b, openStore(b, newPath(b), sqlitestore.Options{}),
		openStore(b, newPath(b), sqlitestore.Options{MaxUserRecords: 1000}))
}
