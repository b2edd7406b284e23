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

// kinds are the stores.
var kinds = []kind{
	{name: "redis", program: "redis-server"},
	{name: "valkey", program: "valkey-server"},
	{name: "postgres", postgres: true},
}

// withRows are the kinds, and one whose effects are rows, which a step in a transaction writes.
var withRows = append(slices.Clip(kinds), kind{name: "rows", postgres: true, rows: true})

type kind struct {
	name     string
	program  string // of Redis
	postgres bool
	rows     bool
}

// each runs a test for each of these kinds of store that this machine can have.
func each(t *testing.T, kinds []kind, test func(t *testing.T, k kind)) {
	for _, k := range present(kinds) {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			test(t, k)
		})
	}
}

// present returns the kinds without Valkey if this machine has none, as .ci/redis does. Any other server must be there.
func present(kinds []kind) []kind {
	if _, err := exec.LookPath("valkey-server"); err == nil {
		return kinds
	}
	return slices.DeleteFunc(slices.Clone(kinds), func(k kind) bool { return k.program == "valkey-server" })
}

// server is where a store keeps its records.
type server struct {
	*servertest.Server
	db       *servertest.Database // of PostgreSQL
	kind     kind
	url      string // what a client of the kind connects to
	password string // of Redis

	// dial connects to the server. Nil means that it is at its address.
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

var starting sync.Mutex // a server; what it is to run, and with which environment, is said for all

// start starts a server with that environment, for the duration of the test.
func (k kind) start(t testing.TB, env ...string) server {
	t.Helper()
	starting.Lock()
	defer starting.Unlock()
	servertest.SetEnv(env...)
	defer servertest.SetEnv()
	if k.postgres {
		s := server{db: servertest.Postgres(t, allow...), kind: k}
		s.Server, s.url = s.db.Server, s.db.URL()
		require.NoError(t, pgxstore.Migrate(t.Context(), s.pool(t), pgxstore.Options{}))
		return s
	}
	return k.startRedis(t)
}

// allow is how PostgreSQL is set up for many transactions at a time.
var allow = []string{"max_connections=600"}

func (k kind) startRedis(t testing.TB, args ...string) server {
	t.Helper()
	require.NoError(t, os.Setenv("IDEMPOTENCY_REDIS", k.program))
	args = append(args, "--enable-debug-command", "yes", "--repl-diskless-sync-delay", "0")
	s := server{Server: servertest.Redis(t, args...), kind: k, password: servertest.RedisPassword()}
	s.url = s.Addr()
	// Keys are to expire when somebody asks for them, and not some time before.
	s.tell(t, "debug", "set-active-expire", "0")
	return s
}

// tell sends a command to Redis.
func (s server) tell(t testing.TB, command ...any) {
	t.Helper()
	client := s.client()
	defer client.Close()
	require.NoError(t, client.Do(t.Context(), command...).Err())
}

// store returns a store on the server, for the duration of the test.
func (s server) store(t testing.TB) idempotency.Store {
	t.Helper()
	store, end, err := s.open(pgxstore.Options{})
	require.NoError(t, err)
	t.Cleanup(end)
	return store
}

// open opens a store on the server.
func (s server) open(opts pgxstore.Options) (store idempotency.Store, end func(), err error) {
	if !s.kind.postgres {
		client := s.client()
		return idempotency.NewRedisStore(client, idempotency.RedisOptions{}), func() { _ = client.Close() }, nil
	}
	pool, err := s.newPool()
	if err != nil {
		return nil, nil, err
	}
	return pgxstore.New(pool, opts), pool.Close, nil
}

// now returns what the clock of the server shows.
func (s server) now(t testing.TB) (now time.Time) {
	t.Helper()
	var err error
	if s.kind.postgres {
		err = s.pool(t).QueryRow(t.Context(), "select clock_timestamp()").Scan(&now)
	} else {
		client := s.client()
		defer client.Close()
		now, err = client.Time(t.Context()).Result()
	}
	require.NoError(t, err)
	return now
}

func (s server) client() *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: s.url, Password: s.password, PoolSize: connections, ContextTimeoutEnabled: true, Dialer: s.dial,
	})
}

// pool returns a pool of connections to PostgreSQL, for the duration of the test.
func (s server) pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool, err := s.newPool()
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// connections of a store are as many as its requests may hold at a time.
const connections = 48

func (s server) newPool() (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(s.url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = connections
	if s.dial != nil {
		config.ConnConfig.DialFunc = s.dial
	}
	return pgxpool.NewWithConfig(context.Background(), config)
}
