package pgxstore_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/stores/internal/enginetest"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// Begin, Migrate and Check refuse a server unless the documentation of its engine and release has all that the
// statements need.
func TestEngines(t *testing.T) {
	t.Parallel()
	const needs = "pgxstore: the server cannot be used: "
	for name, test := range map[string]struct {
		says                  map[string]string
		host                  string
		days                  int
		storeError, stepError string // parts of the errors of the store and of a step in a transaction; empty: no error
	}{
		"CockroachDB": {says: map[string]string{"server_version": "13.0.0", "crdb_version": "CockroachDB CCL v25.4.1"},
			storeError: "CockroachDB: New needs functions in PL/pgSQL with GET DIAGNOSTICS, which the engine lacks: https://"},
		"Spanner": {says: map[string]string{"server_version": "14.1", "session_authorization": "PGAdapter"},
			storeError: "Spanner: New needs functions in PL/pgSQL"},
		"Aurora DSQL": {host: "ab12.dsql.us-east-1.on.aws",
			storeError: "Aurora DSQL: New needs CREATE INDEX in a transaction"},
		"Aurora DSQL by PrivateLink": {host: "ab12.dsql-x1.eu-west-3.on.aws", storeError: "Aurora DSQL"},
		"Aurora":                     {host: "shop.cluster-ab12.us-east-1.rds.amazonaws.com"},
		"YugabyteDB": {says: withYugabyteVersion("2025.2.3.0-b149"),
			stepError: "YugabyteDB: DoTx with New needs transaction outcomes by pg_xact_status, which the engine lacks: https://"},
		"YugabyteDB that is too old": {says: withYugabyteVersion("2.20.1.0-b0"),
			storeError: `YugabyteDB: version "2.20.1.0" is unknown, not one of 2025.1, 2025.2`},
		"YugabyteDB that is too new": {says: withYugabyteVersion("2025.21.0.0-b0"), storeError: `"2025.21.0.0" is unknown`},
		"YugabyteDB of no version":   {says: withYugabyteVersion(""), storeError: `"" is unknown`},
		"YugabyteDB with partitions": {says: withYugabyteVersion("2025.1.0.0-b1"), days: 3,
			storeError: "YugabyteDB: New with PartitionDays needs partitions"},
		"PostgreSQL 13": {says: withVersion("13.22 (Debian 13.22-1)"),
			storeError: "PostgreSQL 13.22 (Debian 13.22-1) is older than 14"},
		"PostgreSQL 9":       {says: withVersion("9.6.1"), storeError: "PostgreSQL 9.6.1 is older than 14"},
		"PostgreSQL 14":      {says: withVersion("14.0")},
		"PostgreSQL 19":      {says: withVersion("19.1 (Ubuntu 19.1-1.pgdg24.04+1)")},
		"PostgreSQL to come": {says: withVersion("20devel")},
		"no version":         {says: withVersion("what a surprise")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			direct := newPool(t, serverURL(t))
			opts := newTable(t, direct, pgxstore.Options{PartitionDays: test.days})
			pool := newPool(t, (&interceptor{parameterStatus: test.says}).interceptedURL(t), withHostName(test.host))
			for _, schema := range []string{"", "public"} {
				opts.Schema = schema
				store := pgxstore.New(pool, opts)
				record, claim, err := store.Begin(t.Context(), keyOf(name+schema), attempt)
				require.Equal(t, test.storeError == "", claim != nil)
				if test.storeError == "" {
					require.NoError(t, err)
					var tx pgx.Tx
					_, err := claim.(idempotency.TxCheckpointer).CheckpointTx(t.Context(), &idempotency.TxStep{
						Name: "book", Var: &tx, Timeout: time.Minute, Run: func() ([]byte, error) { return nil, nil },
					})
					if test.stepError == "" {
						require.NoError(t, err)
					} else {
						require.ErrorIs(t, err, pgxstore.ErrEngine)
						require.ErrorContains(t, err, test.stepError)
					}
					require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Minute}))
				} else {
					require.ErrorIs(t, err, pgxstore.ErrEngine)
					require.ErrorIs(t, err, errors.ErrUnsupported) // so FailOpen runs nothing
					require.ErrorContains(t, err, needs)
					require.ErrorContains(t, err, test.storeError)
					require.Zero(t, record)
				}
				for who, err := range map[string]error{
					"Check": store.Check(t.Context()), "Migrate": pgxstore.Migrate(t.Context(), pool, opts),
					"Maintain": store.Maintain(t.Context()),
				} {
					require.Equal(t, test.storeError != "", errors.Is(err, pgxstore.ErrEngine), "%s: %v", who, err)
				}
			}
		})
	}
}

func withVersion(says string) map[string]string { return map[string]string{"server_version": says} }

func withYugabyteVersion(says string) map[string]string { return withVersion("15.12-YB-" + says) }

// withHostName makes a pool connect to its server under the name host, unless host is empty.
func withHostName(host string) func(*pgxpool.Config) {
	return func(c *pgxpool.Config) {
		if host == "" {
			return
		}
		addr := c.ConnConfig.Host
		c.ConnConfig.Host = host
		c.ConnConfig.LookupFunc = func(context.Context, string) ([]string, error) { return []string{addr}, nil }
	}
}

// Check reports engines that do not identify themselves, or were never tested, only read about. A new version of
// PostgreSQL is neither.
func TestCheckOfEngines(t *testing.T) {
	t.Parallel()
	const built = " on x86_64-pc-linux-gnu, compiled by gcc (Debian 12.2.0-14) 12.2.0, 64-bit"
	for says, found := range map[string][]string{
		"PostgreSQL 19.1" + built: onlyFsync,
		"PostgreSQL 15.4 (EnterpriseDB Advanced Server 15.4.1)" + built:    onlyFsync,
		"PostgreSQL 20devel on x86_64-linux, compiled by clang-19, 64-bit": onlyFsync,
		"PostgreSQL 15 (FooDB)": {"version()", "fsync"},
		"FooDB 3.1":             {"version()", "fsync"},
		"PostgreSQL 16":         {"version()", "fsync"},
	} {
		direct := newPool(t, serverURL(t))
		opts := newTable(t, direct, pgxstore.Options{})
		edit := func(s string) string { return strings.ReplaceAll(s, "version()", "'"+says+"'") }
		store := pgxstore.New(newPool(t, (&interceptor{editStatement: edit}).interceptedURL(t)), opts)
		require.Equal(t, found, findUnsafeSettings(t, store), says)
		completeNewKey(t, store) // the store is not refused
	}
	pool := newPool(t, (&interceptor{parameterStatus: withYugabyteVersion("2025.1.4.0-b103")}).interceptedURL(t))
	require.Equal(t, []string{"version()", "fsync"}, findUnsafeSettings(t,
		pgxstore.New(pool, newTable(t, pool, pgxstore.Options{}))))
}

// The first call of a store reads the engine in the round trip that reads the schema. Later calls need no round trip
// for it.
func TestEnginesTakeNoRoundTrip(t *testing.T) {
	t.Parallel()
	pool, proxy := newProxiedPool(t, limitToOne, withoutPreparing)
	opts := newTable(t, newPool(t, serverURL(t)), pgxstore.Options{Schema: "public"})
	require.NoError(t, pool.Ping(t.Context()))
	before := proxy.Flights()
	completeNewKey(t, pgxstore.New(pool, opts))
	require.Equal(t, 2, proxy.Flights()-before)
}

// If the engine has no row locations (ctid), Maintain finds rows by their keys, with the same result.
func TestMaintainWithoutPlaces(t *testing.T) {
	t.Parallel()
	var sent statementLog
	pool := newPool(t, (&interceptor{parameterStatus: withYugabyteVersion("2025.1.0.0-b1"),
		editStatement: sent.addStatement}).interceptedURL(t))
	opts := newTable(t, pool, pgxstore.Options{})
	insertRecords(t, pool, opts, 2_500, "now() - interval '2 minutes'")
	insertRecords(t, pool, opts, 7, "now() + interval '1 hour'")
	locker, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = locker.Rollback(context.Background()) }()
	_, err = locker.Exec(t.Context(), "SELECT FROM "+tableName(opts)+" WHERE expires_at < now() LIMIT 3 FOR UPDATE")
	require.NoError(t, err)
	store := pgxstore.New(pool, opts)
	require.NoError(t, store.Maintain(t.Context()))
	require.Equal(t, 7+3, queryValue[int](t, pool, "SELECT count(*) FROM "+tableName(opts)))
	require.NoError(t, locker.Rollback(t.Context()))
	require.NoError(t, store.Maintain(t.Context()))
	require.Equal(t, 7, queryValue[int](t, pool, "SELECT count(*) FROM "+tableName(opts)))
	require.NotContains(t, sent.joinStatements(), "ctid")
	require.Contains(t, sent.joinStatements(), "SKIP LOCKED")
}

// statementLog records the statements that were sent.
type statementLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *statementLog) addStatement(statement string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text.WriteString(statement + "\n")
	return statement
}

func (s *statementLog) joinStatements() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// The contract holds on a server that refuses each statement outside of the declared subset (the table of features),
// and answers one in eight statements with a serialization failure.
func TestStoreConformanceInTheSubset(t *testing.T) {
	t.Parallel()
	var failures atomic.Int64
	refuse := refuseOutside(pgxstore.ByStore)
	w := &interceptor{parameterStatus: withYugabyteVersion("2025.2.0.0-b1"),
		refuseStatements: func(statements []string, idle bool) string {
			code := refuse(statements, idle)
			if code == "" && idle && rand.N(8) == 0 {
				failures.Add(1)
				return "40001"
			}
			return code
		}}
	store := pgxstore.New(newPool(t, w.interceptedURL(t)), newTable(t, newPool(t, serverURL(t)), pgxstore.Options{}))
	idempotencytest.Run(t, func(*testing.T) idempotency.Store { return store })
	idempotencytest.RunSteps(t, func(*testing.T) idempotency.Store { return store })
	require.Greater(t, failures.Load(), int64(50))
}

// If steps in transactions are impossible, the subset of a Store suffices for all other calls.
func TestTheSubsetIsSmall(t *testing.T) {
	t.Parallel()
	opts := newTable(t, newPool(t, serverURL(t)), pgxstore.Options{})
	pool := newPool(t, (&interceptor{refuseStatements: refuseOutside(pgxstore.ByStore)}).interceptedURL(t))
	completeNewKey(t, pgxstore.New(pool, opts))
	_, claim := claimNewKey(t, pgxstore.New(pool, opts))
	var tx pgx.Tx
	_, err := claim.(idempotency.TxCheckpointer).CheckpointTx(t.Context(), &idempotency.TxStep{
		Name: "book", Var: &tx, Timeout: time.Minute, Run: func() ([]byte, error) { return nil, nil },
	})
	require.ErrorContains(t, err, "SQLSTATE 0A000")
}

func refuseOutside(uses ...string) func([]string, bool) string {
	outside := isOutside(uses...)
	return func(statements []string, _ bool) string {
		if slices.ContainsFunc(statements, outside) {
			return "0A000"
		}
		return ""
	}
}

// isOutside returns a function that reports whether a statement is outside of the subset that the table of features
// declares for uses.
func isOutside(uses ...string) func(statement string) bool {
	return enginetest.NewWordCheck(pgxstore.Features, plainSQL, wordlessParts, uses...)
}

// Each statement uses plain SQL, and the features that the table declares for its use.
func TestStatementsKeepToTheSubset(t *testing.T) {
	t.Parallel()
	uses := map[string][]string{
		"find_expired": {pgxstore.ByStore, pgxstore.ByExpiry}, "delete_expired": {pgxstore.ByStore, pgxstore.ByExpiry},
	}
	for _, name := range []string{"enter_step", "keep_step", "settle_step", "place_step"} {
		uses[name] = []string{pgxstore.ByStore, pgxstore.BySteps}
	}
	statements := pgxstore.Options{}.Statements()
	statements["migration"] = pgxstore.Migrations(pgxstore.Options{})[0].SQL
	statements["migration for users"] = pgxstore.Migrations(pgxstore.Options{MaxUserRecords: 1})[0].SQL
	uses["migration for users"] = []string{pgxstore.ByStore, pgxstore.ByQuota}
	for name, statement := range statements {
		use := uses[name]
		if use == nil {
			use = []string{pgxstore.ByStore}
		}
		require.False(t, isOutside(use...)(statement), "%s: %s", name, statement)
	}
	for _, word := range []string{"xmin", "pg_advisory_lock", "ctid", "listen", "tableoid"} {
		require.True(t, isOutside(pgxstore.ByStore)("SELECT "+word), word)
	}
}

// The README has the row of each engine in the table.
func TestReadmeNamesEngines(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	for _, row := range pgxstore.EngineRows() {
		require.True(t, strings.Contains(string(readme), row), "%s", row)
	}
}

// wordlessParts matches the parts of a statement without SQL words: comments, strings, quoted names, parameters, and
// dollar quotes.
var wordlessParts = regexp.MustCompile(`(?s)--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|"[^"]*"|\$\w+\$?`)

// plainSQL has the words of SQL, types, functions and catalogs that every engine in the table supports.
const plainSQL = `again all and any array array_agg array_append as asc attempt autovacuum_analyze_threshold
	autovacuum_vacuum_threshold awaited begin between bigint body boolean by bytea c cardinality case chr claimed
	classid coalesce collate comment commit committed completed_at convert_to count counted create created_at
	current_database current_schemas d database datname declare default delete desc distinct do drop else encode
	end endpoint exists expires_at expires_minute false fillfactor fingerprint from function get granted greatest group
	header held i if in indexrelid indrelid insert integer interval into is isfinite isolation join kept key l language
	lease_until least left level limit locktype made max n name not note nspname null objid objsubid octet_length offset oid on
	operation or order ordinality perform pg_class pg_database pg_index pg_namespace place primary question r raise read record
	regclass relkind relname relnamespace replace replays resolved result return returns rollback row_count s savepoint
	seen_attempt seen_completed_at seen_endpoint seen_expires_at seen_fingerprint seen_key seen_lease_until seen_status
	seen_token seen_user_id select set sha256 size sqrt state status step step_names step_results string_to_array sum
	table text then timestamptz to_regclass token trailer true union unnest update user_bound user_id uuid
	vacuum_truncate values version when where with`
