package sqlitestore_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/seal"
	"github.com/idempotency-go/idempotency/sqlitestore"
)

// A transactional store conforms with all options set and sealed, too.
func TestSealedTxStoreConforms(t *testing.T) {
	t.Parallel()
	conform(t, func(path string) idempotency.Store {
		sealed, err := seal.New(
			openTx(t, path, sqlitestore.Options{
				Synchronous: sqlitestore.Normal, MaxBytes: 256 << 20, Parameters: "_time_format=sqlite&_fk=1",
			}),
			seal.Options{Keys: []seal.Key{{ID: "1", Secret: make([]byte, 32)}}},
		)
		require.NoError(t, err)
		return sealed
	})
}

// conform runs both suites on a store.
func conform(t *testing.T, open func(path string) idempotency.Store) {
	path := newPath(t)
	store := open(path)
	newStore := func(*testing.T) idempotency.Store { return store }
	idempotencytest.Run(t, newStore)
	effect, count := effects(t, path)
	idempotencytest.RunTx(t, newStore, effect, count)
}

// effects returns what makes an effect, and what counts those that are committed.
func effects(t *testing.T, path string) (
	effect func(ctx context.Context, name string) error, count func(ctx context.Context, name string) (int, error),
) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	_, err = db.ExecContext(t.Context(), "CREATE TABLE effects (name TEXT)")
	require.NoError(t, err)
	effect = func(ctx context.Context, name string) error {
		tx, ok := sqlitestore.Tx(ctx)
		if !ok {
			return errors.New("no transaction")
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO effects VALUES (?)", name)
		return err
	}
	count = func(ctx context.Context, name string) (n int, err error) {
		err = db.QueryRowContext(ctx, "SELECT count(*) FROM effects WHERE name = ?", name).Scan(&n)
		return n, err
	}
	return effect, count
}

// Stores with the same file do not disturb each other, as long as each key is asked for at one of them.
func TestTxStoresShareOneFile(t *testing.T) {
	t.Parallel()
	conform(t, func(path string) idempotency.Store {
		return divided{openTx(t, path, sqlitestore.Options{}), openTx(t, path, sqlitestore.Options{})}
	})
}

// divided has a store for each half of the keys.
type divided [2]*sqlitestore.TxStore

func (d divided) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	digest := key.Digest()
	return d[digest[0]%2].Begin(ctx, key, request)
}

func (d divided) Transactional() bool { return true }
