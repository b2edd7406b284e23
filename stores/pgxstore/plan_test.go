package pgxstore_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// readGenericPlan returns the generic plan by which a session would read a record.
func readGenericPlan(t testing.TB, pool *pgxpool.Pool, opts pgxstore.Options) string {
	t.Helper()
	ctx := t.Context()
	conn, err := pool.Acquire(ctx)
	require.NoError(t, err)
	defer conn.Release()
	_, err = conn.Exec(ctx, "SET plan_cache_mode = force_generic_plan; PREPARE look(uuid) AS "+opts.Statement("inspect"),
		pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	rows, err := conn.Query(ctx, "EXPLAIN EXECUTE look('00000000-0000-0000-0000-000000000000')", pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	_, err = conn.Exec(ctx, "DEALLOCATE look; RESET plan_cache_mode", pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	return strings.Join(lines, "\n")
}

// listTables returns the tables with records: the table itself, or its partitions.
func listTables(t testing.TB, pool *pgxpool.Pool, opts pgxstore.Options) []string {
	t.Helper()
	return queryColumn[string](t, pool, `SELECT oid::regclass::text FROM pg_class LEFT JOIN pg_inherits ON inhrelid = oid
		WHERE relkind = 'r' AND (oid = $1::text::regclass OR inhparent = $1::text::regclass) ORDER BY 1`, tableName(opts))
}

// Autovacuum skips a table that is so small that a sequential scan looks cheap. The test compares the table with one
// that lacks the settings.
func TestPlansOfAYoungTable(t *testing.T) {
	t.Parallel()
	url := servertest.Postgres(t, "autovacuum_naptime=1s").URL()
	for name, days := range map[string]int{"plain": 0, "partitions": 1} {
		t.Run(name, func(t *testing.T) {
			pool := newPool(t, url)
			set := newTable(t, pool, pgxstore.Options{PartitionDays: days})
			unset := newTable(t, pool, pgxstore.Options{PartitionDays: days})
			for _, table := range listTables(t, pool, unset) {
				execStatement(t, pool, "ALTER TABLE "+table+" RESET (autovacuum_vacuum_threshold, autovacuum_analyze_threshold)")
			}
			const operations = 40 // autovacuum needs 50 changes by default
			for range operations {
				completeNewKey(t, pgxstore.New(pool, set))
				completeNewKey(t, pgxstore.New(pool, unset))
			}
			awaitAutovacuum(t, pool, 2*operations, append(listTables(t, pool, set), listTables(t, pool, unset)...))
			require.Eventually(t, func() bool {
				return strings.Contains(readGenericPlan(t, pool, unset), "Seq Scan")
			}, 30*time.Second, 20*time.Millisecond)
			require.NotContains(t, readGenericPlan(t, pool, set), "Seq Scan")
		})
	}
}

// awaitAutovacuum waits until autovacuum has processed tables in which records were inserted and then changed.
func awaitAutovacuum(t testing.TB, pool *pgxpool.Pool, records int, tables []string) {
	t.Helper()
	await := func(sql string, args ...any) {
		pool.Reset() // a session reports its changes when it ends
		require.Eventually(t, func() bool { return queryValue[bool](t, pool, sql, args...) }, 30*time.Second, 20*time.Millisecond)
	}
	await(`SELECT sum(n_tup_ins) = $1 AND sum(n_tup_upd) = $1 FROM pg_stat_user_tables
		WHERE relid = ANY ($2::text[]::regclass[])`, records, tables)
	later := fmt.Sprintf("later_%d", len(tables))
	execStatement(t, pool, "CREATE TABLE "+later+" AS SELECT generate_series(1, 100)")
	await("SELECT autoanalyze_count > 0 FROM pg_stat_user_tables WHERE relname = $1", later)
}

// After a night without requests the table is empty. A vacuum then sees a long table, not a small one.
func TestPlansOfAnEmptiedTable(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	opts := newTable(t, pool, pgxstore.Options{})
	insertRecords(t, pool, opts, 3000, "now() - interval '2 minutes'")
	require.NoError(t, pgxstore.NewTable(pool, opts).Maintain(t.Context()))
	require.Zero(t, queryValue[int](t, pool, "SELECT count(*) FROM "+tableName(opts)))
	execStatement(t, pool, "VACUUM ANALYZE "+tableName(opts))
	require.NotContains(t, readGenericPlan(t, pool, opts), "Seq Scan")
}

// A list of a user uses an index that an operator has made, although the user may be stored in two forms.
func TestPlanOfAListByUser(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	opts := newTable(t, pool, pgxstore.Options{})
	insertRecords(t, pool, opts, 5000, "now() + interval '1 hour'")
	// If the index were made after the update, PostgreSQL would not use it before the end of all older transactions, those of other
	// tests included.
	execStatement(t, pool, "CREATE INDEX of_the_operator ON "+tableName(opts)+" (user_id, created_at)")
	execStatement(t, pool, "UPDATE "+tableName(opts)+" SET user_id = key")
	execStatement(t, pool, "ANALYZE "+tableName(opts))
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release() // also after a failure, because the pool waits for it
	for _, statement := range []string{"list", "totals", "each"} {
		_, err = conn.Exec(t.Context(), "PREPARE list AS "+opts.Statement(statement), pgx.QueryExecModeSimpleProtocol)
		require.NoError(t, err)
		page := ""
		if statement == "list" {
			page = ", 'newest', 100, NULL, NULL, NULL"
		}
		rows, err := conn.Query(t.Context(), "EXPLAIN EXECUTE list(ARRAY[]::text[], '42', NULL, NULL, 'digest', NULL, NULL, NULL, NULL"+
			page+")", pgx.QueryExecModeSimpleProtocol)
		require.NoError(t, err)
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		require.Contains(t, strings.Join(plan, "\n"), "of_the_operator", statement)
		_, err = conn.Exec(t.Context(), "DEALLOCATE list", pgx.QueryExecModeSimpleProtocol)
		require.NoError(t, err)
	}
}

func TestStorageSettings(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	for days, tables := range map[int]int{0: 1, 3: 3 + 2 + 1} {
		opts := newTable(t, pool, pgxstore.Options{PartitionDays: days, SpareDays: 2})
		settings := queryColumn[string](t, pool, `SELECT array_to_string(reloptions, ', ') FROM pg_class
			WHERE oid = ANY ($1::text[]::regclass[])`, listTables(t, pool, opts))
		require.Len(t, settings, tables)
		require.Equal(t, []string{"fillfactor=70, autovacuum_vacuum_threshold=2000, autovacuum_analyze_threshold=2000, " +
			"vacuum_truncate=false"}, slices.Compact(settings))
	}
}
