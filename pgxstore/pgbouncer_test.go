package pgxstore_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/internal/servertest"
	"github.com/idempotency-go/idempotency/pgxstore"
)

// Both stores keep their contract behind PgBouncer in transaction mode, where statements of one client go to any
// session of the server and only transactions stay together.
func TestPgBouncer(t *testing.T) {
	t.Parallel()
	url := pgBouncer(t)
	direct := newPool(t, serverURL(t))
	for name, open := range map[string]func(*pgxpool.Pool, pgxstore.Options) idempotency.Store{
		"lease":       func(p *pgxpool.Pool, o pgxstore.Options) idempotency.Store { return pgxstore.New(p, o) },
		"transaction": func(p *pgxpool.Pool, o pgxstore.Options) idempotency.Store { return pgxstore.NewTx(p, o) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, url, unprepared) // as every statement of a program must be there, before version 1.21
			store := open(pool, newTable(t, direct, pgxstore.Options{}))
			idempotencytest.Run(t, func(*testing.T) idempotency.Store { return store })
		})
	}
	t.Run("silent owner", func(t *testing.T) {
		t.Parallel()
		pool := newPool(t, url, unprepared)
		opts := newTable(t, direct, pgxstore.Options{})
		store := pgxstore.NewTx(pool, opts)
		opts.IdleTimeout = 100 * time.Millisecond
		key, silent := begun(t, pgxstore.NewTx(pool, opts))
		defer func() { _ = silent.Release(t.Context(), time.Hour) }() // the server has done it
		require.Eventually(t, func() bool {
			_, claim, err := store.Begin(t.Context(), key, attempt)
			if claim != nil {
				require.NoError(t, claim.Release(t.Context(), time.Hour))
			}
			return err == nil && claim != nil
		}, 10*time.Second, 10*time.Millisecond)
		setting := one[string](t, direct, "SELECT current_setting('idle_in_transaction_session_timeout')")
		require.Equal(t, "0", setting, "the timeout is that of one transaction only")
	})
}

// pgBouncer starts a PgBouncer in front of the shared server, for the duration of the test, and returns its URL.
func pgBouncer(t testing.TB, settings ...string) string {
	t.Helper()
	serverURL(t)
	db, _ := server()
	return servertest.PgBouncer(t, db, settings...).URL()
}
