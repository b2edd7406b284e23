package pgxstore_test

import (
	"testing"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// The store keeps its contract behind PgBouncer in transaction mode, where statements of one client use any session
// of the server, and only transactions stay together.
func TestPgBouncer(t *testing.T) {
	t.Parallel()
	pool := newPool(t, startPgBouncer(t), withoutPreparing) // as every statement of a program must be there, before version 1.21
	store := pgxstore.New(pool, newTable(t, newPool(t, serverURL(t)), pgxstore.Options{}))
	idempotencytest.Run(t, func(*testing.T) idempotency.Store { return store })
	idempotencytest.RunSteps(t, func(*testing.T) idempotency.Store { return store })
}

// startPgBouncer starts a PgBouncer in front of the shared server, which runs until the test ends, and returns its
// URL.
func startPgBouncer(t testing.TB, settings ...string) string {
	t.Helper()
	serverURL(t)
	db, _ := startSharedServer()
	return servertest.PgBouncer(t, db, settings...).URL()
}
