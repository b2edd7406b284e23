package pgxstore_test

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/pgxstore"
)

// brokenCipher encrypts nothing.
type brokenCipher struct{}

var errCipher = errors.New("the key service is down")

func (brokenCipher) Encrypt(context.Context, []byte, []byte) ([]byte, error) { return nil, errCipher }

func (brokenCipher) Decrypt(context.Context, []byte, []byte) ([]byte, error) { return nil, errCipher }

// If the answer cannot be sealed, the handler's transaction ends at once, and its connection is free.
func TestTransactionWhoseAnswerCannotBeSealed(t *testing.T) {
	t.Parallel()
	direct := newPool(t, serverURL(t))
	execute(t, direct, `DROP TABLE IF EXISTS sealed_effects; CREATE TABLE sealed_effects (n int)`)
	pool := newPool(t, serverURL(t), func(c *pgxpool.Config) { c.MaxConns = 1 })
	store := pgxstore.NewTx(pool, newTable(t, direct, pgxstore.Options{}))
	handler := func(w http.ResponseWriter, r *http.Request) {
		tx, ok := pgxstore.Tx(r.Context())
		require.True(t, ok)
		_, err := tx.Exec(r.Context(), `INSERT INTO sealed_effects VALUES (1)`)
		require.NoError(t, err)
		w.WriteHeader(http.StatusCreated)
	}
	count := func() int64 { return one[int64](t, direct, `SELECT count(*) FROM sealed_effects`) }

	down := newMiddleware(t, mustSeal(t, store, brokenCipher{}), idempotency.Options{}, handler)
	for range 3 {
		got := post(down, "key")
		require.Equal(t, http.StatusServiceUnavailable, got.Code)
		require.Contains(t, got.Body.String(), "rolled-back")
		require.Zero(t, pool.Stat().AcquiredConns())
		require.Zero(t, count())
	}
	up := newMiddleware(t, mustSeal(t, store, nil), idempotency.Options{}, handler)
	for range 2 {
		require.Equal(t, http.StatusCreated, post(up, "key").Code)
		require.EqualValues(t, 1, count())
	}
	require.Equal(t, http.StatusServiceUnavailable, post(down, "key").Code)
	require.EqualValues(t, 1, count())
}
