package mysqlstore_test

import (
	"database/sql"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/stores/mysqlstore"
)

// findUnsafeSettings returns the values of the settings that Check reports, and the other errors of Check.
func findUnsafeSettings(t *testing.T, table *mysqlstore.Table) (unsafe map[string]string, others []error) {
	t.Helper()
	unsafe = make(map[string]string)
	joined, ok := table.Check(t.Context()).(interface{ Unwrap() []error })
	if !ok {
		return unsafe, nil
	}
	for _, err := range joined.Unwrap() {
		if finding, ok := errors.AsType[*idempotency.UnsafeSetting](err); ok {
			require.NotEmpty(t, finding.Node)
			require.NotEmpty(t, finding.Risk)
			unsafe[finding.Setting] = finding.Value
			continue
		}
		others = append(others, err)
	}
	return unsafe, others
}

func TestCheckOfASoundServer(t *testing.T) {
	t.Parallel()
	db := openPool(t, servertest.MariaDB(t, "innodb_flush_log_at_trx_commit=1", "log_bin=on", "sync_binlog=1").DSN())
	store, _ := newStore(t, db)
	require.NoError(t, store.Check(t.Context()))
}

func TestCheck(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		serverSettings  []string // settings of the server
		sessionSettings []string // settings of the session
		alteration      string   // the rest of ALTER TABLE
		limitPool       func(db *sql.DB)
		want            map[string]string
	}{
		"flush by the second": {serverSettings: []string{"innodb_flush_log_at_trx_commit=0"},
			want: map[string]string{"innodb_flush_log_at_trx_commit": "0"}},
		"flush to the system": {serverSettings: []string{"innodb_flush_log_at_trx_commit=2"},
			want: map[string]string{"innodb_flush_log_at_trx_commit": "2"}},
		"binlog": {serverSettings: []string{"log_bin=on", "sync_binlog=0"}, want: map[string]string{"sync_binlog": "0"}},
		"binlog of statements": {serverSettings: []string{"log_bin=on", "sync_binlog=1", "binlog_format=STATEMENT"},
			want: map[string]string{"binlog_format": "STATEMENT"}},
		"no binlog":   {serverSettings: []string{"sync_binlog=0"}},
		"doublewrite": {serverSettings: []string{"innodb_doublewrite=0"}, want: map[string]string{"innodb_doublewrite": "OFF"}},
		"not strict": {sessionSettings: []string{"sql_mode=%27ANSI_QUOTES%27"},
			want: map[string]string{"sql_mode": "ANSI_QUOTES"}},
		"strict otherwise": {sessionSettings: []string{"sql_mode=%27STRICT_ALL_TABLES%27"}},
		"packet": {serverSettings: []string{"max_allowed_packet=1M"},
			want: map[string]string{"max_allowed_packet": "1048576"}},
		"read-only":         {serverSettings: []string{"read_only=1"}, want: map[string]string{"read_only": "ON"}},
		"read-only session": {sessionSettings: []string{"tx_read_only=1"}, want: map[string]string{"tx_read_only": "ON"}},
		"no autocommit":     {sessionSettings: []string{"autocommit=0"}, want: map[string]string{"autocommit": "OFF"}},
		"uncommitted": {sessionSettings: []string{"tx_isolation=%27READ-UNCOMMITTED%27"},
			want: map[string]string{"tx_isolation": "READ-UNCOMMITTED"}},
		"clock":  {serverSettings: []string{"sysdate_is_now=1"}, want: map[string]string{"sysdate_is_now": "ON"}},
		"engine": {alteration: "ENGINE = Aria", want: map[string]string{"ENGINE of table `{t}`": "Aria"}},
		"no index": {alteration: "DROP KEY expires",
			want: map[string]string{"index of table `{t}`": "missing on expires"}},
		"primary key": {alteration: "DROP PRIMARY KEY, ADD PRIMARY KEY (operation, expires)",
			want: map[string]string{"PRIMARY KEY of table `{t}`": "not (operation)"}},
		"no limit": {limitPool: func(db *sql.DB) { db.SetMaxOpenConns(0) }, want: map[string]string{"MaxOpenConns": "unlimited"}},
		"high limit": {serverSettings: []string{"max_connections=30"}, limitPool: func(db *sql.DB) { db.SetMaxOpenConns(31) },
			want: map[string]string{"MaxOpenConns": "31"}},
		"enough": {serverSettings: []string{"max_connections=30"}, limitPool: func(db *sql.DB) { db.SetMaxOpenConns(30) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := sharedServer(t)
			want := map[string]string{"innodb_flush_log_at_trx_commit": "2"} // the setting of the shared server
			if tt.serverSettings != nil {
				m = servertest.MariaDB(t, append([]string{"innodb_flush_log_at_trx_commit=1"}, tt.serverSettings...)...)
				want = map[string]string{}
			}
			_, table := newStore(t, openPool(t, m.DSN()))
			if tt.alteration != "" {
				execStatement(t, openPool(t, m.DSN()), "ALTER TABLE "+table+" "+tt.alteration)
			}
			for setting, value := range tt.want {
				want[strings.ReplaceAll(setting, "{t}", table)] = value
			}
			db := openPool(t, m.DSN(), tt.sessionSettings...)
			if tt.limitPool != nil {
				tt.limitPool(db)
			}
			got, others := findUnsafeSettings(t, mysqlstore.NewTable(db, mysqlstore.Options{Table: table}))
			require.Empty(t, others)
			require.Equal(t, want, got)
		})
	}
}

func TestCheckOfTheTable(t *testing.T) {
	t.Parallel()
	db := openPool(t, sharedServer(t).DSN())
	opts := newOptions()
	_, others := findUnsafeSettings(t, mysqlstore.NewTable(db, opts))
	require.Len(t, others, 1)
	require.ErrorContains(t, others[0], "call Migrate")
}

// Check and Migrate report a table that differs from the table that Migrate creates, unless stores can work with the
// difference.
func TestTableDiffers(t *testing.T) {
	t.Parallel()
	db := openPool(t, sharedServer(t).DSN())
	for alteration, want := range map[string]string{
		"COMMENT 'idempotency records, version 99'": `version 99", not "idempotency records, version 1"`,
		"COMMENT ''":                                                         `is "", not "idempotency records, version 1"`,
		"DROP COLUMN fingerprint":                                            "lacks the column fingerprint",
		"ADD COLUMN note TEXT NOT NULL":                                      "has the column note, which the store does not fill",
		"ADD COLUMN note INT NOT NULL FIRST":                                 "has the column note, which the store does not fill",
		"ADD COLUMN note INT NOT NULL DEFAULT 1":                             "",
		"ADD COLUMN note TEXT":                                               "",
		"ADD COLUMN note INT NOT NULL UNIQUE AUTO_INCREMENT":                 "",
		"ADD COLUMN note INT AS (attempt + 1) STORED":                        "",
		"ADD COLUMN note TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)": "",
		"RENAME COLUMN token TO mark":                                        "lacks the column token",
	} {
		t.Run(alteration, func(t *testing.T) {
			t.Parallel()
			opts := newOptions()
			require.NoError(t, mysqlstore.Migrate(t.Context(), db, opts))
			execStatement(t, db, "ALTER TABLE "+opts.Table+" "+alteration)
			_, others := findUnsafeSettings(t, mysqlstore.NewTable(db, opts))
			err := mysqlstore.Migrate(t.Context(), db, opts)
			if want == "" {
				require.Empty(t, others)
				require.NoError(t, err)
				completeKey(t, mysqlstore.New(db, opts), "key")
				return
			}
			require.Len(t, others, 1)
			require.ErrorContains(t, others[0], want)
			require.ErrorContains(t, err, "mysqlstore: migrate: ")
			require.ErrorContains(t, err, want)
		})
	}
}

// Both idempotency.New and Begin report faulty options.
func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	for _, opts := range []mysqlstore.Options{{IdleTimeout: -1}, {IdleTimeout: 1000 * time.Hour}, {Table: "`"}} {
		store := mysqlstore.New(openPool(t, sharedServer(t).DSN()), opts)
		require.ErrorContains(t, store.Validate(idempotency.RunnerOptions{}), "mysqlstore: ")
		_, _, err := store.Begin(t.Context(), keyOf("key"), request)
		require.ErrorContains(t, err, "mysqlstore: ")
		require.Nil(t, testservice.InDoubt(err))
	}
}

// Whoever meets no table is told what makes it.
func TestThereIsNoTable(t *testing.T) {
	t.Parallel()
	db := openPool(t, sharedServer(t).DSN())
	for name, of := range map[string]func(mysqlstore.Options) error{
		"New":      func(opts mysqlstore.Options) error { return tryComplete(mysqlstore.New(db, opts), "key") },
		"Maintain": func(opts mysqlstore.Options) error { return mysqlstore.NewTable(db, opts).Maintain(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorContains(t, of(newOptions()), "there is no table of records: call Migrate")
		})
	}
}

// A user who may do no more than make the table sees no columns, and Migrate blames none.
func TestMigrateWithoutOtherPrivileges(t *testing.T) {
	t.Parallel()
	m := servertest.MariaDB(t)
	execStatement(t, openPool(t, m.DSN()), "CREATE USER migrator@'127.0.0.1' IDENTIFIED BY 'm'")
	execStatement(t, openPool(t, m.DSN()), "GRANT CREATE ON test.* TO migrator@'127.0.0.1'")
	db := openPool(t, "migrator:m@tcp("+m.Addr()+")/test")
	for range 2 {
		require.NoError(t, mysqlstore.Migrate(t.Context(), db, mysqlstore.Options{}))
	}
	execStatement(t, openPool(t, m.DSN()), "ALTER TABLE idempotency_records COMMENT 'idempotency records, version 2'")
	require.ErrorContains(t, mysqlstore.Migrate(t.Context(), db, mysqlstore.Options{}), "records, version 2")
}

// Check reports missing privileges of a user, and reports nothing if the user has all privileges for the statements.
func TestCheckOfPrivileges(t *testing.T) {
	t.Parallel()
	m := servertest.MariaDB(t)
	admin := openPool(t, m.DSN())
	require.NoError(t, mysqlstore.Migrate(t.Context(), admin, mysqlstore.Options{}))
	execStatement(t, admin, "CREATE USER app@'127.0.0.1' IDENTIFIED BY 'app'")
	execStatement(t, admin, "GRANT SELECT, INSERT, UPDATE ON test.idempotency_records TO app@'127.0.0.1'")
	db := openPool(t, "app:app@tcp("+m.Addr()+")/test")
	_, others := findUnsafeSettings(t, mysqlstore.NewTable(db, mysqlstore.Options{}))
	require.Len(t, others, 1)
	require.ErrorContains(t, others[0], "delete_expired: Error 1142")
	execStatement(t, admin, "GRANT DELETE ON test.idempotency_records TO app@'127.0.0.1'")
	_, others = findUnsafeSettings(t, mysqlstore.NewTable(openPool(t, "app:app@tcp("+m.Addr()+")/test"), mysqlstore.Options{}))
	require.Empty(t, others)
	completeKey(t, mysqlstore.New(db, mysqlstore.Options{}), "key")
}

// A promoted asynchronous replica may lack the last records.
func TestCheckOfReplicas(t *testing.T) {
	t.Parallel()
	own := []string{"innodb_flush_log_at_trx_commit=1", "log_bin=on", "sync_binlog=1"}
	primary := servertest.MariaDB(t, append(own, "server_id=1")...)
	replica := servertest.MariaDB(t, "server_id=2")
	db := openPool(t, primary.DSN())
	store, _ := newStore(t, db)
	require.NoError(t, store.Check(t.Context()))
	execStatement(t, db, "CREATE USER replica@'127.0.0.1' IDENTIFIED BY 'replica'")
	execStatement(t, db, "GRANT REPLICATION SLAVE ON *.* TO replica@'127.0.0.1'")
	_, port, err := net.SplitHostPort(primary.Addr())
	require.NoError(t, err)
	follower := openPool(t, replica.DSN())
	execStatement(t, follower, fmt.Sprintf("CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = %s, "+
		"MASTER_USER = 'replica', MASTER_PASSWORD = 'replica'", port))
	execStatement(t, follower, "START SLAVE")
	want := map[string]string{"replication": "asynchronous"}
	requireEventually(t, "the replica", func() bool {
		got, _ := findUnsafeSettings(t, store.Table)
		return len(got) > 0
	})
	got, others := findUnsafeSettings(t, store.Table)
	require.Empty(t, others)
	require.Equal(t, want, got)
	execStatement(t, db, "SET GLOBAL rpl_semi_sync_master_enabled = 1")
	require.NoError(t, store.Check(t.Context()))
}

func TestCheckOfNoServer(t *testing.T) {
	t.Parallel()
	_, others := findUnsafeSettings(t, mysqlstore.NewTable(openPool(t, "nobody@tcp(127.0.0.1:1)/test"), mysqlstore.Options{}))
	require.Len(t, others, 1)
	require.ErrorContains(t, others[0], "mysqlstore: check: dial tcp 127.0.0.1:1")
}
