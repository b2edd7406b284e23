package mysqlstore_test

import (
	"database/sql"
	"errors"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/stores/internal/enginetest"
	"github.com/idempotency-go/idempotency/stores/mysqlstore"
)

// reportVersion returns a function that edits statements so that the server reports the given version.
func reportVersion(version string) func(string) string {
	return func(statement string) string { return strings.ReplaceAll(statement, "VERSION()", "'"+version+"'") }
}

// Begin, Migrate, Check and Maintain refuse a server unless the documentation of its engine and release has all that
// the statements need.
func TestEngines(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]struct{ storeError, stepsError string }{ // parts of the errors; empty: no error
		"8.0.11-TiDB-v8.5.6": {
			stepsError: "TiDB: New with DoTx and DoInTx needs FOR UPDATE that waits outside of transactions",
		},
		"8.0.11-TiDB-v7.5.2-serverless": {stepsError: "TiDB: New with DoTx"},
		"8.0.11-TiDB-v9.0.0-beta.1":     {storeError: `TiDB: version "9.0.0" is unknown, not one of 7.5, 8.1, 8.5`},
		"5.7.25-TiDB-v6.1.0":            {storeError: `TiDB: version "6.1.0" is unknown`},
		"8.0.11-TiDB":                   {storeError: `TiDB: version "" is unknown`},
		"8.0.30-Vitess":                 {storeError: "Vitess: New needs primary keys that are unique across shards"},
		"8.0.23-PlanetScale":            {storeError: "PlanetScale: New needs primary keys that are unique across shards"},
		"5.7.44-log":                    {storeError: `version "5.7.44-log" is older than MySQL 8.0 or MariaDB 10.6`},
		"5.5.5-10.5.23-MariaDB":         {storeError: "is older than MySQL 8.0"},
		"8.0.36-0ubuntu0.22.04.1":       {},
		"9.7.1":                         {},
		"8.4.0-u3-cloud":                {},
		"5.5.5-10.11.6-MariaDB-log":     {},
		"12.3.1-MariaDB-ubu2404":        {},
		"8.0.32-FooDB-v3.1":             {},
		"what a surprise":               {},
	} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			opts := newOptions()
			direct := openPool(t, sharedServer(t).DSN())
			require.NoError(t, mysqlstore.Migrate(t.Context(), direct, opts))
			db := openPool(t, (&interceptor{editStatement: reportVersion(version)}).interceptedDSN(t))
			store := mysqlstore.New(db, opts)
			requireRefusal := func(err error, says string) {
				t.Helper()
				require.ErrorIs(t, err, mysqlstore.ErrEngine)
				require.ErrorIs(t, err, errors.ErrUnsupported) // so FailOpen runs nothing
				require.ErrorContains(t, err, "mysqlstore: the server cannot be used: ")
				require.ErrorContains(t, err, says)
			}
			for who, err := range map[string]error{
				"Check": store.Check(t.Context()), "Migrate": mysqlstore.Migrate(t.Context(), db, opts),
				"Maintain": store.Maintain(t.Context()),
			} {
				require.Equal(t, want.storeError != "", errors.Is(err, mysqlstore.ErrEngine), "%s: %v", who, err)
			}
			_, claim, err := store.Begin(t.Context(), keyOf("key"), request)
			if want.storeError != "" {
				require.Nil(t, claim)
				requireRefusal(err, want.storeError)
				return
			}
			require.NoError(t, err)
			var tx *sql.Tx
			own := idempotency.TxStep{Name: "book", Var: &tx, Timeout: 20 * time.Second,
				Run: func() ([]byte, error) { return []byte("1"), nil }}
			joined := own
			joined.Name, joined.Var = "ship", nil
			begun, err := direct.Begin()
			require.NoError(t, err)
			joined.Tx = begun
			for _, step := range []*idempotency.TxStep{&own, &joined} {
				_, err = claim.(idempotency.TxCheckpointer).CheckpointTx(t.Context(), step)
				if want.stepsError != "" {
					requireRefusal(err, want.stepsError)
				} else {
					require.NoError(t, err)
				}
			}
			require.NoError(t, begun.Rollback())
			require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Minute}))
		})
	}
}

// Check reports engines that are unknown or were never tested, only read about. A new version of MySQL is neither.
func TestCheckOfEngines(t *testing.T) {
	t.Parallel()
	for version, found := range map[string]bool{
		"8.0.11-TiDB-v8.1.2": true, "8.0.32-FooDB-v3.1": true, "5.7.25-OceanBase_CE-v4.2.1.2": false,
		"9.7.1": false, "12.3.1-MariaDB-ubu2404": false,
	} {
		direct := openPool(t, sharedServer(t).DSN())
		_, table := newStore(t, direct)
		db := openPool(t, (&interceptor{editStatement: func(statement string) string {
			return strings.ReplaceAll(reportVersion(version)(statement), "SHOW VARIABLES", unlimitedVariables)
		}}).interceptedDSN(t))
		unsafe, _ := findUnsafeSettings(t, mysqlstore.NewTable(db, mysqlstore.Options{Table: table}))
		require.Equal(t, found, unsafe["VERSION()"] == version, version)
		require.NotContains(t, unsafe, "MaxOpenConns")
	}
}

// unlimitedVariables are the variables of a server that allows any number of connections, as TiDB reports them.
const unlimitedVariables = `SELECT LOWER(VARIABLE_NAME), IF(VARIABLE_NAME = 'MAX_CONNECTIONS', '0', VARIABLE_VALUE)
FROM information_schema.SESSION_VARIABLES`

// The first call of a store reads the server's version. Later calls do not.
func TestEnginesTakeOneRoundTrip(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	db := openPool(t, (&interceptor{editStatement: func(statement string) string {
		if strings.Contains(statement, "VERSION()") {
			asked.Add(1)
		}
		return statement
	}}).interceptedDSN(t))
	opts := newOptions()
	require.NoError(t, mysqlstore.Migrate(t.Context(), db, opts))
	asked.Store(0)
	store := mysqlstore.New(db, opts)
	completeKey(t, store, "key")
	requireReplay(t, store, "key")
	completeKey(t, store, "another")
	require.Equal(t, int64(1), asked.Load())
}

// If the engine does not support SKIP LOCKED, Maintain does not use it.
func TestMaintainWithoutSkipping(t *testing.T) {
	t.Parallel()
	var skipped atomic.Bool
	tidb := reportVersion("8.0.11-TiDB-v8.5.6")
	db := openPool(t, (&interceptor{editStatement: func(statement string) string {
		if strings.Contains(statement, "SKIP LOCKED") {
			skipped.Store(true)
		}
		return tidb(statement)
	}}).interceptedDSN(t))
	store, table := newStore(t, db)
	completeKey(t, store, "old")
	completeKey(t, store, "new")
	execStatement(t, db, "UPDATE "+table+" SET expires = 1 WHERE `key` = 'old'")
	require.NoError(t, store.Maintain(t.Context()))
	require.Equal(t, "new", queryValue[string](t, db, "SELECT `key` FROM "+table))
	require.False(t, skipped.Load())
}

// conflictCodes are the error codes by which MySQL, MariaDB and TiDB ask for a repetition.
var conflictCodes = []uint16{1213, 1205, 8002, 8005, 8022, 8028, 9007}

// The contract holds on a server that refuses each statement outside of the declared subset (the table of features),
// and answers one in eight statements with a conflict.
func TestConformanceInTheSubset(t *testing.T) {
	t.Parallel()
	var failures atomic.Int64
	refuse, tidb := refuseOutside(mysqlstore.ByStore, mysqlstore.ByOperators), reportVersion("8.0.11-TiDB-v8.5.6")
	db := openPool(t, (&interceptor{editStatement: tidb, refuseStatement: func(statement string) *mysql.MySQLError {
		if err := refuse(statement); err != nil {
			return err
		}
		if endsTransaction(statement) || rand.N(8) > 0 {
			return nil
		}
		failures.Add(1)
		return &mysql.MySQLError{Number: conflictCodes[rand.N(len(conflictCodes))], Message: "answered in place of the server"}
	}}).interceptedDSN(t))
	opts := newOptions()
	require.NoError(t, mysqlstore.Migrate(t.Context(), openPool(t, sharedServer(t).DSN()), opts))
	store := mysqlstore.New(db, opts)
	idempotencytest.Run(t, func(*testing.T) idempotency.Store { return store })
	idempotencytest.RunSteps(t, func(*testing.T) idempotency.Store { return store })
	require.Greater(t, failures.Load(), int64(50))
}

// endsTransaction reports whether a statement ends a transaction. Such statements always reach the server, because
// the transaction would stay open otherwise.
func endsTransaction(statement string) bool { return statement == "COMMIT" || statement == "ROLLBACK" }

// A Store needs only the features of New. The transaction of a step needs more.
func TestTheSubsetIsSmall(t *testing.T) {
	t.Parallel()
	opts := newOptions()
	require.NoError(t, mysqlstore.Migrate(t.Context(), openPool(t, sharedServer(t).DSN()), opts))
	db := openPool(t, (&interceptor{refuseStatement: refuseOutside(mysqlstore.ByStore)}).interceptedDSN(t))
	store := mysqlstore.New(db, opts)
	completeKey(t, store, "key")
	_, claim := claimKey(t, store, "a step")
	var tx *sql.Tx
	_, err := claim.(idempotency.TxCheckpointer).CheckpointTx(t.Context(), &idempotency.TxStep{
		Name: "book", Var: &tx, Timeout: 20 * time.Second, Run: func() ([]byte, error) { return nil, errors.New("it has begun") },
	})
	require.ErrorContains(t, err, "Error 1235")
}

func refuseOutside(uses ...string) func(string) *mysql.MySQLError {
	outside := isOutside(uses...)
	return func(statement string) *mysql.MySQLError {
		if outside(statement) {
			return &mysql.MySQLError{Number: 1235, Message: "outside of the subset"}
		}
		return nil
	}
}

// isOutside returns a function that reports whether a statement is outside of the subset that the table of features
// declares for uses.
func isOutside(uses ...string) func(statement string) bool {
	return enginetest.NewWordCheck(mysqlstore.Features, plainSQL, wordlessParts, uses...)
}

// Each statement uses plain SQL, and the features that the table declares for its use.
func TestStatementsKeepToTheSubset(t *testing.T) {
	t.Parallel()
	for name, statement := range (mysqlstore.Options{}).Statements() {
		use := []string{mysqlstore.ByStore, mysqlstore.ByOperators}
		switch {
		case strings.HasPrefix(name, "step_"):
			use = []string{mysqlstore.ByStore, mysqlstore.BySteps}
		case strings.HasSuffix(name, "_expired"):
			use = []string{mysqlstore.ByStore, mysqlstore.ByExpiry}
		}
		require.False(t, isOutside(use...)(statement), "%s: %s", name, statement)
	}
	for _, word := range []string{"skip", "share", "last_insert_id", "found_rows"} {
		require.True(t, isOutside(mysqlstore.ByStore, mysqlstore.ByOperators)("SELECT "+word), word)
	}
}

// The README has the row of each engine in the table.
func TestReadmeNamesEngines(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	for _, row := range mysqlstore.EngineRows() {
		require.True(t, strings.Contains(string(readme), row), "%s", row)
	}
}

// wordlessParts matches the parts of a statement without SQL words: comments (also those that MariaDB executes and
// hints), strings, literals, quoted names, and placeholders.
var wordlessParts = regexp.MustCompile("(?s)--[^\\n]*|/\\*(?:M!|\\+).*?\\*/|(?:x|_utf8mb4 x)?'(?:[^']|'')*'|`[^`]*`|\\{\\w+\\}")

// plainSQL has the words of SQL, types, functions and variables that every engine in the table supports.
const plainSQL = `and answer_size as ascii attempt autocommit bigint binary blob by cast chain character coalesce collate comment commit concat convert counted
create created default delete desc asc distinct drop else end ended case when then endpoint engine
exists expires fingerprint force from greatest group having if in index innodb insert int into is join key lease
least left length limit lock longblob m max_allowed_packet mediumblob mod name no not null on one operation or order r release resolved response rollback
select set start steps sum count table text token transaction true unhex
update use user_id users using utf8mb4 utf8mb4_bin values varbinary version wait_timeout where`
