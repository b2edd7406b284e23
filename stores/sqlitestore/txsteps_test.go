package sqlitestore_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

// The handler's connections may begin their transactions with a lock (immediate) or without (deferred).
func TestTxStepsConform(t *testing.T) {
	t.Parallel()
	for name, parameters := range map[string]string{
		"deferred": "_pragma=busy_timeout(10000)", "immediate": "_pragma=busy_timeout(10000)&_txlock=immediate",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := newPath(t)
			store := openStore(t, path, sqlitestore.Options{})
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

// Restoring the file from a backup may lose the rows of a step together with the result of the step. The answer of
// the attempt is not stored then, because the rows are not there, and a retry writes the rows again.
func TestLostRowsOfSteps(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]string{
		"step": "UPDATE idempotency_records SET steps = NULL", "record": "DELETE FROM idempotency_records",
		"record that a renewal restores": "DELETE FROM idempotency_records",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := newPath(t)
			store := openStore(t, path, sqlitestore.Options{})
			runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{Lease: 3 * time.Second})
			require.NoError(t, err)
			db, runs := openConn(t, path), 0
			execStatement(t, db, "CREATE TABLE orders (name TEXT)")
			book := func() error {
				_, _, err := runner.Do(t.Context(), keyOf("key"), nil, func(ctx context.Context) (idempotency.Response, error) {
					runs++
					_, err := sqlitestore.DoTx(ctx, "book", func(tx *sql.Tx) (string, error) {
						_, err := tx.ExecContext(ctx, "INSERT INTO orders (name) VALUES ('row')")
						return "row", err
					})
					if runs == 1 {
						execStatement(t, db, lose)
						execStatement(t, db, "DELETE FROM orders")
						if name == "record that a renewal restores" {
							require.Eventually(t, func() bool { return queryValue[int](t, db, "SELECT count(*) FROM idempotency_records") == 1 },
								20*time.Second, 10*time.Millisecond)
						}
					}
					return idempotency.Response{Status: 201}, err
				})
				return err
			}
			require.ErrorIs(t, book(), idempotency.ErrClaimLost)
			execStatement(t, db, "UPDATE idempotency_records SET lease = 1") // the lease has lapsed
			require.NoError(t, book())
			require.NoError(t, book(), "a replay")
			require.Equal(t, 2, runs)
			require.Equal(t, 1, queryValue[int](t, db, "SELECT count(*) FROM orders"))
		})
	}
}
