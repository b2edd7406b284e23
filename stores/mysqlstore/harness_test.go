package mysqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/internal/rowtest"
	"github.com/idempotency-go/idempotency/stores/mysqlstore"
)

// Here local time changes twice a year.
const zone = "Europe/Berlin"

func TestMain(m *testing.M) {
	if dsn := os.Getenv(mortalDSN); dsn != "" {
		live(dsn)
		return
	}
	if dsn := os.Getenv(mortalTxDSN); dsn != "" {
		liveTx(dsn)
		return
	}
	servertest.SetEnv("TZ=" + zone)
	_ = mysql.SetLogger(new(mysql.NopLogger)) // of the connections that tests break
	code := m.Run()
	if started != nil {
		started.Close()
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// shared is the server of the tests that change nothing about it. Each has tables of its own.
var shared = sync.OnceValues(func() (m *servertest.Maria, err error) {
	started, err = servertest.StartMariaDB("max_connections=1000")
	return started, err
})

var started *servertest.Maria // nil: no test has needed it

// server returns the shared server.
func server(t testing.TB) *servertest.Maria {
	t.Helper()
	m, err := shared()
	servertest.Require(t, err)
	return m
}

// pool returns a pool of connections, with settings such as "clientFoundRows=true".
func pool(t testing.TB, dsn string, settings ...string) *sql.DB {
	t.Helper()
	if len(settings) > 0 {
		dsn += "?" + strings.Join(settings, "&")
	}
	db, err := sql.Open("mysql", dsn)
	require.NoError(t, err)
	db.SetMaxOpenConns(20)
	db.SetMaxIdleConns(20)
	t.Cleanup(func() { _ = db.Close() }) // fails if the server has ended a connection meanwhile
	return db
}

// newOptions name a table that no other test has.
func newOptions() mysqlstore.Options {
	return mysqlstore.Options{Table: "records_" + strings.ReplaceAll(uuid.NewString(), "-", "")}
}

// newStore returns a store on a table of its own.
func newStore(t testing.TB, db *sql.DB) (*mysqlstore.Store, string) {
	t.Helper()
	opts := newOptions()
	require.NoError(t, mysqlstore.Migrate(context.Background(), db, opts))
	return mysqlstore.New(db, opts), opts.Table
}

func execute(t testing.TB, db *sql.DB, statement string, args ...any) {
	t.Helper()
	_, err := db.ExecContext(context.Background(), statement, args...)
	require.NoError(t, err)
}

func one[T any](t testing.TB, db *sql.DB, query string, args ...any) (value T) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(context.Background(), query, args...).Scan(&value))
	return value
}

// What the stores in databases have in common.
var (
	keyOf         = rowtest.KeyOf
	request       = rowtest.Request
	takeover      = rowtest.Takeover
	answer        = rowtest.Answer
	happened      = rowtest.Happened
	notHappened   = rowtest.NotHappened
	begun         = rowtest.MustBegin
	completed     = rowtest.MustComplete
	complete      = rowtest.Complete
	requireStored = rowtest.MustReadResponse
	requireReplay = rowtest.RequireReplay
	inspected     = rowtest.MustInspect
)

// requireWaiting waits until a statement on the table waits for another transaction: it has run for a tenth of a
// second.
func requireWaiting(t testing.TB, db *sql.DB, table string) {
	t.Helper()
	eventually(t, "a statement that waits", func() bool {
		return one[int](t, db, "SELECT COUNT(*) FROM information_schema.PROCESSLIST "+
			"WHERE COMMAND IN ('Query', 'Execute') AND TIME_MS > 100 AND ID <> CONNECTION_ID() AND INFO LIKE ?", "%"+table+"%") > 0
	})
}

func eventually(t testing.TB, what string, happened func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); !happened(); <-tick.C {
		require.True(t, time.Now().Before(deadline), "waited for %s", what)
	}
}

// poolTo returns a pool that connects to the server at the address which there is at the time.
func poolTo(t testing.TB, dsn string, addr func() string) *sql.DB {
	t.Helper()
	config, err := mysql.ParseDSN(dsn)
	require.NoError(t, err)
	config.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", addr())
	}
	connector, err := mysql.NewConnector(config)
	require.NoError(t, err)
	db := sql.OpenDB(connector)
	db.SetMaxIdleConns(20)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}
