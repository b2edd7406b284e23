package pgxstore_test

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// brokenCipher is a cipher whose calls always fail.
type brokenCipher struct{}

var errCipher = errors.New("the key service is down")

func (brokenCipher) Encrypt(context.Context, []byte, []byte) ([]byte, error) { return nil, errCipher }

func (brokenCipher) Decrypt(context.Context, []byte, []byte) ([]byte, error) { return nil, errCipher }

// If the result of a step cannot be sealed, the transaction is rolled back at once, and the connection is free.
func TestStepWhoseResultCannotBeSealed(t *testing.T) {
	t.Parallel()
	direct := newPool(t, serverURL(t))
	pool := newPool(t, serverURL(t), limitToOne)
	opts := newTable(t, direct, pgxstore.Options{})
	l, store := newLedger(t, direct, opts), pgxstore.New(pool, opts)
	handler := func(w http.ResponseWriter, r *http.Request) {
		_, err := pgxstore.DoTx(r.Context(), "book", func(tx pgx.Tx) (int, error) {
			_, err := tx.Exec(r.Context(), l.insertStatement(), "key")
			return 1, err
		})
		if err != nil {
			require.ErrorIs(t, err, errCipher)
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}
	count := func() int { return queryValue[int](t, direct, "SELECT count(*) FROM "+l.table) }

	down := newMiddleware(t, mustSeal(t, store, brokenCipher{}), idempotency.Options{}, handler)
	for range 3 {
		require.Equal(t, http.StatusServiceUnavailable, post(down, "key").Code)
		require.Zero(t, pool.Stat().AcquiredConns())
		require.Zero(t, count())
	}
	up := newMiddleware(t, mustSeal(t, store, nil), idempotency.Options{}, handler)
	for range 2 {
		require.Equal(t, http.StatusCreated, post(up, "key").Code)
		require.Equal(t, 1, count())
	}
}
