package pgxstore_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/internal/rowtest"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// Most tests wait most of the time, so more of them run in parallel than there are processors.
func TestMain(m *testing.M) {
	if level := os.Getenv(transfersLevelEnv); level != "" {
		runTransfers(pgx.TxIsoLevel(level))
	}
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// startSharedServer starts the PostgreSQL server of all tests that do not break the server. The server ends with
// this process.
var startSharedServer = sync.OnceValues(func() (*servertest.Database, error) {
	return servertest.StartPostgres("max_connections=800")
})

func serverURL(t testing.TB) string {
	t.Helper()
	db, err := startSharedServer()
	servertest.Require(t, err)
	return db.URL()
}

// newPool returns a pool of connections to the server at url.
func newPool(t testing.TB, url string, changes ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	require.NoError(t, err)
	config.MaxConns = 16
	for _, change := range changes {
		change(config)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

var tableCount atomic.Int64

// newTable creates a new table for a test, and returns opts with its name.
func newTable(t testing.TB, pool *pgxpool.Pool, opts pgxstore.Options) pgxstore.Options {
	t.Helper()
	opts.Table = fmt.Sprintf("Records %d", tableCount.Add(1))
	require.NoError(t, pgxstore.Migrate(context.Background(), pool, opts))
	return opts
}

// tableName returns the quoted name of the table of opts.
func tableName(opts pgxstore.Options) string { return pgx.Identifier{opts.Table}.Sanitize() }

func queryValue[T any](t testing.TB, pool *pgxpool.Pool, sql string, args ...any) (value T) {
	t.Helper()
	require.NoError(t, pool.QueryRow(context.Background(), sql, args...).Scan(&value))
	return value
}

func execStatement(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	_, err := pool.Exec(context.Background(), sql, args...)
	require.NoError(t, err)
}

var keyOf = rowtest.KeyOf

func queryColumn[T any](t testing.TB, pool *pgxpool.Pool, sql string, args ...any) []T {
	t.Helper()
	rows, err := pool.Query(context.Background(), sql, args...)
	require.NoError(t, err)
	values, err := pgx.CollectRows(rows, pgx.RowTo[T])
	require.NoError(t, err)
	return values
}

// newMiddleware returns handler behind the middleware with store.
func newMiddleware(t testing.TB, store idempotency.Store, opts idempotency.Options, handler http.HandlerFunc) http.Handler {
	t.Helper()
	opts.Logger = slog.New(slog.DiscardHandler)
	m, err := idempotency.New(store, idempotency.SingleUser, opts)
	require.NoError(t, err)
	return m.Handler(handler)
}

func post(h http.Handler, key string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodPost, "/payments", nil)
	r.Header.Set("Idempotency-Key", key)
	h.ServeHTTP(w, r)
	return w
}
