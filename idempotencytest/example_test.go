package idempotencytest_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
)

// A store is tested by a test of one call, here one in the memory of the process.
func ExampleRun() {
	var t *testing.T // of func TestStore(t *testing.T)

	idempotencytest.Run(t, func(t *testing.T) idempotency.Store {
		return idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	})
}

// A transactional store is tested by a second call, which has effects made in the transactions that it offers to
// handlers.
func ExampleRunTx() {
	var (
		t        *testing.T // of func TestTxStore(t *testing.T)
		db       *sql.DB
		newStore func(*testing.T) idempotency.Store         // with its records in db
		txOf     func(ctx context.Context) (*sql.Tx, error) // with which the store offers its transaction
	)

	effect := func(ctx context.Context, name string) error {
		tx, err := txOf(ctx)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "INSERT INTO effects (name) VALUES (?)", name)
		return err
	}
	count := func(ctx context.Context, name string) (n int, err error) {
		err = db.QueryRowContext(ctx, "SELECT count(*) FROM effects WHERE name = ?", name).Scan(&n)
		return n, err
	}
	idempotencytest.Run(t, newStore)
	idempotencytest.RunTx(t, newStore, effect, count)
}

// A store that people can ask what has happened is tested by one more call.
func ExampleRunInspector() {
	var t *testing.T // of func TestInspector(t *testing.T)

	idempotencytest.RunInspector(t, func(t *testing.T) idempotency.Store {
		return idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	})
}
