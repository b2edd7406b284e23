package network_test

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// backend is a store with a server of its own.
type backend struct {
	effectsAreRows bool // a step in a transaction writes each effect as a row
	isVariant      bool // another backend opens connections and transports answers in the same way
	effectLedger   ledger
	directStore    idempotency.Store                     // reaches the server without a proxy
	openStore      func(*pgxpool.Pool) idempotency.Store // nil for Redis and DynamoDB

	// startProxy puts a proxy in front of the server. connect opens a store through the proxy, with a new pool for each call.
	startProxy func(testing.TB) (p *servertest.Proxy, connect func(testing.TB) idempotency.Store)

	// requireEmpty checks that nothing is claimed, locked or staged.
	requireEmpty func(testing.TB)
}

// ledger records the effects of handlers.
type ledger interface {
	addEffect(ctx context.Context, key string) error
	countEffects(t testing.TB, key string) int
}

// effectCounter is a system outside of the store. The system never fails, and knows nothing of keys: a second call with a
// key is a second effect.
type effectCounter struct {
	mu          sync.Mutex
	countsByKey map[string]int
}

func newEffectCounter() *effectCounter { return &effectCounter{countsByKey: map[string]int{}} }

func (e *effectCounter) addEffect(_ context.Context, key string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.countsByKey[key]++
	return nil
}

func (e *effectCounter) countEffects(_ testing.TB, key string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.countsByKey[key]
}

// rowLedger is a table into which handlers insert rows in a step with a transaction.
type rowLedger struct {
	directPool     *pgxpool.Pool
	handlerOwnsTx  bool           // the handler begins and commits the transaction
	isolationLevel pgx.TxIsoLevel // for a transaction that the handler begins
}

// poolStore is a store with its pool. The handler uses the same pool.
type poolStore struct {
	*pgxstore.Store
	pool *pgxpool.Pool
}

type poolKey struct{}

// withPool puts the pool of store into the context of requests to handler.
func withPool(store idempotency.Store, handler http.HandlerFunc) http.HandlerFunc {
	of, ok := store.(poolStore)
	if !ok {
		return handler
	}
	return func(w http.ResponseWriter, r *http.Request) {
		handler(w, r.WithContext(context.WithValue(r.Context(), poolKey{}, of.pool)))
	}
}

func (l *rowLedger) addEffect(ctx context.Context, key string) error {
	return l.addEffectAnd(ctx, key, 2*storeTimeout, func() {})
}

// addEffectAnd adds an effect, and calls also in the transaction after the insertion. A transaction of the handler ends after
// within.
func (l *rowLedger) addEffectAnd(ctx context.Context, key string, within time.Duration, also func()) error {
	insert := func(tx pgx.Tx) (string, error) {
		_, err := tx.Exec(ctx, "INSERT INTO ledger (key) VALUES ($1)", key)
		also()
		return key, err
	}
	if !l.handlerOwnsTx {
		_, err := pgxstore.DoTx(ctx, "book", insert)
		return err
	}
	pool := ctx.Value(poolKey{}).(*pgxpool.Pool)
	ctx, cancel := context.WithTimeout(ctx, within) // because pgx waits for ever for a lost message
	defer cancel()
	return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: l.isolationLevel}, func(tx pgx.Tx) error {
		_, err := pgxstore.DoInTx(ctx, tx, "book", func() (string, error) { return insert(tx) })
		return err
	})
}

func (l *rowLedger) countEffects(t testing.TB, key string) (n int) {
	require.NoError(t, l.directPool.QueryRow(t.Context(), "SELECT count(*) FROM ledger WHERE key = $1", key).Scan(&n))
	return n
}

func newRedisBackend(t *testing.T) *backend { return newRedisBackendOn(t, servertest.Redis(t)) }

func newRedisBackendOn(t *testing.T, server *servertest.Server) *backend {
	direct := newRedisClient(t, server.Addr())
	store := idempotency.NewRedisStore(direct, idempotency.RedisOptions{})
	return &backend{
		effectLedger: newEffectCounter(),
		directStore:  store,
		startProxy: func(t testing.TB) (*servertest.Proxy, func(testing.TB) idempotency.Store) {
			p := servertest.NewProxy(t, server.Addr())
			return p, func(t testing.TB) idempotency.Store {
				return idempotency.NewRedisStore(newRedisClient(t, p.Addr()), idempotency.RedisOptions{})
			}
		},
		requireEmpty: func(t testing.TB) { requireNothingStaged(t, direct) },
	}
}

func newRedisClient(t testing.TB, addr string) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: addr, Password: servertest.RedisPassword()})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// requireNothingStaged checks that no staging key of a large answer is left.
func requireNothingStaged(t testing.TB, client *redis.Client) {
	keys := client.Scan(t.Context(), 0, "*", 1000).Iterator()
	for keys.Next(t.Context()) {
		require.True(t, strings.HasSuffix(keys.Val(), "}"), "a staging key is left: %s", keys.Val())
	}
	require.NoError(t, keys.Err())
}

func newClusterBackend(t *testing.T) *backend {
	masters := servertest.RedisCluster(t)
	store := idempotency.NewRedisStore(newClusterClient(t, masters, nil), idempotency.RedisOptions{})
	return &backend{
		effectLedger: newEffectCounter(),
		directStore:  store,
		startProxy: func(t testing.TB) (*servertest.Proxy, func(testing.TB) idempotency.Store) {
			p := servertest.NewProxy(t, masters[0].Addr())
			through := map[string]string{masters[0].Addr(): p.Addr()}
			for _, master := range masters[1:] {
				through[master.Addr()] = p.AddServer(t, master.Addr())
			}
			return p, func(t testing.TB) idempotency.Store {
				return idempotency.NewRedisStore(newClusterClient(t, masters, through), idempotency.RedisOptions{})
			}
		},
		requireEmpty: func(t testing.TB) {
			for _, master := range masters {
				requireNothingStaged(t, newRedisClient(t, master.Addr()))
			}
		},
	}
}

func newClusterClient(t testing.TB, masters []*servertest.Server, through map[string]string) *redis.ClusterClient {
	opts := &redis.ClusterOptions{Password: servertest.RedisPassword(), ContextTimeoutEnabled: true}
	for _, master := range masters {
		opts.Addrs = append(opts.Addrs, master.Addr())
	}
	opts.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if other := through[addr]; other != "" {
			addr = other
		}
		var dialer net.Dialer
		return dialer.DialContext(ctx, network, addr)
	}
	client := redis.NewClusterClient(opts)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// idleTimeout is how long a silent session keeps its locks.
const idleTimeout = 2 * time.Second

// newPostgresBackend returns a backend whose effects are rows of the ledger rows, unless rows is nil.
func newPostgresBackend(t *testing.T, rows *rowLedger, opts pgxstore.Options) *backend {
	return newPostgresBackendOn(t, servertest.Postgres(t, "max_connections=500"), rows, opts)
}

func newPostgresBackendOn(t *testing.T, db *servertest.Database, rows *rowLedger, opts pgxstore.Options) *backend {
	variant := opts != pgxstore.Options{}
	opts.IdleTimeout = idleTimeout
	direct := newPool(t, db.URL())
	require.NoError(t, pgxstore.Migrate(t.Context(), direct, opts))
	executeSQL(t, direct, "CREATE TABLE ledger (key text NOT NULL)")
	executeSQL(t, direct, "CREATE INDEX ON ledger (key)")
	b := &backend{effectsAreRows: rows != nil, isVariant: variant, effectLedger: newEffectCounter()}
	if rows != nil {
		rows.directPool, b.effectLedger = direct, rows
	}
	b.openStore = func(pool *pgxpool.Pool) idempotency.Store { return poolStore{pgxstore.New(pool, opts), pool} }
	b.directStore = b.openStore(direct)
	b.startProxy = func(t testing.TB) (*servertest.Proxy, func(testing.TB) idempotency.Store) {
		p := servertest.NewProxy(t, db.Addr())
		return p, func(t testing.TB) idempotency.Store { return b.openStore(newPool(t, db.URLAt(p.Addr()))) }
	}
	b.requireEmpty = func(t testing.TB) {
		requireZero(t, direct, "SELECT count(*) FROM idempotency_records WHERE status IS NULL AND lease_until > now()")
		requireZero(t, direct, "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'")
	}
	return b
}

func newPool(t testing.TB, url string, changes ...func(*pgxpool.Config)) *pgxpool.Pool {
	config, err := pgxpool.ParseConfig(url)
	require.NoError(t, err)
	config.MaxConns = 8
	for _, change := range changes {
		change(config)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func executeSQL(t testing.TB, pool *pgxpool.Pool, sql string) {
	_, err := pool.Exec(t.Context(), sql)
	require.NoError(t, err)
}

// requireZero waits until a count is zero, because a server may notice the end of a session late.
func requireZero(t testing.TB, pool *pgxpool.Pool, sql string) {
	require.Eventually(t, func() bool {
		rows, err := pool.Query(context.Background(), sql)
		require.NoError(t, err)
		n, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[int])
		require.NoError(t, err)
		return n == 0
	}, patience, 10*time.Millisecond, sql)
}
