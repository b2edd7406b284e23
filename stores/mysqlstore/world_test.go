package mysqlstore_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/mysqlstore"
)

// world is a store on a table of its own.
type world struct {
	db    *sql.DB
	store *mysqlstore.Store
	dsn   string
	table string
}

func newWorld(t testing.TB, settings ...string) *world {
	t.Helper()
	return newWorldAt(t, server(t).DSN(), settings...)
}

func newWorldAt(t testing.TB, dsn string, settings ...string) *world {
	t.Helper()
	db, opts := pool(t, dsn, settings...), newOptions()
	require.NoError(t, mysqlstore.Migrate(context.Background(), db, opts))
	return &world{db: db, store: mysqlstore.New(db, opts), dsn: dsn, table: opts.Table}
}

// newProxied returns a store that reaches its server through a proxy, and one that reaches it directly.
func newProxied(t *testing.T) (through, direct *world, proxy *servertest.Proxy) {
	t.Helper()
	m := server(t)
	proxy = servertest.NewProxy(t, m.Addr())
	direct = newWorldAt(t, m.DSN())
	db := pool(t, m.DSNAt(proxy.Addr()))
	through = &world{db: db, store: mysqlstore.New(db, mysqlstore.Options{Table: direct.table}), dsn: direct.dsn, table: direct.table}
	return through, direct, proxy
}

// other is a pool that the store does not use.
func (w *world) other(t testing.TB) *sql.DB {
	t.Helper()
	return pool(t, w.dsn)
}

// requireStored asks for a key, and returns the response that is stored.
func requireStored(t testing.TB, store idempotency.Store, key string) idempotency.Response {
	t.Helper()
	record, claim, err := store.Begin(context.Background(), keyOf(key), request)
	require.NoError(t, err)
	require.Nil(t, claim)
	require.NotNil(t, record.Response)
	return *record.Response
}
