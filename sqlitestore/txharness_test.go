package sqlitestore_test

import (
	"context"
	"database/sql"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/sqlitestore"
)

// openTx opens a transactional store, and closes it at the end of the test.
func openTx(t testing.TB, path string, opts sqlitestore.Options) *sqlitestore.TxStore {
	t.Helper()
	store, err := sqlitestore.OpenTx(t.Context(), path, opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	return store
}

// openOrders opens a store whose file has a table of orders, and returns a connection of another program, too.
func openOrders(t testing.TB, opts sqlitestore.Options) (*sqlitestore.TxStore, *sql.Conn) {
	t.Helper()
	path := newPath(t)
	other := foreign(t, path)
	execute(t, other, "PRAGMA journal_mode = WAL")
	execute(t, other, "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
	return openTx(t, path, opts), other
}

// handler is an attempt that has claimed its key.
type handler struct {
	idempotency.Claim
	ctx context.Context
	tx  *sql.Tx
}

func handle(t testing.TB, store idempotency.Store, key string) *handler {
	t.Helper()
	_, claim := begun(t, store, key)
	return handlerOf(t, claim)
}

func handlerOf(t testing.TB, claim idempotency.Claim) *handler {
	t.Helper()
	ctx := claim.Context(context.Background())
	tx, ok := sqlitestore.Tx(ctx)
	require.True(t, ok)
	t.Cleanup(func() { _ = claim.Release(context.Background(), time.Hour) }) // for Close not to wait if a test fails
	return &handler{claim, ctx, tx}
}

// must runs a statement that succeeds.
func (h *handler) must(t testing.TB, statement string, args ...any) {
	t.Helper()
	_, err := h.tx.ExecContext(h.ctx, statement, args...)
	require.NoError(t, err)
}

// does runs a statement.
func (h *handler) does(statement string, args ...any) error {
	_, err := h.tx.ExecContext(h.ctx, statement, args...)
	return err
}

// answers completes the operation.
func (h *handler) answers(status int) error {
	resp := answer
	resp.Status = status
	return h.Complete(context.Background(), resp, time.Hour)
}

// requireStatus asks for a key whose answer is stored.
func requireStatus(t testing.TB, store idempotency.Store, key string, status int) {
	t.Helper()
	record, claim, err := store.Begin(context.Background(), keyOf(key), request)
	require.NoError(t, err)
	require.Nil(t, claim)
	require.NotNil(t, record.Response)
	require.Equal(t, status, record.Response.Status)
}

// orders returns the orders that are committed.
func orders(t testing.TB, conn *sql.Conn) string {
	t.Helper()
	return one[string](t, conn, "SELECT coalesce(group_concat(id, ' ' ORDER BY id), '') FROM orders")
}

// requireWorks has a key executed with an effect.
func requireWorks(t testing.TB, store idempotency.Store, other *sql.Conn) {
	t.Helper()
	const id = 999
	h := handle(t, store, "afterwards")
	h.must(t, "INSERT INTO orders (id) VALUES (?)", id)
	require.NoError(t, h.answers(201))
	require.Contains(t, orders(t, other), strconv.Itoa(id))
	requireReplay(t, store, "afterwards")
}
