package mysqlstore_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/internal/rowtest"
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

func (w *world) subject() rowtest.Subject {
	return rowtest.Subject{
		Store: w.store,
		Set: func(t testing.TB, key, set string) {
			digest := keyOf(key).Digest()
			execute(t, w.db, "UPDATE "+w.table+" SET "+set+" WHERE digest = ?", digest[:])
		},
		Dump: func(t testing.TB, key string) string {
			digest := keyOf(key).Digest()
			return one[string](t, w.db, "SELECT COALESCE(MAX(CONCAT_WS(' ', HEX(token), attempt, created, lease, expires, response)), '') "+
				"FROM "+w.table+" WHERE digest = ?", digest[:])
		},
		Lapse: "lease = lease - 3600000000",
	}
}

func newSubject(t testing.TB) rowtest.Subject {
	t.Helper()
	return newWorld(t).subject()
}
