package idempotencytest_test

import (
	"context"
	"database/sql"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
)

// Run tests a store, here the memory store.
func ExampleRun() {
	var t *testing.T // of func TestStore(t *testing.T)

	idempotencytest.Run(t, func(t *testing.T) idempotency.Store {
		return idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	})
}

// RunInspector tests a store that implements Inspector.
func ExampleRunInspector() {
	var t *testing.T // of func TestInspector(t *testing.T)

	idempotencytest.RunInspector(t, func(t *testing.T) idempotency.Store {
		return idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	})
}

// RunResolver tests a store that implements Resolver.
func ExampleRunResolver() {
	var t *testing.T // of func TestResolver(t *testing.T)

	idempotencytest.RunResolver(t, func(t *testing.T) idempotency.Store {
		return idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	})
}

// RunSteps tests a store whose claims store the results of steps.
func ExampleRunSteps() {
	var t *testing.T // of func TestSteps(t *testing.T)

	idempotencytest.RunSteps(t, func(t *testing.T) idempotency.Store {
		return idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	})
}

// RunTxSteps tests a store whose claims run steps in transactions. The test writes rows into the table orders.
func ExampleRunTxSteps() {
	var (
		t        *testing.T // of func TestTxSteps(t *testing.T)
		db       *sql.DB
		newStore func(*testing.T) idempotency.Store // keeps its records in db
	)

	idempotencytest.RunTxSteps(t, newStore, idempotencytest.Transactions[*sql.Tx]{
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
}

// The test of a service checks that all routes have a middleware. This test names the routes. Some routers can list
// their routes: chi by chi.Walk, gorilla/mux by Router.Walk, gin by Engine.Routes, echo by Router().Routes.
func ExampleGuarded() {
	var (
		t       *testing.T // of func TestRoutesAreGuarded(t *testing.T)
		service http.Handler
	)

	var requests []*http.Request
	for _, path := range []string{"/payments", "/payments/1/refunds"} {
		r := httptest.NewRequest(http.MethodPost, path, nil)
		r.SetBasicAuth("alice", "secret")
		requests = append(requests, r)
	}
	idempotencytest.Guarded(t, service, idempotencytest.GuardedOptions{}, requests...)
}
