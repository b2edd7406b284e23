package sqlitestore_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/sqlitestore"
)

// The handler's own connections may begin their transactions with a lock or without.
func TestTxStepsConform(t *testing.T) {
	t.Parallel()
	for name, parameters := range map[string]string{
		"deferred": "_pragma=busy_timeout(10000)", "immediate": "_pragma=busy_timeout(10000)&_txlock=immediate",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := newPath(t)
			store := open(t, path, sqlitestore.Options{})
			db, err := sql.Open("sqlite", "file:"+path+"?"+parameters)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, db.Close()) })
			_, err = db.Exec("CREATE TABLE orders (name TEXT)")
			require.NoError(t, err)
			idempotencytest.RunTxSteps(t, func(*testing.T) idempotency.Store { return store }, idempotencytest.Transactions[*sql.Tx]{
				Write: func(ctx context.Context, tx *sql.Tx, name string) error {
					_, err := tx.ExecContext(ctx, "INSERT INTO orders (name) VALUES (?)", name)
					return err
				},
				Count: func(ctx context.Context, name string) (n int, err error) {
					err = db.QueryRowContext(ctx, "SELECT count(*) FROM orders WHERE name = ?", name).Scan(&n)
					return n, err
				},
				Begin:    func(ctx context.Context) (*sql.Tx, error) { return db.BeginTx(ctx, nil) },
				Commit:   func(_ context.Context, tx *sql.Tx) error { return tx.Commit() },
				Rollback: func(_ context.Context, tx *sql.Tx) error { return tx.Rollback() },
			})
		})
	}
}
