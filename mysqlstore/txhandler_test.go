package mysqlstore_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/mysqlstore"
)

// handling is what a handler has while it runs.
type handling struct {
	w     *world
	key   string
	claim idempotency.Claim
	ctx   context.Context
	tx    *sql.Tx
}

// handle claims a key, as the middleware does for a handler.
func (w *world) handle(t testing.TB, key string) *handling {
	t.Helper()
	_, claim := begun(t, w.store, key)
	h := &handling{w: w, key: key, claim: claim, ctx: claim.Context(context.Background())}
	tx, ok := mysqlstore.Tx(h.ctx)
	require.True(t, ok)
	h.tx = tx
	return h
}

func (h *handling) run(statement string, args ...any) error {
	_, err := h.tx.ExecContext(h.ctx, statement, args...)
	return err
}

func (h *handling) exec(t testing.TB, statement string, args ...any) {
	t.Helper()
	require.NoError(t, h.run(statement, args...))
}

// effect makes an effect, and returns its name. It has no parameters: the driver would close a prepared statement
// without a reply, which a proxy takes for a part of what comes next.
func (h *handling) effect(t testing.TB) string {
	t.Helper()
	name := uuid.NewString()
	h.exec(t, "INSERT INTO "+h.w.effects+" (name) VALUES ('"+name+"')")
	return name
}

func (h *handling) answer(status int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return h.claim.Complete(ctx, idempotency.Response{Status: status, Body: []byte("done")}, time.Hour)
}

func (h *handling) release(t testing.TB) {
	t.Helper()
	require.NoError(t, h.claim.Release(context.Background(), time.Hour))
}

// requireEffects counts the effects that others see.
func (w *world) requireEffects(t testing.TB, want int, names ...string) {
	t.Helper()
	query := "SELECT COUNT(*) FROM " + w.effects + " WHERE name IN ('" + strings.Join(names, "', '") + "')"
	require.Equal(t, want, one[int](t, w.other(t), query))
}

// other is a pool that no handler uses.
func (w *world) other(t testing.TB) *sql.DB {
	t.Helper()
	return pool(t, w.dsn)
}

// requireFree claims a key that nobody has claimed before, or whose attempts have left nothing.
func (w *world) requireFree(t testing.TB, key string) {
	t.Helper()
	record, claim := begun(t, w.store, key)
	require.Equal(t, 1, record.Attempt)
	require.NoError(t, claim.Release(context.Background(), time.Hour))
}

// requireStored asks for a key, and returns the response that is stored.
func requireStored(t testing.TB, store idempotency.Store, key string) idempotency.Response {
	t.Helper()
	record, claim, err := store.Begin(context.Background(), keyOf(key), request)
	require.NoError(t, err)
	require.Nil(t, claim)
	require.NotNil(t, record.Response)
	return *record.Response
}

// requireStuck waits until a statement with a text takes longer than one that waits for nobody.
func requireStuck(t testing.TB, db *sql.DB, text string) {
	t.Helper()
	eventually(t, "a statement that waits", func() bool {
		return one[int](t, db, "SELECT COUNT(*) FROM information_schema.PROCESSLIST "+
			"WHERE COMMAND IN ('Query', 'Execute') AND TIME_MS > 200 AND ID <> CONNECTION_ID() AND INFO LIKE ?",
			"%"+text+"%") > 0
	})
}
