package pgxstore_test

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// Check reports what commits wait for, and ignores settings that make no difference.
func TestCheckOfCommits(t *testing.T) {
	t.Parallel()
	const names, commit = "synchronous_standby_names", "synchronous_commit"
	db := servertest.Postgres(t, "fsync=on")
	direct := newPool(t, db.URL())
	opts := newTable(t, direct, pgxstore.Options{})
	check := func(standbys, setting string, found ...string) {
		t.Helper()
		execStatement(t, direct, "ALTER SYSTEM SET "+names+" = '"+standbys+"'")
		execStatement(t, direct, "SELECT pg_reload_conf()")
		awaitCondition(t, direct, "SELECT current_setting('"+names+"') = '"+standbys+"'")
		name, value, _ := strings.Cut(setting, "=")
		pool := newPool(t, db.URL(), func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams[name] = value })
		require.Equal(t, found, findUnsafeSettings(t, pgxstore.New(pool, opts)), "standbys %q, %s", standbys, setting)
	}
	check("", "synchronous_commit=on")
	check("", "synchronous_commit=local") // has the same effect
	check("", "synchronous_commit=off", commit)

	servertest.Replica(t, db.Addr())
	awaitCondition(t, direct, "SELECT count(*) = 1 FROM pg_stat_replication WHERE state = 'streaming'")
	check("", "synchronous_commit=on", names)
	execStatement(t, direct, "GRANT ALL ON "+tableName(opts)+" TO pg_read_all_data")
	check("", "role=pg_read_all_data", names) // this role sees only that a standby exists
	check("*", "synchronous_commit=on")
	check("*", "synchronous_commit=remote_apply")
	check("*", "synchronous_commit=remote_write", commit)
	check("*", "synchronous_commit=local", commit)
	check("*", "synchronous_commit=off", commit)
	check("*", "idle_in_transaction_session_timeout=0") // DoTx sets it for each of its transactions
}

// awaitCondition waits until a query returns true.
func awaitCondition(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	require.Eventually(t, func() bool { return queryValue[bool](t, pool, sql) }, 10*time.Second, 10*time.Millisecond)
}

// A subscriber of logical replication does not count as a standby.
func TestCheckOfSubscribers(t *testing.T) {
	t.Parallel()
	r := newReplicatedTable(t)
	r.completeKey("first", time.Hour)
	r.requireSame()
	awaitCondition(t, r.publisher, "SELECT bool_and(state = 'streaming') FROM pg_stat_replication")
	require.Equal(t, onlyFsync, findUnsafeSettings(t, pgxstore.New(r.publisher, r.opts)))
}

// A pooler in statement mode supports no transactions.
func TestCheckOfPoolModes(t *testing.T) {
	t.Parallel()
	direct := newPool(t, serverURL(t))
	opts := newTable(t, direct, pgxstore.Options{})
	for mode, found := range map[string][]string{
		"session": onlyFsync, "transaction": onlyFsync, "statement": {"fsync", "BEGIN"},
	} {
		pool := newPool(t, startPgBouncer(t, "pool_mode="+mode), withoutPreparing)
		require.Equal(t, found, findUnsafeSettings(t, pgxstore.New(pool, opts)), mode)
	}
}
