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

// says has a server say what it is.
func says(version string) func(string) string {
	return func(statement string) string { return strings.ReplaceAll(statement, "VERSION()", "'"+version+"'") }
}

// A server that says what it is is refused at the first use, by Migrate and by Check, unless the documentation of its engine has
// all that the statements need, in a release that was read about.
func TestEngines(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]struct{ store, steps string }{ // what the errors say; empty: none
		"8.0.11-TiDB-v8.5.6":            {steps: "TiDB: New with DoTx and DoInTx needs FOR UPDATE that waits outside of transactions"},
		"8.0.11-TiDB-v7.5.2-serverless": {steps: "TiDB: New with DoTx"},
		"8.0.11-TiDB-v9.0.0-beta.1":     {store: `TiDB: version "9.0.0" is unknown, not one of 7.5, 8.1, 8.5`},
		"5.7.25-TiDB-v6.1.0":            {store: `TiDB: version "6.1.0" is unknown`},
		"8.0.11-TiDB":                   {store: `TiDB: version "" is unknown`},
		"8.0.30-Vitess":                 {store: "Vitess: New needs primary keys that are unique across shards"},
		"8.0.23-PlanetScale":            {store: "PlanetScale: New needs primary keys that are unique across shards"},
		"5.7.44-log":                    {store: `version "5.7.44-log" is older than MySQL 8.0 or MariaDB 10.6`},
		"5.5.5-10.5.23-MariaDB":         {store: "is older than MySQL 8.0"},
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
			direct := pool(t, server(t).DSN())
			require.NoError(t, mysqlstore.Migrate(t.Context(), direct, opts))
			db := pool(t, (&wire{edit: says(version)}).through(t))
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
				require.Equal(t, want.store != "", errors.Is(err, mysqlstore.ErrEngine), "%s: %v", who, err)
			}
			_, claim, err := store.Begin(t.Context(), keyOf("key"), request)
			if want.store != "" {
				require.Nil(t, claim)
				requireRefusal(err, want.store)
				return
			}
			require.NoError(t, err)
			var tx *sql.Tx
			own := idempotency.TxStep{Name: "book", Var: &tx, Timeout: 20 * time.Second, Run: func() ([]byte, error) { return []byte("1"), nil }}
			joined := own
			joined.Name, joined.Var = "ship", nil
			begun, err := direct.Begin()
			require.NoError(t, err)
			joined.Tx = begun
			for _, step := range []*idempotency.TxStep{&own, &joined} {
				_, err = claim.(idempotency.TxCheckpointer).CheckpointTx(t.Context(), step)
				if want.steps != "" {
					requireRefusal(err, want.steps)
				} else {
					require.NoError(t, err)
				}
			}
			require.NoError(t, begun.Rollback())
			require.NoError(t, claim.Release(t.Context(), time.Minute))
		})
	}
}

// Check reports an engine that is not known, and one that was only read about. A new MySQL is neither.
func TestCheckOfEngines(t *testing.T) {
	t.Parallel()
	for version, found := range map[string]bool{
		"8.0.11-TiDB-v8.1.2": true, "8.0.32-FooDB-v3.1": true, "5.7.25-OceanBase_CE-v4.2.1.2": false,
		"9.7.1": false, "12.3.1-MariaDB-ubu2404": false,
	} {
		direct := pool(t, server(t).DSN())
		_, table := newStore(t, direct)
		db := pool(t, (&wire{edit: func(statement string) string {
			return strings.ReplaceAll(says(version)(statement), "SHOW VARIABLES", unlimited)
		}}).through(t))
		unsafe, _ := findings(t, mysqlstore.NewTable(db, mysqlstore.Options{Table: table}))
		require.Equal(t, found, unsafe["VERSION()"] == version, version)
		require.NotContains(t, unsafe, "MaxOpenConns")
	}
}

// unlimited are the variables of a server that allows any number of connections, as TiDB says it.
const unlimited = `SELECT LOWER(VARIABLE_NAME), IF(VARIABLE_NAME = 'MAX_CONNECTIONS', '0', VARIABLE_VALUE)
FROM information_schema.SESSION_VARIABLES`

// The first use of a store asks what the server is, and no other.
func TestEnginesTakeOneRoundTrip(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	db := pool(t, (&wire{edit: func(statement string) string {
		if strings.Contains(statement, "VERSION()") {
			asked.Add(1)
		}
		return statement
	}}).through(t))
	opts := newOptions()
	require.NoError(t, mysqlstore.Migrate(t.Context(), db, opts))
	asked.Store(0)
	store := mysqlstore.New(db, opts)
	completed(t, store, "key")
	requireReplay(t, store, "key")
	completed(t, store, "another")
	require.Equal(t, int64(1), asked.Load())
}

// On an engine that cannot pass by what others have locked, Maintain is not told to.
func TestMaintainWithoutSkipping(t *testing.T) {
	t.Parallel()
	var skipped atomic.Bool
	tidb := says("8.0.11-TiDB-v8.5.6")
	db := pool(t, (&wire{edit: func(statement string) string {
		if strings.Contains(statement, "SKIP LOCKED") {
			skipped.Store(true)
		}
		return tidb(statement)
	}}).through(t))
	store, table := newStore(t, db)
	completed(t, store, "old")
	completed(t, store, "new")
	execute(t, db, "UPDATE "+table+" SET expires = 1 WHERE `key` = 'old'")
	require.NoError(t, store.Maintain(t.Context()))
	require.Equal(t, "new", one[string](t, db, "SELECT `key` FROM "+table))
	require.False(t, skipped.Load())
}

// conflicts are errors by which MySQL, MariaDB and TiDB ask for a repetition.
var conflicts = []uint16{1213, 1205, 8002, 8005, 8022, 8028, 9007}

// The contract holds on a server that refuses each statement outside of the subset that the table of features declares, and
// that answers one in eight with a conflict.
func TestConformanceInTheSubset(t *testing.T) {
	t.Parallel()
	var failures atomic.Int64
	refuse, tidb := refuseOutside(mysqlstore.ByStore, mysqlstore.ByOperators), says("8.0.11-TiDB-v8.5.6")
	db := pool(t, (&wire{edit: tidb, answers: func(statement string) *mysql.MySQLError {
		if err := refuse(statement); err != nil {
			return err
		}
		if isEnd(statement) || rand.N(8) > 0 {
			return nil
		}
		failures.Add(1)
		return &mysql.MySQLError{Number: conflicts[rand.N(len(conflicts))], Message: "answered in place of the server"}
	}}).through(t))
	opts := newOptions()
	require.NoError(t, mysqlstore.Migrate(t.Context(), pool(t, server(t).DSN()), opts))
	store := mysqlstore.New(db, opts)
	idempotencytest.Run(t, func(*testing.T) idempotency.Store { return store })
	idempotencytest.RunSteps(t, func(*testing.T) idempotency.Store { return store })
	require.Greater(t, failures.Load(), int64(50))
}

// isEnd reports whether a statement ends a transaction, which would go on if the server did not get it.
func isEnd(statement string) bool { return statement == "COMMIT" || statement == "ROLLBACK" }

// A Store works with the features of New alone. Only the transaction of a step needs more.
func TestTheSubsetIsSmall(t *testing.T) {
	t.Parallel()
	opts := newOptions()
	require.NoError(t, mysqlstore.Migrate(t.Context(), pool(t, server(t).DSN()), opts))
	db := pool(t, (&wire{answers: refuseOutside(mysqlstore.ByStore)}).through(t))
	store := mysqlstore.New(db, opts)
	completed(t, store, "key")
	_, claim := begun(t, store, "a step")
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

// isOutside returns what tells statements that are not in the subset which the table of features declares for those uses.
func isOutside(uses ...string) func(statement string) bool {
	return enginetest.NewWordCheck(mysqlstore.Features, plainSQL, quoted, uses...)
}

// Each statement keeps to plain SQL, and to the features that the table names for its use.
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

// The page says of each engine what the table does.
func TestReadmeNamesEngines(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	for _, row := range mysqlstore.EngineRows() {
		require.True(t, strings.Contains(string(readme), row), "%s", row)
	}
}

// quoted are comments, also those that MariaDB executes and those that are hints, strings, literals, names in quotes, and
// what is put into a statement: they have no words.
var quoted = regexp.MustCompile("(?s)--[^\\n]*|/\\*(?:M!|\\+).*?\\*/|(?:x|_utf8mb4 x)?'(?:[^']|'')*'|`[^`]*`|\\{\\w+\\}")

// plainSQL are the words of SQL, the types, the functions and the variables that every engine has which is in the table.
const plainSQL = `and answer_size as ascii attempt autocommit bigint binary blob by cast chain character coalesce collate comment commit concat convert
create created default delete desc asc digest distinct drop else end case when then endpoint engine
exists expires fingerprint force from greatest group having if in index innodb insert int into is join key lease
left length limit lock longblob m max_allowed_packet mediumblob mod name no not null on one or order r release resolved response rollback
select set start steps sum count table text token transaction true unhex
update use user_id using utf8mb4 utf8mb4_bin values version wait_timeout where`
