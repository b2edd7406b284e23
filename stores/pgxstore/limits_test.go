package pgxstore_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// A standby executes no operation. Its errors are temporary, because the pool may reach the primary later.
func TestStandby(t *testing.T) {
	t.Parallel()
	db := servertest.Postgres(t)
	pool := newPool(t, db.URL())
	opts := newTable(t, pool, pgxstore.Options{})
	key := keyOf("before")
	_, claim, err := pgxstore.New(pool, opts).Begin(t.Context(), key, attempt)
	require.NoError(t, err)
	require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
	execStatement(t, pool, "ALTER SYSTEM SET synchronous_standby_names = '*'") // as on a standby that may be promoted
	require.NoError(t, db.Standby())
	store := pgxstore.New(pool, opts)
	h := newMiddleware(t, store, idempotency.Options{}, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
	})
	w := post(h, "1")
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
	require.Equal(t, "1", w.Header().Get("Retry-After"))
	record, _, err := store.Begin(t.Context(), key, attempt)
	require.NoError(t, err)
	require.Equal(t, &answer, record.Response, "what the standby has is replayed")
}
