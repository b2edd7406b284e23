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

// findings returns the settings that Check warns of, and its other errors.
func findings(t *testing.T, table *mysqlstore.Table) (unsafe map[string]string, others []error) {
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
	db := pool(t, servertest.MariaDB(t, "innodb_flush_log_at_trx_commit=1", "log_bin=on", "sync_binlog=1").DSN())
	store, _ := newStore(t, db)
	require.NoError(t, store.Check(t.Context()))
}

func TestCheck(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		server  []string // settings of the server
		session []string // of the session
		table   string   // what is done to the table
		pool    func(db *sql.DB)
		want    map[string]string
	}{
		"flush by the second": {server: []string{"innodb_flush_log_at_trx_commit=0"},
			want: map[string]string{"innodb_flush_log_at_trx_commit": "0"}},
		"flush to the system": {server: []string{"innodb_flush_log_at_trx_commit=2"},
			want: map[string]string{"innodb_flush_log_at_trx_commit": "2"}},
		"binlog": {server: []string{"log_bin=on", "sync_binlog=0"}, want: map[string]string{"sync_binlog": "0"}},
		"binlog of statements": {server: []string{"log_bin=on", "sync_binlog=1", "binlog_format=STATEMENT"},
			want: map[string]string{"binlog_format": "STATEMENT"}},
		"no binlog":   {server: []string{"sync_binlog=0"}},
		"doublewrite": {server: []string{"innodb_doublewrite=0"}, want: map[string]string{"innodb_doublewrite": "OFF"}},
		"not strict": {session: []string{"sql_mode=%27ANSI_QUOTES%27"},
			want: map[string]string{"sql_mode": "ANSI_QUOTES"}},
		"strict otherwise": {session: []string{"sql_mode=%27STRICT_ALL_TABLES%27"}},
		"packet": {server: []string{"max_allowed_packet=1M"},
			want: map[string]string{"max_allowed_packet": "1048576"}},
		"read-only":         {server: []string{"read_only=1"}, want: map[string]string{"read_only": "ON"}},
		"read-only session": {session: []string{"tx_read_only=1"}, want: map[string]string{"tx_read_only": "ON"}},
		"no autocommit":     {session: []string{"autocommit=0"}, want: map[string]string{"autocommit": "OFF"}},
		"uncommitted": {session: []string{"tx_isolation=%27READ-UNCOMMITTED%27"},
			want: map[string]string{"tx_isolation": "READ-UNCOMMITTED"}},
		"clock":  {server: []string{"sysdate_is_now=1"}, want: map[string]string{"sysdate_is_now": "ON"}},
		"engine": {table: "ENGINE = Aria", want: map[string]string{"ENGINE of table `{t}`": "Aria"}},
		"no index": {table: "DROP KEY expires",
			want: map[string]string{"index of table `{t}`": "missing on expires"}},
		"primary key": {table: "DROP PRIMARY KEY, ADD PRIMARY KEY (digest, expires)",
			want: map[string]string{"PRIMARY KEY of table `{t}`": "not (digest)"}},
		"no limit": {pool: func(db *sql.DB) { db.SetMaxOpenConns(0) }, want: map[string]string{"MaxOpenConns": "unlimited"}},
		"high limit": {server: []string{"max_connections=30"}, pool: func(db *sql.DB) { db.SetMaxOpenConns(31) },
			want: map[string]string{"MaxOpenConns": "31"}},
		"enough": {server: []string{"max_connections=30"}, pool: func(db *sql.DB) { db.SetMaxOpenConns(30) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := server(t)
			want := map[string]string{"innodb_flush_log_at_trx_commit": "2"} // that of the shared server
			if tt.server != nil {
				m = servertest.MariaDB(t, append([]string{"innodb_flush_log_at_trx_commit=1"}, tt.server...)...)
				want = map[string]string{}
			}
			_, table := newStore(t, pool(t, m.DSN()))
			if tt.table != "" {
				execute(t, pool(t, m.DSN()), "ALTER TABLE "+table+" "+tt.table)
			}
			for setting, value := range tt.want {
				want[strings.ReplaceAll(setting, "{t}", table)] = value
			}
			db := pool(t, m.DSN(), tt.session...)
			if tt.pool != nil {
				tt.pool(db)
			}
			got, others := findings(t, mysqlstore.NewTable(db, mysqlstore.Options{Table: table}))
			require.Empty(t, others)
			require.Equal(t, want, got)
		})
	}
}

func TestCheckOfTheTable(t *testing.T) {
	t.Parallel()
	db := pool(t, server(t).DSN())
	opts := newOptions()
	_, others := findings(t, mysqlstore.NewTable(db, opts))
	require.Len(t, others, 1)
	require.ErrorContains(t, others[0], "call Migrate")
}

// Check and Migrate tell of a table that is not as Migrate makes it. One that stores can work on is none of these.
func TestTableDiffers(t *testing.T) {
	t.Parallel()
	db := pool(t, server(t).DSN())
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
			execute(t, db, "ALTER TABLE "+opts.Table+" "+alteration)
			_, others := findings(t, mysqlstore.NewTable(db, opts))
			err := mysqlstore.Migrate(t.Context(), db, opts)
			if want == "" {
				require.Empty(t, others)
				require.NoError(t, err)
				completed(t, mysqlstore.New(db, opts), "key")
				return
			}
			require.Len(t, others, 1)
			require.ErrorContains(t, others[0], want)
			require.ErrorContains(t, err, "mysqlstore: migrate: ")
			require.ErrorContains(t, err, want)
		})
	}
}

// Options that are wrong are said by New of package idempotency, and by Begin.
func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	for _, opts := range []mysqlstore.Options{{IdleTimeout: -1}, {IdleTimeout: 1000 * time.Hour}, {Table: "`"}} {
		store := mysqlstore.New(pool(t, server(t).DSN()), opts)
		require.ErrorContains(t, store.Validate(idempotency.RunnerOptions{}), "mysqlstore: ")
		_, _, err := store.Begin(t.Context(), keyOf("key"), request)
		require.ErrorContains(t, err, "mysqlstore: ")
		require.Nil(t, testservice.InDoubt(err))
	}
}

// Whoever meets no table is told what makes it.
func TestThereIsNoTable(t *testing.T) {
	t.Parallel()
	db := pool(t, server(t).DSN())
	for name, of := range map[string]func(mysqlstore.Options) error{
		"New":      func(opts mysqlstore.Options) error { return complete(mysqlstore.New(db, opts), "key") },
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
	execute(t, pool(t, m.DSN()), "CREATE USER migrator@'127.0.0.1' IDENTIFIED BY 'm'")
	execute(t, pool(t, m.DSN()), "GRANT CREATE ON test.* TO migrator@'127.0.0.1'")
	db := pool(t, "migrator:m@tcp("+m.Addr()+")/test")
	for range 2 {
		require.NoError(t, mysqlstore.Migrate(t.Context(), db, mysqlstore.Options{}))
	}
	execute(t, pool(t, m.DSN()), "ALTER TABLE idempotency_records COMMENT 'idempotency records, version 2'")
	require.ErrorContains(t, mysqlstore.Migrate(t.Context(), db, mysqlstore.Options{}), "records, version 2")
}

// A user who may not do what the statements do is told so, and one who may is not.
func TestCheckOfPrivileges(t *testing.T) {
	t.Parallel()
	m := servertest.MariaDB(t)
	admin := pool(t, m.DSN())
	require.NoError(t, mysqlstore.Migrate(t.Context(), admin, mysqlstore.Options{}))
	execute(t, admin, "CREATE USER app@'127.0.0.1' IDENTIFIED BY 'app'")
	execute(t, admin, "GRANT SELECT, INSERT, UPDATE ON test.idempotency_records TO app@'127.0.0.1'")
	db := pool(t, "app:app@tcp("+m.Addr()+")/test")
	_, others := findings(t, mysqlstore.NewTable(db, mysqlstore.Options{}))
	require.Len(t, others, 1)
	require.ErrorContains(t, others[0], "delete_expired: Error 1142")
	execute(t, admin, "GRANT DELETE ON test.idempotency_records TO app@'127.0.0.1'")
	_, others = findings(t, mysqlstore.NewTable(pool(t, "app:app@tcp("+m.Addr()+")/test"), mysqlstore.Options{}))
	require.Empty(t, others)
	completed(t, mysqlstore.New(db, mysqlstore.Options{}), "key")
}

// A replica that nobody waits for may be promoted without the last records.
func TestCheckOfReplicas(t *testing.T) {
	t.Parallel()
	own := []string{"innodb_flush_log_at_trx_commit=1", "log_bin=on", "sync_binlog=1"}
	primary := servertest.MariaDB(t, append(own, "server_id=1")...)
	replica := servertest.MariaDB(t, "server_id=2")
	db := pool(t, primary.DSN())
	store, _ := newStore(t, db)
	require.NoError(t, store.Check(t.Context()))
	execute(t, db, "CREATE USER replica@'127.0.0.1' IDENTIFIED BY 'replica'")
	execute(t, db, "GRANT REPLICATION SLAVE ON *.* TO replica@'127.0.0.1'")
	_, port, err := net.SplitHostPort(primary.Addr())
	require.NoError(t, err)
	follower := pool(t, replica.DSN())
	execute(t, follower, fmt.Sprintf("CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = %s, "+
		"MASTER_USER = 'replica', MASTER_PASSWORD = 'replica'", port))
	execute(t, follower, "START SLAVE")
	want := map[string]string{"replication": "asynchronous"}
	eventually(t, "the replica", func() bool {
		got, _ := findings(t, store.Table)
		return len(got) > 0
	})
	got, others := findings(t, store.Table)
	require.Empty(t, others)
	require.Equal(t, want, got)
	execute(t, db, "SET GLOBAL rpl_semi_sync_master_enabled = 1")
	require.NoError(t, store.Check(t.Context()))
}

func TestCheckOfNoServer(t *testing.T) {
	t.Parallel()
	_, others := findings(t, mysqlstore.NewTable(pool(t, "nobody@tcp(127.0.0.1:1)/test"), mysqlstore.Options{}))
	require.Len(t, others, 1)
	require.ErrorContains(t, others[0], "mysqlstore: check: dial tcp 127.0.0.1:1")
}
