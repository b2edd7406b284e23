package pgxstore_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

var failOpen = idempotency.Options{FailOpen: true, StoreTimeout: time.Second}

// limitToTwo limits a pool to two connections.
func limitToTwo(c *pgxpool.Config) { c.MaxConns = 2 }

// holdConnections takes connections of a pool until the test ends.
func holdConnections(t testing.TB, pool *pgxpool.Pool, connections int) {
	t.Helper()
	for range connections {
		conn, err := pool.Acquire(context.Background())
		require.NoError(t, err)
		t.Cleanup(conn.Release)
	}
}

// A caller that keeps all connections busy does not turn off the protection of the others, because a busy store is
// not down.
func TestBusyPool(t *testing.T) {
	t.Parallel()
	direct := newPool(t, serverURL(t))
	opts := newTable(t, direct, pgxstore.Options{})
	pool := newPool(t, serverURL(t), limitToTwo)
	s := newService(t, pgxstore.New(pool, opts), failOpen)
	status, _ := s.sendRequest(t, "alice", "before")
	require.Equal(t, http.StatusCreated, status)
	holdConnections(t, pool, 2)

	status, _ = s.sendRequest(t, "alice", "1")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.ErrorIs(t, s.readOutcome().Err, idempotency.ErrStoreBusy)
	require.ErrorIs(t, s.readOutcome().Err, context.DeadlineExceeded)
	require.Equal(t, int64(1), s.runCount.Load(), "runs of the handler")

	store := pgxstore.New(pool, opts)
	brief, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	_, _, err := store.Begin(brief, keyOf("1"), attempt)
	cancel()
	require.ErrorIs(t, err, idempotency.ErrStoreBusy)
	require.Nil(t, testservice.InDoubt(err))
}

// The calls of a claim also report a busy store, and can be repeated when a connection is free. Renewals of the
// lease still succeed.
func TestBusyPoolDuringAClaim(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t), limitToTwo)
	opts := newTable(t, pool, pgxstore.Options{})
	_, claim := claimNewKey(t, pgxstore.New(pool, opts))
	held, err := pool.Acquire(ctx)
	require.NoError(t, err)
	defer held.Release() // also after a failure
	holdConnections(t, pool, 1)
	brief, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, claim.Complete(brief, answer, time.Hour), idempotency.ErrStoreBusy)
	require.ErrorIs(t, claim.Release(brief, idempotency.Release{TTL: time.Hour}), idempotency.ErrStoreBusy)
	soon, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	require.NoError(t, claim.Extend(soon, time.Hour))
	held.Release()
	require.NoError(t, claim.Complete(ctx, answer, time.Hour))
}

// Handlers that hold all connections of the pool for longer than a lease keep their claims. The store renews them on
// an extra connection, which is opened with the pool's configuration and closed again.
func TestRenewalOnAnEmptyPool(t *testing.T) {
	t.Parallel()
	const handlers = 4
	var hooks [3]atomic.Int64
	name := uuid.NewString()
	pool := newPool(t, serverURL(t), withApplicationName(name), func(c *pgxpool.Config) {
		c.MaxConns = handlers
		c.BeforeConnect = func(context.Context, *pgx.ConnConfig) error { hooks[0].Add(1); return nil }
		c.AfterConnect = func(context.Context, *pgx.Conn) error { hooks[1].Add(1); return nil }
		c.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) { hooks[2].Add(1); return true, nil }
	})
	direct := newPool(t, serverURL(t))
	for form, days := range map[string]int{"plain": 0, "partitions": 1} {
		opts := newTable(t, direct, pgxstore.Options{PartitionDays: days})
		var claims []idempotency.Claim
		for range handlers {
			_, claim := claimNewKey(t, pgxstore.New(pool, opts))
			claims = append(claims, claim)
		}
		execStatement(t, direct, "DELETE FROM "+tableName(opts)+" WHERE key = (SELECT min(key) FROM "+tableName(opts)+")")
		var held []*pgxpool.Conn
		for range handlers {
			conn, err := pool.Acquire(t.Context())
			require.NoError(t, err)
			defer conn.Release()
			held = append(held, conn)
		}
		for i := range hooks {
			hooks[i].Store(0)
		}
		results := make(chan error, handlers)
		for _, claim := range claims {
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				results <- claim.Extend(ctx, 3*time.Hour)
			}()
		}
		restored := 0
		for range claims {
			if err := <-results; errors.Is(err, idempotency.ErrRestored) {
				restored++
			} else {
				require.NoError(t, err, form)
			}
		}
		require.Equal(t, 1, restored, form)
		require.Equal(t, handlers, queryValue[int](t, direct,
			"SELECT count(*) FROM "+tableName(opts)+" WHERE lease_until > now() + interval '2 hours'"), form)
		for i := range hooks {
			require.Equal(t, int64(handlers+1), hooks[i].Load(), "a connection for each step")
		}
		require.Eventually(t, func() bool {
			return queryValue[int](t, direct, "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1", name) == handlers
		}, 10*time.Second, time.Millisecond, "they are closed")
		for _, conn := range held {
			conn.Release()
		}
	}
}

// A Runner keeps its claims while its handlers hold all connections of the pool.
func TestHandlersThatEmptyThePool(t *testing.T) {
	t.Parallel()
	const handlers = 4
	pool := newPool(t, serverURL(t), func(c *pgxpool.Config) { c.MaxConns = handlers })
	opts := newTable(t, newPool(t, serverURL(t)), pgxstore.Options{})
	runner, err := idempotency.NewRunner(pgxstore.New(pool, opts), idempotency.RunnerOptions{
		Lease: 12 * time.Second, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	var all, begun sync.WaitGroup
	begun.Add(handlers)
	for i := range handlers {
		all.Go(func() {
			_, _, err := runner.Do(t.Context(), keyOf(fmt.Sprint(i)), nil, func(ctx context.Context) (idempotency.Response, error) {
				begun.Done()
				begun.Wait()
				_, err := pool.Exec(ctx, "SELECT pg_sleep(25)") // longer than two leases
				return answer, err
			})
			assert.NoError(t, err)
		})
	}
	all.Wait()
	require.NoError(t, runner.Shutdown(t.Context()))
	require.Equal(t, handlers, queryValue[int](t, pool, "SELECT count(*) FROM "+tableName(opts)+" WHERE status = 201"))
}

// A server at its connection limit is busy, not down.
func TestBusyServer(t *testing.T) {
	t.Parallel()
	direct := newPool(t, serverURL(t))
	opts := newTable(t, direct, pgxstore.Options{})
	role := strings.ToLower(strings.ReplaceAll(opts.Table, " ", "_"))
	execStatement(t, direct, "CREATE ROLE "+role+" LOGIN CONNECTION LIMIT 1 PASSWORD '"+direct.Config().ConnConfig.Password+"'")
	execStatement(t, direct, "GRANT ALL ON "+tableName(opts)+" TO "+role)
	limited := func(c *pgxpool.Config) { c.ConnConfig.User = role }
	holdConnections(t, newPool(t, serverURL(t), limited), 1)

	pool := newPool(t, serverURL(t), limited)
	s := newService(t, pgxstore.New(pool, opts), failOpen)
	status, _ := s.sendRequest(t, "alice", "1")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.ErrorIs(t, s.readOutcome().Err, idempotency.ErrStoreBusy)
	require.ErrorContains(t, s.readOutcome().Err, "53300")
	require.Zero(t, s.runCount.Load(), "runs of the handler")
}

// A lease cannot be renewed on an extra connection if the server is at its connection limit.
func TestRenewalOnABusyServer(t *testing.T) {
	t.Parallel()
	direct := newPool(t, serverURL(t))
	opts := newTable(t, direct, pgxstore.Options{})
	role := "busy_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	execStatement(t, direct, "CREATE ROLE "+role+" LOGIN CONNECTION LIMIT 1 PASSWORD '"+direct.Config().ConnConfig.Password+"'")
	execStatement(t, direct, "GRANT ALL ON "+tableName(opts)+" TO "+role)
	pool := newPool(t, serverURL(t), limitToOne, func(c *pgxpool.Config) { c.ConnConfig.User = role })
	_, claim := claimNewKey(t, pgxstore.New(pool, opts))
	held, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer held.Release()
	require.Eventually(t, func() bool { // a call that ends while it connects cannot know the reason
		brief, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return errors.Is(claim.Extend(brief, time.Hour), idempotency.ErrStoreBusy)
	}, 30*time.Second, time.Millisecond)
	held.Release()
	require.NoError(t, claim.Extend(t.Context(), time.Hour))
}

// FailOpen helps if a server is down or does not answer.
func TestServerThatIsDown(t *testing.T) {
	t.Parallel()
	serverURL(t)
	db, _ := startSharedServer()
	silent := servertest.NewProxy(t, db.Addr())
	silent.Inject(servertest.Rule{Fault: servertest.HoldRequest, Pattern: "", Times: 1000})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	down := listener.Addr().String()
	require.NoError(t, listener.Close())
	for name, address := range map[string]string{"down": down, "silent": silent.Addr()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, "postgres://postgres@"+address+"/postgres?sslmode=disable", limitToTwo)
			s := newService(t, pgxstore.New(pool, pgxstore.Options{}), failOpen)
			for _, key := range []string{"1", "2", "3"} {
				status, _ := s.sendRequest(t, "alice", key)
				require.Equal(t, http.StatusCreated, status)
				require.Equal(t, idempotency.OutcomeUnprotected, s.readOutcome().Outcome)
			}
			require.Equal(t, int64(3), s.runCount.Load())
		})
	}
}

// distantConn delays each reply of the server by 5 ms.
type distantConn struct{ net.Conn }

func (c distantConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	time.Sleep(5 * time.Millisecond)
	return n, err
}

// If far more requests come than the connections can serve, requests that get a connection late time out while they
// use it. The store still reports that it is busy, not down.
func TestCrowdedPool(t *testing.T) {
	t.Parallel()
	opts := newTable(t, newPool(t, serverURL(t)), pgxstore.Options{})
	pool := newPool(t, serverURL(t), func(c *pgxpool.Config) {
		c.MaxConns = 4
		c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return distantConn{conn}, err
		}
	})
	var mu sync.Mutex
	outcomes := map[idempotency.Outcome]int{}
	user := func(*http.Request) (string, error) { return "mallory", nil }
	store := pgxstore.New(pool, opts)
	completeNewKey(t, store) // requires that the server is up
	m, err := idempotency.New(store, user, idempotency.Options{
		FailOpen: true, Lease: 3 * time.Second, StoreTimeout: 500 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
		Observer: func(_ context.Context, e idempotency.Event) {
			mu.Lock()
			defer mu.Unlock()
			outcomes[e.Outcome]++
		},
	})
	require.NoError(t, err)
	handler := m.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	call := func(key string) {
		r := httptest.NewRequest(http.MethodPost, "/payments", nil)
		r.Header.Set("Idempotency-Key", key)
		handler.ServeHTTP(httptest.NewRecorder(), r)
	}
	var group sync.WaitGroup
	for i := range 1500 {
		group.Go(func() {
			for j := range 3 {
				call(fmt.Sprintf("%d-%d", i, j))
			}
		})
	}
	group.Wait()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	_ = m.Shutdown(over) // ends background work, which may be reported
	mu.Lock()
	defer mu.Unlock()
	require.NotZero(t, outcomes[idempotency.OutcomeUnavailable], "there was room for all: %v", outcomes)
	require.Zero(t, outcomes[idempotency.OutcomeUnprotected], outcomes)
}

// A call that gets its connection with hardly any time left times out on the wire. The store still reports that it
// is busy, not down.
func TestLateConnection(t *testing.T) {
	t.Parallel()
	opts := newTable(t, newPool(t, serverURL(t)), pgxstore.Options{})
	pool := newPool(t, serverURL(t), limitToOne, func(c *pgxpool.Config) {
		c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return distantConn{conn}, err
		}
	})
	store := pgxstore.New(pool, opts)
	completeNewKey(t, store)
	late := 0
	for i := range 30 {
		held, err := pool.Acquire(t.Context())
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		release := time.AfterFunc(time.Duration(90+i%10)*time.Millisecond, held.Release)
		_, claim, err := store.Begin(ctx, keyOf(fmt.Sprint(i)), attempt)
		cancel()
		if release.Stop() {
			held.Release()
		}
		if err != nil {
			late++
			require.ErrorIs(t, err, idempotency.ErrStoreBusy)
			continue
		}
		require.NotNil(t, claim)
	}
	require.NotZero(t, late)
}
