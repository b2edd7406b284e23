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

// tableStore is a store with its own table.
type tableStore struct {
	db    *sql.DB
	store *mysqlstore.Store
	dsn   string
	table string
}

func newTableStore(t testing.TB, settings ...string) *tableStore {
	t.Helper()
	return newTableStoreAt(t, sharedServer(t).DSN(), settings...)
}

func newTableStoreAt(t testing.TB, dsn string, settings ...string) *tableStore {
	t.Helper()
	db, opts := openPool(t, dsn, settings...), newOptions()
	require.NoError(t, mysqlstore.Migrate(context.Background(), db, opts))
	return &tableStore{db: db, store: mysqlstore.New(db, opts), dsn: dsn, table: opts.Table}
}

// newProxiedStore returns a store that reaches its server through a proxy, and one that reaches its server directly.
func newProxiedStore(t *testing.T) (through, direct *tableStore, proxy *servertest.Proxy) {
	t.Helper()
	m := sharedServer(t)
	proxy = servertest.NewProxy(t, m.Addr())
	direct = newTableStoreAt(t, m.DSN())
	db := openPool(t, m.DSNAt(proxy.Addr()))
	through = &tableStore{db: db, store: mysqlstore.New(db, mysqlstore.Options{Table: direct.table}), dsn: direct.dsn,
		table: direct.table}
	return through, direct, proxy
}

// openOtherPool returns a pool that the store does not use.
func (w *tableStore) openOtherPool(t testing.TB) *sql.DB {
	t.Helper()
	return openPool(t, w.dsn)
}

func (w *tableStore) newRowSubject() rowtest.Subject {
	return rowtest.Subject{
		Store: w.store,
		Set: func(t testing.TB, key, set string) {
			operation := keyOf(key).OperationID()
			execStatement(t, w.db, "UPDATE "+w.table+" SET "+set+" WHERE operation = ?", operation[:])
		},
		Dump: func(t testing.TB, key string) string {
			operation := keyOf(key).OperationID()
			return queryValue[string](t, w.db, "SELECT "+
				"COALESCE(MAX(CONCAT_WS(' ', HEX(token), attempt, created, lease, expires, response)), '') "+
				"FROM "+w.table+" WHERE operation = ?", operation[:])
		},
		Lapse: "lease = lease - 3600000000",
	}
}

func newSubject(t testing.TB) rowtest.Subject {
	t.Helper()
	return newTableStore(t).newRowSubject()
}
