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

// openSessions returns a pool whose sessions have settings such as "sql_mode=ANSI".
func openSessions(t *testing.T, settings ...string) *sql.DB {
	t.Helper()
	return openPool(t, sharedServer(t).DSN(), quoteSettings(settings)...)
}

// quoteSettings returns the settings in the form of a DSN.
func quoteSettings(settings []string) (escaped []string) {
	for _, setting := range settings {
		name, value, _ := strings.Cut(setting, "=")
		if _, err := strconv.ParseFloat(value, 64); err != nil {
			value = "'" + value + "'"
		}
		escaped = append(escaped, name+"="+url.QueryEscape(value))
	}
	return escaped
}

// requireContract requires that a store on db, with its own table, keeps its contract. Check must report exactly the
// settings in unsafe, and the setting of the shared server. Admin is a pool with the usual settings.
func requireContract(t *testing.T, db, admin *sql.DB, unsafe ...string) {
	t.Helper()
	opts := newOptions()
	require.NoError(t, mysqlstore.Migrate(t.Context(), db, opts))
	require.NoError(t, mysqlstore.Migrate(t.Context(), db, opts), "again")
	store := mysqlstore.New(db, opts)
	requireUnsafeSettings(t, store.Table, unsafe...)
	require.NoError(t, settingtest.CheckContract(t.Context(), settingtest.Subject{
		Store: store, Maintain: store.Maintain,
		Records: func(context.Context) (int, error) {
			return queryValue[int](t, admin, "SELECT COUNT(*) FROM "+opts.Table), nil
		},
	}))
	requireUnsafeSettings(t, store.Table, unsafe...)
	requireTxSteps(t, db, admin, store, opts.Table)
}

// requireTxSteps runs steps in transactions of the store and of the handler, with each kind of outcome.
func requireTxSteps(t *testing.T, db, admin *sql.DB, store *mysqlstore.Store, table string) {
	t.Helper()
	b := &bookings{db: db, store: store, rowsTable: table + "_rows"}
	execStatement(t, admin, "CREATE TABLE "+b.rowsTable+" (name VARCHAR(50) CHARACTER SET ascii, KEY (name)) ENGINE = InnoDB")
	results := map[string][]byte{"empty": {}, "text": []byte(`"\'\\`), "bytes": {0, 0xff, '\\', 0x5c, 0xbf, 0x27}}
	for name, result := range results {
		claim := b.claimKey(t, "key")
		s := b.newStoreTxStep(name, doNothing)
		s.Name, s.Run = name, withResult(s.Run, result)
		stored, err := claim.CheckpointTx(t.Context(), s)
		require.NoError(t, err)
		require.Equal(t, result, stored)
		b.requireRows(t, 1, name)

		tx, err := b.db.Begin()
		require.NoError(t, err)
		joined := b.newHandlerTxStep(tx, name+" joined", doNothing)
		joined.Name, joined.Run = name+"-joined", withResult(joined.Run, result)
		_, err = claim.CheckpointTx(t.Context(), joined)
		require.NoError(t, err)
		_, err = tx.Exec("COMMIT AND NO CHAIN NO RELEASE") // Commit does the same unless completion_type is set
		require.NoError(t, err)
		require.NoError(t, tx.Rollback())
		b.requireRows(t, 1, name+" joined")

		s = b.newStoreTxStep("undone", func(*sql.Tx) error { return errOfStep })
		s.Name = "undone"
		_, err = claim.CheckpointTx(t.Context(), s)
		require.ErrorIs(t, err, errOfStep)
		require.False(t, s.Escaped)
		b.requireRows(t, 0, "undone")

		s = b.newStoreTxStep(name+" escaped", func(tx *sql.Tx) error { return execAll(tx, "COMMIT AND NO CHAIN NO RELEASE") })
		s.Name = name + "-escaped"
		_, err = claim.CheckpointTx(t.Context(), s)
		require.ErrorIs(t, err, step.ErrMisuse)
		require.True(t, s.Escaped)
		b.requireRows(t, 1, name+" escaped")
		require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Hour}))
	}
	claim := b.claimKey(t, "key")
	found, err := claim.Checkpoints(t.Context())
	require.NoError(t, err)
	require.Len(t, found, 2*len(results))
	for name, result := range results {
		require.Equal(t, result, found[name])
		require.Equal(t, result, found[name+"-joined"])
	}
	stored, err := claim.CheckpointTx(t.Context(), func() *idempotency.TxStep {
		s := b.newStoreTxStep("again",
			doNothing)
		s.Name = "text"
		return s
	}())
	require.NoError(t, err)
	require.Equal(t, results["text"], stored)
	b.requireRows(t, 0, "again")
}

// withResult returns a function that calls run, and returns result instead of run's result.
func withResult(run func() ([]byte, error), result []byte) func() ([]byte, error) {
	return func() ([]byte, error) {
		_, err := run()
		return result, err
	}
}

// requireUnsafeSettings requires that Check reports exactly the unsafe settings, the setting of the shared server,
// and no other error.
func requireUnsafeSettings(t *testing.T, table *mysqlstore.Table, unsafe ...string) {
	t.Helper()
	found, others := findUnsafeSettings(t, table)
	require.Empty(t, others)
	var names []string
	for name := range found {
		names = append(names, name)
	}
	require.ElementsMatch(t, append([]string{"innodb_flush_log_at_trx_commit"}, unsafe...), names)
}

// The store works the same with all settings that a server, a proxy or a DSN may give to its sessions.
func TestSettingsOfSessions(t *testing.T) {
	t.Parallel()
	admin := openPool(t, sharedServer(t).DSN())
	const strict = "STRICT_TRANS_TABLES,"
	for name, tt := range map[string]struct {
		driverParameters []string // parameters of the driver
		sessionSettings  []string
		wantUnsafe       []string
	}{
		"interpolated": {
			driverParameters: []string{"interpolateParams=true", "clientFoundRows=true", "parseTime=true", "loc=Europe%2FBerlin"},
			sessionSettings:  []string{"sql_safe_updates=1", "sql_select_limit=1", "max_join_size=1", "completion_type=CHAIN"},
		},
		"no escapes, interpolated": {
			driverParameters: []string{"interpolateParams=true"}, sessionSettings: []string{"sql_mode=" + strict +
				"NO_BACKSLASH_ESCAPES"},
		},
		"safe updates": {sessionSettings: []string{"sql_safe_updates=1"}},
		"one row":      {sessionSettings: []string{"sql_select_limit=1"}},
		"no row":       {sessionSettings: []string{"sql_select_limit=0"}},
		"mysql --safe-updates": {
			sessionSettings: []string{"sql_safe_updates=1", "sql_select_limit=1000", "max_join_size=1000000"},
		},
		"small joins":    {sessionSettings: []string{"max_join_size=1"}},
		"empty strings":  {sessionSettings: []string{"sql_mode=" + strict + "EMPTY_STRING_IS_NULL"}},
		"mode of Oracle": {sessionSettings: []string{"sql_mode=" + strict + "ORACLE"}},
		"mode of ANSI":   {sessionSettings: []string{"sql_mode=" + strict + "ANSI,HIGH_NOT_PRECEDENCE"}},
		"no escapes":     {sessionSettings: []string{"sql_mode=" + strict + "NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH"}},
		"traditional": {
			sessionSettings: []string{"sql_mode=TRADITIONAL,SIMULTANEOUS_ASSIGNMENT,NO_UNSIGNED_SUBTRACTION"},
		},
		"not strict":      {sessionSettings: []string{"sql_mode="}, wantUnsafe: []string{"sql_mode"}},
		"commits chain":   {sessionSettings: []string{"completion_type=CHAIN"}},
		"commits release": {sessionSettings: []string{"completion_type=RELEASE"}},
		"serializable": {
			sessionSettings: []string{"tx_isolation=SERIALIZABLE", "innodb_lock_wait_timeout=1", "lock_wait_timeout=5"},
		},
		"read committed": {
			sessionSettings: []string{"tx_isolation=READ-COMMITTED", "low_priority_updates=1", "time_zone=-12:59"},
		},
		"read uncommitted":      {sessionSettings: []string{"tx_isolation=READ-UNCOMMITTED"}, wantUnsafe: []string{"tx_isolation"}},
		"two bytes a character": {sessionSettings: []string{"collation_connection=utf16_general_ci"}},
		"ASCII": {
			sessionSettings: []string{"character_set_results=ascii", "collation_connection=utf8mb4_turkish_ci"},
		},
		"small": {sessionSettings: []string{
			"group_concat_max_len=4", "div_precision_increment=0", "max_sort_length=8", "sort_buffer_size=32768",
			"tmp_table_size=1024", "max_heap_table_size=16384", "join_buffer_size=128", "read_buffer_size=8192",
			"max_length_for_sort_data=4", "max_error_count=0", "optimizer_search_depth=0", "eq_range_index_dive_limit=1",
			"in_predicate_conversion_threshold=2", "optimizer_max_sel_arg_weight=0", "max_statement_time=30",
			"wait_timeout=1",
		}},
		"switches": {sessionSettings: []string{
			"big_tables=1", "foreign_key_checks=0", "unique_checks=0", "check_constraint_checks=0", "sql_auto_is_null=1",
			"sql_buffer_result=1", "sql_notes=0", "sql_warnings=1", "sql_log_bin=0", "sql_quote_show_create=0",
			"explicit_defaults_for_timestamp=0", "innodb_strict_mode=0", "sql_if_exists=1", "old=1",
			"old_mode=ZERO_DATE_TIME_CAST,UTF8_IS_UTF8MB3", "system_versioning_alter_history=KEEP",
			"binlog_row_image=MINIMAL",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := openPool(t, sharedServer(t).DSN(), append(tt.driverParameters, quoteSettings(tt.sessionSettings)...)...)
			requireContract(t, db, admin, tt.wantUnsafe...)
		})
	}
}

// In these sessions, nothing would be committed, or no text could be read. The store refuses them, so no handler
// runs, and Check reports them.
func TestSessionsThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	admin := openPool(t, sharedServer(t).DSN())
	for _, setting := range []string{"autocommit=0", "character_set_results=utf16"} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			db := openSessions(t, setting)
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
				requireUnsafeSettings(t, store.Table, "autocommit")
			} else {
				require.ErrorIs(t, store.Check(t.Context()), mysqlstore.ErrEngine)
			}
			require.Zero(t, queryValue[int](t, admin, "SELECT COUNT(*) FROM "+opts.Table))
		})
	}
}

// In a session whose clock stands still, leases never lapse.
func TestCheckOfAClockThatStandsStill(t *testing.T) {
	t.Parallel()
	_, table := newStore(t, openPool(t, sharedServer(t).DSN()))
	opts := mysqlstore.Options{Table: table}
	requireUnsafeSettings(t, mysqlstore.NewTable(openSessions(t, "timestamp=1"), opts), "timestamp")
}

// TestEverySetting sets each setting of a session to each of its values, or to its minimum and its maximum.
func TestEverySetting(t *testing.T) {
	if !*thorough {
		t.Skip("takes minutes: -args -thorough")
	}
	t.Parallel()
	admin := openPool(t, sharedServer(t).DSN())
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
			of = of[:len(of)-1] // "default" is last
			of = []string{strings.Join(of, "=on,") + "=on", strings.Join(of, "=off,") + "=off"}
		}
		if !slices.Contains(skippedSettings, name) {
			values[name] = of
		}
	}
	require.NoError(t, rows.Err())
	require.Greater(t, len(values), 100)
	for name, values := range values {
		for _, value := range values {
			t.Run(name+"="+value, func(t *testing.T) {
				t.Parallel()
				db := openSessions(t, name+"="+value)
				defer db.Close()
				if db.PingContext(t.Context()) != nil {
					t.Skip("no session can have it")
				}
				var unsafe []string
				if name == "sql_mode" && !strings.Contains(value, "STRICT") && value != "TRADITIONAL" {
					unsafe = []string{"sql_mode"}
				}
				requireContract(t, db, admin, unsafe...)
			})
		}
	}
}

// skippedSettings are the settings that Check reports, the clock, and settings whose small values make the server
// refuse statements or sorts.
var skippedSettings = []string{
	"autocommit", "tx_isolation", "tx_read_only", "timestamp", "max_session_mem_used", "tmp_disk_table_size",
	"sort_buffer_size",
}
