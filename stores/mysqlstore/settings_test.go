package mysqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/step"
	"github.com/idempotency-go/idempotency/stores/internal/settingtest"
	"github.com/idempotency-go/idempotency/stores/mysqlstore"
)

var thorough = flag.Bool("thorough", false, "run a whole round for each value of each setting of a session")

// sessions returns a pool whose sessions have settings such as "sql_mode=ANSI".
func sessions(t *testing.T, settings ...string) *sql.DB {
	t.Helper()
	return pool(t, server(t).DSN(), inQuotes(settings)...)
}

// inQuotes returns settings as a DSN has them.
func inQuotes(settings []string) (escaped []string) {
	for _, setting := range settings {
		name, value, _ := strings.Cut(setting, "=")
		if _, err := strconv.ParseFloat(value, 64); err != nil {
			value = "'" + value + "'"
		}
		escaped = append(escaped, name+"="+url.QueryEscape(value))
	}
	return escaped
}

// requireRound runs a whole round of a store on db, on a table of its own. It expects Check to warn of nothing but what
// unsafe names, and the shared server. Admin is a pool with the usual settings.
func requireRound(t *testing.T, db, admin *sql.DB, unsafe ...string) {
	t.Helper()
	opts := newOptions()
	require.NoError(t, mysqlstore.Migrate(t.Context(), db, opts))
	require.NoError(t, mysqlstore.Migrate(t.Context(), db, opts), "again")
	store := mysqlstore.New(db, opts)
	requireFindings(t, store.Table, unsafe...)
	require.NoError(t, settingtest.CheckContract(t.Context(), settingtest.Subject{
		Store: store, Maintain: store.Maintain,
		Records: func(context.Context) (int, error) {
			return one[int](t, admin, "SELECT COUNT(*) FROM "+opts.Table), nil
		},
	}))
	requireFindings(t, store.Table, unsafe...)
	requireStepRound(t, db, admin, store, opts.Table)
}

// requireStepRound runs steps in transactions of the store and of the handler, of each outcome.
func requireStepRound(t *testing.T, db, admin *sql.DB, store *mysqlstore.Store, table string) {
	t.Helper()
	b := &bookings{db: db, store: store, rows: table + "_rows"}
	execute(t, admin, "CREATE TABLE "+b.rows+" (name VARCHAR(50) CHARACTER SET ascii, KEY (name)) ENGINE = InnoDB")
	results := map[string][]byte{"empty": {}, "text": []byte(`"\'\\`), "bytes": {0, 0xff, '\\', 0x5c, 0xbf, 0x27}}
	for name, result := range results {
		claim := b.claim(t, "key")
		s := b.ownTx(name, nothing)
		s.Name, s.Run = name, replaced(s.Run, result)
		stored, err := claim.CheckpointTx(t.Context(), s)
		require.NoError(t, err)
		require.Equal(t, result, stored)
		b.requireRows(t, 1, name)

		tx, err := b.db.Begin()
		require.NoError(t, err)
		joined := b.joinedTx(tx, name+" joined", nothing)
		joined.Name, joined.Run = name+"-joined", replaced(joined.Run, result)
		_, err = claim.CheckpointTx(t.Context(), joined)
		require.NoError(t, err)
		_, err = tx.Exec("COMMIT AND NO CHAIN NO RELEASE") // as Commit does unless completion_type has another meaning
		require.NoError(t, err)
		require.NoError(t, tx.Rollback())
		b.requireRows(t, 1, name+" joined")

		s = b.ownTx("undone", func(*sql.Tx) error { return errOfStep })
		s.Name = "undone"
		_, err = claim.CheckpointTx(t.Context(), s)
		require.ErrorIs(t, err, errOfStep)
		require.False(t, s.Escaped)
		b.requireRows(t, 0, "undone")

		s = b.ownTx(name+" escaped", func(tx *sql.Tx) error { return run(tx, "COMMIT AND NO CHAIN NO RELEASE") })
		s.Name = name + "-escaped"
		_, err = claim.CheckpointTx(t.Context(), s)
		require.ErrorIs(t, err, step.ErrMisuse)
		require.True(t, s.Escaped)
		b.requireRows(t, 1, name+" escaped")
		require.NoError(t, claim.Release(t.Context(), time.Hour))
	}
	claim := b.claim(t, "key")
	found, err := claim.Checkpoints(t.Context())
	require.NoError(t, err)
	require.Len(t, found, 2*len(results))
	for name, result := range results {
		require.Equal(t, result, found[name])
		require.Equal(t, result, found[name+"-joined"])
	}
	stored, err := claim.CheckpointTx(t.Context(), func() *idempotency.TxStep { s := b.ownTx("again", nothing); s.Name = "text"; return s }())
	require.NoError(t, err)
	require.Equal(t, results["text"], stored)
	b.requireRows(t, 0, "again")
}

// replaced returns run with another result.
func replaced(run func() ([]byte, error), result []byte) func() ([]byte, error) {
	return func() ([]byte, error) {
		_, err := run()
		return result, err
	}
}

// requireFindings expects Check to name unsafe settings, and no other fault.
func requireFindings(t *testing.T, table *mysqlstore.Table, unsafe ...string) {
	t.Helper()
	found, others := findings(t, table)
	require.Empty(t, others)
	var names []string
	for name := range found {
		names = append(names, name)
	}
	require.ElementsMatch(t, append([]string{"innodb_flush_log_at_trx_commit"}, unsafe...), names)
}

// Settings that a server, a proxy or a DSN may give to the sessions change nothing for the store.
func TestSettingsOfSessions(t *testing.T) {
	t.Parallel()
	admin := pool(t, server(t).DSN())
	const strict = "STRICT_TRANS_TABLES,"
	for name, tt := range map[string]struct {
		driver   []string // parameters of the driver
		settings []string
		unsafe   []string
	}{
		"interpolated": {
			driver:   []string{"interpolateParams=true", "clientFoundRows=true", "parseTime=true", "loc=Europe%2FBerlin"},
			settings: []string{"sql_safe_updates=1", "sql_select_limit=1", "max_join_size=1", "completion_type=CHAIN"},
		},
		"no escapes, interpolated": {
			driver: []string{"interpolateParams=true"}, settings: []string{"sql_mode=" + strict + "NO_BACKSLASH_ESCAPES"},
		},
		"safe updates": {settings: []string{"sql_safe_updates=1"}},
		"one row":      {settings: []string{"sql_select_limit=1"}},
		"no row":       {settings: []string{"sql_select_limit=0"}},
		"mysql --safe-updates": {
			settings: []string{"sql_safe_updates=1", "sql_select_limit=1000", "max_join_size=1000000"},
		},
		"small joins":    {settings: []string{"max_join_size=1"}},
		"empty strings":  {settings: []string{"sql_mode=" + strict + "EMPTY_STRING_IS_NULL"}},
		"mode of Oracle": {settings: []string{"sql_mode=" + strict + "ORACLE"}},
		"mode of ANSI":   {settings: []string{"sql_mode=" + strict + "ANSI,HIGH_NOT_PRECEDENCE"}},
		"no escapes":     {settings: []string{"sql_mode=" + strict + "NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH"}},
		"traditional": {
			settings: []string{"sql_mode=TRADITIONAL,SIMULTANEOUS_ASSIGNMENT,NO_UNSIGNED_SUBTRACTION"},
		},
		"not strict":      {settings: []string{"sql_mode="}, unsafe: []string{"sql_mode"}},
		"commits chain":   {settings: []string{"completion_type=CHAIN"}},
		"commits release": {settings: []string{"completion_type=RELEASE"}},
		"serializable": {
			settings: []string{"tx_isolation=SERIALIZABLE", "innodb_lock_wait_timeout=1", "lock_wait_timeout=5"},
		},
		"read committed": {
			settings: []string{"tx_isolation=READ-COMMITTED", "low_priority_updates=1", "time_zone=-12:59"},
		},
		"read uncommitted":      {settings: []string{"tx_isolation=READ-UNCOMMITTED"}, unsafe: []string{"tx_isolation"}},
		"two bytes a character": {settings: []string{"collation_connection=utf16_general_ci"}},
		"ASCII": {
			settings: []string{"character_set_results=ascii", "collation_connection=utf8mb4_turkish_ci"},
		},
		"small": {settings: []string{
			"group_concat_max_len=4", "div_precision_increment=0", "max_sort_length=8", "sort_buffer_size=32768",
			"tmp_table_size=1024", "max_heap_table_size=16384", "join_buffer_size=128", "read_buffer_size=8192",
			"max_length_for_sort_data=4", "max_error_count=0", "optimizer_search_depth=0", "eq_range_index_dive_limit=1",
			"in_predicate_conversion_threshold=2", "optimizer_max_sel_arg_weight=0", "max_statement_time=30",
			"wait_timeout=1",
		}},
		"switches": {settings: []string{
			"big_tables=1", "foreign_key_checks=0", "unique_checks=0", "check_constraint_checks=0", "sql_auto_is_null=1",
			"sql_buffer_result=1", "sql_notes=0", "sql_warnings=1", "sql_log_bin=0", "sql_quote_show_create=0",
			"explicit_defaults_for_timestamp=0", "innodb_strict_mode=0", "sql_if_exists=1", "old=1",
			"old_mode=ZERO_DATE_TIME_CAST,UTF8_IS_UTF8MB3", "system_versioning_alter_history=KEEP",
			"binlog_row_image=MINIMAL",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pool(t, server(t).DSN(), append(tt.driver, inQuotes(tt.settings)...)...)
			requireRound(t, db, admin, tt.unsafe...)
		})
	}
}

// In these sessions nothing would be committed, or no text could be read. No handler runs, and Check says so.
func TestSessionsThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	admin := pool(t, server(t).DSN())
	for _, setting := range []string{"autocommit=0", "character_set_results=utf16"} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			db := sessions(t, setting)
			opts := newOptions()
			require.NoError(t, mysqlstore.Migrate(t.Context(), admin, opts))
			store := mysqlstore.New(db, opts)
			for range 2 {
				_, _, err := store.Begin(t.Context(), keyOf("key"), request)
				require.ErrorIs(t, err, mysqlstore.ErrEngine)
				require.ErrorIs(t, err, errors.ErrUnsupported)
				require.Nil(t, testservice.InDoubt(err))
			}
			if setting == "autocommit=0" {
				_, err := store.Inspect(t.Context(), keyOf("key"))
				require.ErrorIs(t, err, mysqlstore.ErrEngine)
				requireFindings(t, store.Table, "autocommit")
			} else {
				require.ErrorIs(t, store.Check(t.Context()), mysqlstore.ErrEngine)
			}
			require.Zero(t, one[int](t, admin, "SELECT COUNT(*) FROM "+opts.Table))
		})
	}
}

// A session whose clock stands still lets no lease lapse.
func TestCheckOfAClockThatStandsStill(t *testing.T) {
	t.Parallel()
	_, table := newStore(t, pool(t, server(t).DSN()))
	opts := mysqlstore.Options{Table: table}
	requireFindings(t, mysqlstore.NewTable(sessions(t, "timestamp=1"), opts), "timestamp")
}

// Each setting that a session can have is changed to each of its values, or to its least and its greatest one.
func TestEverySetting(t *testing.T) {
	if !*thorough {
		t.Skip("takes minutes: -args -thorough")
	}
	t.Parallel()
	admin := pool(t, server(t).DSN())
	rows, err := admin.QueryContext(t.Context(), `SELECT LOWER(VARIABLE_NAME), VARIABLE_TYPE,
		COALESCE(ENUM_VALUE_LIST, CONCAT_WS(',', NUMERIC_MIN_VALUE, NUMERIC_MAX_VALUE))
		FROM information_schema.SYSTEM_VARIABLES WHERE VARIABLE_SCOPE LIKE 'SESSION%' AND READ_ONLY = 'NO'
		AND VARIABLE_TYPE <> 'VARCHAR'`)
	require.NoError(t, err)
	values := make(map[string][]string)
	for rows.Next() {
		var name, kind, list string
		require.NoError(t, rows.Scan(&name, &kind, &list))
		of := strings.Split(list, ",")
		switch kind {
		case "SET":
			of = append(of, list, "")
		case "FLAGSET":
			of = of[:len(of)-1] // without "default"
			of = []string{strings.Join(of, "=on,") + "=on", strings.Join(of, "=off,") + "=off"}
		}
		if !slices.Contains(notServed, name) {
			values[name] = of
		}
	}
	require.NoError(t, rows.Err())
	require.Greater(t, len(values), 100)
	for name, values := range values {
		for _, value := range values {
			t.Run(name+"="+value, func(t *testing.T) {
				t.Parallel()
				db := sessions(t, name+"="+value)
				defer db.Close()
				if db.PingContext(t.Context()) != nil {
					t.Skip("no session can have it")
				}
				var unsafe []string
				if name == "sql_mode" && !strings.Contains(value, "STRICT") && value != "TRADITIONAL" {
					unsafe = []string{"sql_mode"}
				}
				requireRound(t, db, admin, unsafe...)
			})
		}
	}
}

// notServed are settings that Check names, the clock, and those for which the server refuses statements or sorts when they
// are very small.
var notServed = []string{
	"autocommit", "tx_isolation", "tx_read_only", "timestamp", "max_session_mem_used", "tmp_disk_table_size",
	"sort_buffer_size",
}
