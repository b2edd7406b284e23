//go:build linux

package clocks_test

import (
	"context"
	"net"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// allKinds are the kinds of store under test.
var allKinds = []kind{
	{name: "redis", redisProgram: "redis-server"},
	{name: "valkey", redisProgram: "valkey-server"},
	{name: "postgres", isPostgres: true},
}

// kindsWithRows are allKinds, and a kind whose effects are rows that a step in a transaction inserts.
var kindsWithRows = append(slices.Clip(allKinds), kind{name: "rows", isPostgres: true, hasRows: true})

type kind struct {
	name         string
	redisProgram string // the command that starts Redis or Valkey
	isPostgres   bool
	hasRows      bool
}

// runForEachKind runs a subtest for each of kinds that this machine can start.
func runForEachKind(t *testing.T, kinds []kind, test func(t *testing.T, k kind)) {
	for _, k := range availableKinds(kinds) {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			test(t, k)
		})
	}
}

// availableKinds returns kinds, without Valkey if this machine lacks valkey-server, as .ci/redis does. All other servers are
// required.
func availableKinds(kinds []kind) []kind {
	if _, err := exec.LookPath("valkey-server"); err == nil {
		return kinds
	}
	return slices.DeleteFunc(slices.Clone(kinds), func(k kind) bool { return k.redisProgram == "valkey-server" })
}

// server is the server where a store keeps its records.
type server struct {
	*servertest.Server
	database *servertest.Database // of PostgreSQL
	kind     kind
	url      string // the URL of PostgreSQL, or the address of Redis
	password string // of Redis

	// dialServer connects to the server. Nil means a connection to the address of the server.
	dialServer func(ctx context.Context, network, addr string) (net.Conn, error)
}

var startLock sync.Mutex // held while a server starts, because its program and environment are settings of the whole process

// startServer starts a server with the environment variables env, and ends the server after the test.
func (k kind) startServer(t testing.TB, env ...string) server {
	t.Helper()
	startLock.Lock()
	defer startLock.Unlock()
	servertest.SetEnv(env...)
	defer servertest.SetEnv()
	if k.isPostgres {
		s := server{database: servertest.Postgres(t, postgresSettings...), kind: k}
		s.Server, s.url = s.database.Server, s.database.URL()
		require.NoError(t, pgxstore.Migrate(t.Context(), s.newTestPool(t), pgxstore.Options{}))
		return s
	}
	return k.startRedis(t)
}

// postgresSettings allow many transactions at a time.
var postgresSettings = []string{"max_connections=600"}

func (k kind) startRedis(t testing.TB, args ...string) server {
	t.Helper()
	require.NoError(t, os.Setenv("IDEMPOTENCY_REDIS", k.redisProgram))
	args = append(args, "--enable-debug-command", "yes", "--repl-diskless-sync-delay", "0")
	s := server{Server: servertest.Redis(t, args...), kind: k, password: servertest.RedisPassword()}
	s.url = s.Addr()
	// Without active expiry, an expired key disappears at its next access, and not at a random earlier time.
	s.sendCommand(t, "debug", "set-active-expire", "0")
	return s
}

// sendCommand sends a command to Redis.
func (s server) sendCommand(t testing.TB, command ...any) {
	t.Helper()
	client := s.newRedisClient()
	defer client.Close()
	require.NoError(t, client.Do(t.Context(), command...).Err())
}

// newStore returns a store on the server, and closes its connections after the test.
func (s server) newStore(t testing.TB) idempotency.Store {
	t.Helper()
	store, end, err := s.openStore(pgxstore.Options{})
	require.NoError(t, err)
	t.Cleanup(end)
	return store
}

// openStore returns a store on the server, and a function that closes its connections.
func (s server) openStore(opts pgxstore.Options) (store idempotency.Store, end func(), err error) {
	if !s.kind.isPostgres {
		client := s.newRedisClient()
		return idempotency.NewRedisStore(client, idempotency.RedisOptions{}), func() { _ = client.Close() }, nil
	}
	pool, err := s.newPool()
	if err != nil {
		return nil, nil, err
	}
	return pgxstore.New(pool, opts), pool.Close, nil
}

// readClock returns the time that the clock of the server shows.
func (s server) readClock(t testing.TB) (now time.Time) {
	t.Helper()
	var err error
	if s.kind.isPostgres {
		err = s.newTestPool(t).QueryRow(t.Context(), "select clock_timestamp()").Scan(&now)
	} else {
		client := s.newRedisClient()
		defer client.Close()
		now, err = client.Time(t.Context()).Result()
	}
	require.NoError(t, err)
	return now
}

func (s server) newRedisClient() *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: s.url, Password: s.password, PoolSize: poolSize, ContextTimeoutEnabled: true, Dialer: s.dialServer,
	})
}

// newTestPool returns a pool of connections to PostgreSQL, and closes the pool after the test.
func (s server) newTestPool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool, err := s.newPool()
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// poolSize is the number of connections that the requests of a store may hold at a time.
const poolSize = 48

func (s server) newPool() (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(s.url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = poolSize
	if s.dialServer != nil {
		config.ConnConfig.DialFunc = s.dialServer
	}
	return pgxpool.NewWithConfig(context.Background(), config)
}
