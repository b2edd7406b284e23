package mysqlstore_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/mysqlstore"
)

// Many processes may migrate at the same time, each time they start.
func TestMigrateAtOnce(t *testing.T) {
	t.Parallel()
	db := openPool(t, sharedServer(t).DSN())
	for range 5 {
		opts := newOptions()
		var migrating sync.WaitGroup
		errs := make([]error, 8)
		for i := range errs {
			migrating.Go(func() { errs[i] = mysqlstore.Migrate(t.Context(), db, opts) })
		}
		migrating.Wait()
		for _, err := range errs {
			require.NoError(t, err)
		}
		completeKey(t, mysqlstore.New(db, opts), "key")
		require.NoError(t, mysqlstore.Migrate(t.Context(), db, opts))
		requireReplay(t, mysqlstore.New(db, opts), "key")
	}
}

// Other tools can apply the same migrations, and undo them.
func TestMigrations(t *testing.T) {
	t.Parallel()
	db := openPool(t, servertest.MariaDB(t).DSN())
	const tables = "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'test'"
	migrations := mysqlstore.Migrations(mysqlstore.Options{})
	for range 2 {
		for i, m := range migrations {
			require.Equal(t, i+1, m.Version)
			execStatement(t, db, m.SQL)
		}
	}
	completeKey(t, mysqlstore.New(db, mysqlstore.Options{}), "key")
	require.Equal(t, 1, queryValue[int](t, db, "SELECT COUNT(*) FROM idempotency_records"))
	for range 2 {
		for _, m := range migrations {
			execStatement(t, db, m.Down)
		}
	}
	require.Equal(t, 0, queryValue[int](t, db, tables))
}
