package pgxstore_test

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/servertest"
	"github.com/idempotency-go/idempotency/pgxstore"
)

var failOpen = idempotency.Options{FailOpen: true, StoreTimeout: time.Second}

// two gives a pool two connections.
func two(c *pgxpool.Config) { c.MaxConns = 2 }

// hold takes connections of a pool until the test ends.
func hold(t testing.TB, pool *pgxpool.Pool, connections int) {
	t.Helper()
	for range connections {
		conn, err := pool.Acquire(context.Background())
		require.NoError(t, err)
		t.Cleanup(conn.Release)
	}
}

// Whoever keeps all connections busy does not switch off the protection of the others: the store is not down.
func TestBusyPool(t *testing.T) {
	t.Parallel()
	direct := newPool(t, serverURL(t))
	opts := newTable(t, direct, pgxstore.Options{})
	pool := newPool(t, serverURL(t), two)
	s := newService(t, pgxstore.New(pool, opts), failOpen)
	status, _ := s.ask(t, "alice", "before")
	require.Equal(t, http.StatusCreated, status)
	hold(t, pool, 2)

	status, _ = s.ask(t, "alice", "1")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.ErrorIs(t, s.outcome().Err, idempotency.ErrStoreBusy)
	require.ErrorIs(t, s.outcome().Err, context.DeadlineExceeded)
	require.Equal(t, int64(1), s.runs.Load(), "runs of the handler")

	for name, store := range stores(pool, opts) {
		brief, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		_, claim, err := store.Begin(brief, keyOf("1"), attempt)
		cancel()
		require.ErrorIs(t, err, idempotency.ErrStoreBusy, name)
		require.Nil(t, claim, name)
	}
}

// The steps of a claim say so as well, and may be repeated when a connection is free.
func TestBusyPoolDuringAClaim(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t), two)
	opts := newTable(t, pool, pgxstore.Options{})
	_, claim := begun(t, pgxstore.New(pool, opts))
	held, err := pool.Acquire(ctx)
	require.NoError(t, err)
	hold(t, pool, 1)
	brief, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, claim.Complete(brief, answer, time.Hour), idempotency.ErrStoreBusy)
	require.ErrorIs(t, claim.Extend(brief, time.Hour), idempotency.ErrStoreBusy)
	require.ErrorIs(t, claim.Release(brief, time.Hour), idempotency.ErrStoreBusy)
	held.Release()
	require.NoError(t, claim.Complete(ctx, answer, time.Hour))
}

// A server that has as many connections as it may have is not down either.
func TestBusyServer(t *testing.T) {
	t.Parallel()
	direct := newPool(t, serverURL(t))
	opts := newTable(t, direct, pgxstore.Options{})
	role := strings.ToLower(strings.ReplaceAll(opts.Table, " ", "_"))
	execute(t, direct, "CREATE ROLE "+role+" LOGIN CONNECTION LIMIT 1 PASSWORD '"+direct.Config().ConnConfig.Password+"'")
	execute(t, direct, "GRANT ALL ON "+tableName(opts)+" TO "+role)
	limited := func(c *pgxpool.Config) { c.ConnConfig.User = role }
	hold(t, newPool(t, serverURL(t), limited), 1)

	pool := newPool(t, serverURL(t), limited)
	s := newService(t, pgxstore.New(pool, opts), failOpen)
	status, _ := s.ask(t, "alice", "1")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.ErrorIs(t, s.outcome().Err, idempotency.ErrStoreBusy)
	require.ErrorContains(t, s.outcome().Err, "53300")
	require.Zero(t, s.runs.Load(), "runs of the handler")
}

// A server that is down, or does not answer, is what FailOpen is for.
func TestServerThatIsDown(t *testing.T) {
	t.Parallel()
	serverURL(t)
	db, _ := server()
	silent := servertest.NewProxy(t, db.Addr())
	silent.Inject(servertest.Rule{Fault: servertest.HoldRequest, Pattern: "", Times: 1000})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	down := listener.Addr().String()
	require.NoError(t, listener.Close())
	for name, address := range map[string]string{"down": down, "silent": silent.Addr()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, "postgres://postgres@"+address+"/postgres?sslmode=disable", two)
			s := newService(t, pgxstore.New(pool, pgxstore.Options{}), failOpen)
			for _, key := range []string{"1", "2", "3"} {
				status, _ := s.ask(t, "alice", key)
				require.Equal(t, http.StatusCreated, status)
				require.Equal(t, idempotency.OutcomeUnprotected, s.outcome().Outcome)
			}
			require.Equal(t, int64(3), s.runs.Load())
		})
	}
}

// The handlers of a transaction never run without it.
func TestFailOpenInTransactions(t *testing.T) {
	t.Parallel()
	store := pgxstore.NewTx(newPool(t, serverURL(t)), pgxstore.Options{})
	_, err := idempotency.New(store, idempotency.SingleUser, failOpen)
	require.ErrorContains(t, err, "FailOpen")
}
