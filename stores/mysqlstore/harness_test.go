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

// In this zone, local time changes twice a year.
const serverZone = "Europe/Berlin"

func TestMain(m *testing.M) {
	if dsn := os.Getenv(operationsDSNEnv); dsn != "" {
		runOperations(dsn)
		return
	}
	if dsn := os.Getenv(transfersDSNEnv); dsn != "" {
		runTransfers(dsn)
		return
	}
	servertest.SetEnv("TZ=" + serverZone)
	_ = mysql.SetLogger(new(mysql.NopLogger)) // hides the errors of connections that tests break
	code := m.Run()
	if startedServer != nil {
		startedServer.Close()
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// startSharedServer starts the server of the tests that do not change the server. Each test has its own tables.
var startSharedServer = sync.OnceValues(func() (m *servertest.Maria, err error) {
	startedServer, err = servertest.StartMariaDB("max_connections=1000")
	return startedServer, err
})

var startedServer *servertest.Maria // the shared server, or nil if no test has used it

// sharedServer returns the shared server.
func sharedServer(t testing.TB) *servertest.Maria {
	t.Helper()
	m, err := startSharedServer()
	servertest.Require(t, err)
	return m
}

// openPool opens a pool of connections with settings such as "clientFoundRows=true".
func openPool(t testing.TB, dsn string, settings ...string) *sql.DB {
	t.Helper()
	if len(settings) > 0 {
		dsn += "?" + strings.Join(settings, "&")
	}
	db, err := sql.Open("mysql", dsn)
	require.NoError(t, err)
	db.SetMaxOpenConns(20)
	db.SetMaxIdleConns(20)
	t.Cleanup(func() { _ = db.Close() }) // fails if the server has closed a connection
	return db
}

// newOptions returns options with a new table name.
func newOptions() mysqlstore.Options {
	return mysqlstore.Options{Table: "records_" + strings.ReplaceAll(uuid.NewString(), "-", "")}
}

// newStore returns a store with its own table, and the name of the table.
func newStore(t testing.TB, db *sql.DB) (*mysqlstore.Store, string) {
	t.Helper()
	opts := newOptions()
	require.NoError(t, mysqlstore.Migrate(context.Background(), db, opts))
	return mysqlstore.New(db, opts), opts.Table
}

func execStatement(t testing.TB, db *sql.DB, statement string, args ...any) {
	t.Helper()
	_, err := db.ExecContext(context.Background(), statement, args...)
	require.NoError(t, err)
}

func queryValue[T any](t testing.TB, db *sql.DB, query string, args ...any) (value T) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(context.Background(), query, args...).Scan(&value))
	return value
}

// The stores in databases share these helpers.
var (
	keyOf         = rowtest.KeyOf
	request       = rowtest.Request
	takeover      = rowtest.Takeover
	answer        = rowtest.Answer
	happened      = rowtest.Happened
	notHappened   = rowtest.NotHappened
	claimKey      = rowtest.MustBegin
	completeKey   = rowtest.MustComplete
	tryComplete   = rowtest.Complete
	requireStored = rowtest.MustReadResponse
	requireReplay = rowtest.RequireReplay
	inspectKey    = rowtest.MustInspect
)

// requireWaiting waits until a statement on the table has run for a tenth of a second, because it waits for another
// transaction.
func requireWaiting(t testing.TB, db *sql.DB, table string) {
	t.Helper()
	requireEventually(t, "a statement that waits", func() bool {
		return queryValue[int](t, db, "SELECT COUNT(*) FROM information_schema.PROCESSLIST "+
			"WHERE COMMAND IN ('Query', 'Execute') AND TIME_MS > 100 AND ID <> CONNECTION_ID() AND INFO LIKE ?", "%"+table+"%") > 0
	})
}

func requireEventually(t testing.TB, what string, happened func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); !happened(); <-tick.C {
		require.True(t, time.Now().Before(deadline), "waited for %s", what)
	}
}

// openPoolTo returns a pool whose new connections go to the address that addr returns at that time.
func openPoolTo(t testing.TB, dsn string, addr func() string) *sql.DB {
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
