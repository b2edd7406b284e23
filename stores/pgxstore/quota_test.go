package pgxstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// boundedForms are the forms of the table.
var boundedForms = map[string]pgxstore.Options{
	"plain":       {},
	"partitioned": {PartitionDays: 1},
	"digests":     {DigestNames: true},
	"with schema": {Schema: "public"},
}

func TestUserRecords(t *testing.T) {
	t.Parallel()
	for name, opts := range boundedForms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, serverURL(t))
			open := func(t *testing.T, bound int) idempotency.Store {
				opts := opts
				if bound%2 == 1 {
					opts.MaxUserRecords = bound
					return pgxstore.New(pool, newTable(t, pool, opts))
				}
				opts = newTable(t, pool, opts) // without the option, which Migrate then adds
				opts.MaxUserRecords = bound
				require.NoError(t, pgxstore.Migrate(t.Context(), pool, opts))
				return pgxstore.New(pool, opts)
			}
			testservice.OpenBounded(open).TestUserRecords(t, idempotencytest.Run, idempotencytest.RunSteps)
		})
	}
}

// The claims of several processes never exceed the bound.
func TestConcurrentClaimsOfAUser(t *testing.T) {
	t.Parallel()
	for name, opts := range boundedForms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, serverURL(t))
			opts.MaxUserRecords = 7
			opts := newTable(t, pool, opts)
			stores := []idempotency.Store{pgxstore.New(pool, opts), pgxstore.New(newPool(t, serverURL(t)), opts)}
			testservice.RequireConcurrentBound(t, stores, 7, 40, 0)
		})
	}
}

// At repeatable read, a claim that has waited for its turn does not see the claims before it.
func TestConcurrentClaimsOfAUserAtRepeatableRead(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t), withRepeatableRead)
	store := pgxstore.New(pool, newTable(t, pool, pgxstore.Options{MaxUserRecords: 7}))
	testservice.RequireConcurrentBound(t, []idempotency.Store{store}, 7, 40, 39)
}

// A duplicate of a new key at the bound is not refused, although the first copy has used up the bound.
func TestDuplicatesAtTheBound(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	for i := range 20 {
		store := pgxstore.New(pool, newTable(t, pool, pgxstore.Options{MaxUserRecords: 1}))
		granted := make(chan bool)
		for range 4 {
			go func() {
				_, claim, err := store.Begin(t.Context(), keyOf(fmt.Sprint(i)), attempt)
				if err != nil {
					t.Error(err)
				}
				granted <- claim != nil
			}()
		}
		claims := 0
		for range 4 {
			if <-granted {
				claims++
			}
		}
		require.Equal(t, 1, claims)
	}
}

// Claims count by the index of the user, in both forms of the table.
func TestPlanOfUserRecords(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	for _, days := range []int{0, 1} {
		opts := newTable(t, pool, pgxstore.Options{PartitionDays: days, MaxUserRecords: 3})
		insertRecords(t, pool, opts, 5000, "now() + interval '1 hour'")
		execStatement(t, pool, "UPDATE "+tableName(opts)+" SET user_id = key")
		execStatement(t, pool, "ANALYZE "+tableName(opts))
		store := pgxstore.New(pool, opts)
		for i := range 3 {
			testservice.MustClaim(t, store, keyOf(fmt.Sprint("new ", i)), attempt)
		}
		require.Eventually(t, func() bool {
			pool.Reset() // a session reports its use of an index when it ends
			scans := queryValue[int](t, pool, `SELECT coalesce(sum(s.idx_scan), 0) FROM pg_stat_user_indexes s
				LEFT JOIN pg_inherits i ON i.inhrelid = s.indexrelid JOIN pg_class c ON c.oid IN (s.indexrelid, i.inhparent)
				WHERE c.relname = $1`, opts.Table+"_user")
			return scans >= 3
		}, 30*time.Second, 20*time.Millisecond)
	}
}

// A table without the function of the option is reported with its remedy, and the migration for other tools can be undone.
func TestUserRecordsWithoutMigration(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	opts := newTable(t, pool, pgxstore.Options{})
	opts.MaxUserRecords = 1
	store := pgxstore.New(pool, opts)
	_, _, err := store.Begin(t.Context(), keyOf("1"), attempt)
	require.ErrorContains(t, err, "or its function is missing: call Migrate")
	require.ErrorContains(t, store.Check(t.Context()), "_claim_max: call Migrate")

	migration := pgxstore.Migrations(opts)[0]
	for range 2 {
		execStatement(t, pool, migration.SQL)
	}
	require.Equal(t, onlyFsync, findUnsafeSettings(t, store))
	testservice.MustClaim(t, store, keyOf("1"), attempt)
	for range 2 {
		execStatement(t, pool, migration.Down)
	}
	require.Empty(t, queryColumn[string](t, pool, "SELECT relname::text FROM pg_class WHERE relname LIKE $1 "+
		"UNION ALL SELECT proname FROM pg_proc WHERE proname LIKE $1", opts.Table+"%"))

	_, err = idempotency.New(pgxstore.New(pool, pgxstore.Options{MaxUserRecords: -1, SpareDays: -1}),
		idempotency.SingleUser, idempotency.Options{})
	require.ErrorContains(t, err, "pgxstore: MaxUserRecords -1 is negative")
	require.ErrorContains(t, err, "SpareDays")
}

func BenchmarkUserRecords(b *testing.B) {
	pool := newPool(b, servertest.Postgres(b, "fsync=on").URL())
	testservice.CompareUserRecords(b, pgxstore.New(pool, newTable(b, pool, pgxstore.Options{})),
		pgxstore.New(pool, newTable(b, pool, pgxstore.Options{MaxUserRecords: 1000})))
}
