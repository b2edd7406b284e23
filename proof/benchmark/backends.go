package benchmark

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"sync/atomic"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// Backends are private servers and clients on them, which all subjects share.
type Backends struct {
	Redis    *redis.Client // or Valkey
	Pipeline *redis.AutoPipeliner
	Postgres *pgxpool.Pool // where everything is counted
	DynamoDB *dynamodb.Client

	servers []*servertest.Server
	flights atomic.Int64 // round trips, if they are counted
	closers []func()     // the last one first
}

// connections is how many connections each client has: one for each worker.
const connections = 64

// Open starts Redis, PostgreSQL and an emulated DynamoDB. The error wraps [exec.ErrNotFound] if one is not installed.
func Open() (*Backends, error) {
	b := &Backends{}
	return b.opened(b.open(nil))
}

// OpenRedis starts Redis alone.
func OpenRedis() (*Backends, error) {
	b := &Backends{}
	return b.opened(b.openRedis(nil))
}

// OpenValkey starts a Valkey server in the place of Redis, and nothing else.
func OpenValkey() (*Backends, error) {
	const program, variable = "valkey-server", "IDEMPOTENCY_REDIS" // which servertest looks at
	before := os.Getenv(variable)
	if err := os.Setenv(variable, program); err != nil {
		return nil, err
	}
	b, err := OpenRedis()
	return b, errors.Join(err, os.Setenv(variable, before))
}

// OpenCounting starts the same, and counts the round trips to them.
func OpenCounting() (*Backends, error) {
	b := &Backends{}
	return b.opened(b.open(b.dial))
}

func (b *Backends) open(dial dialer) error {
	if err := b.openRedis(dial); err != nil {
		return err
	}
	if err := b.openPostgres(dial); err != nil {
		return err
	}
	return b.openDynamoDB(dial)
}

// opened returns b, unless something has failed.
func (b *Backends) opened(err error) (*Backends, error) {
	if err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// Close ends clients and servers.
func (b *Backends) Close() {
	for _, c := range slices.Backward(b.closers) {
		c()
	}
}

func (b *Backends) openRedis(dial dialer) (err error) {
	server, err := servertest.StartRedis()
	if err != nil {
		return err
	}
	b.add(server)
	// Deadlines and retries are as the library asks for.
	b.Redis = redis.NewClient(&redis.Options{
		Addr: server.Addr(), Password: servertest.RedisPassword(), Dialer: dial,
		PoolSize: connections, MinIdleConns: connections, ContextTimeoutEnabled: true, MaxRetries: -1,
	})
	b.closers = append(b.closers, func() { _ = b.Redis.Close() })
	if b.Pipeline, err = b.Redis.AutoPipeline(); err == nil {
		b.closers = append(b.closers, func() { _ = b.Pipeline.Close() })
	}
	return err
}

// add takes over a server that has started.
func (b *Backends) add(server *servertest.Server) {
	b.servers = append(b.servers, server)
	b.closers = append(b.closers, server.Close)
}

func (b *Backends) openPostgres(dial dialer) error {
	// Nothing is to write WAL but the requests. A checkpoint makes it larger whenever it comes.
	server, err := servertest.StartPostgres("max_connections=100", "shared_buffers=512MB", "max_wal_size=16GB",
		"checkpoint_timeout=1h", "autovacuum=off", "wal_level=minimal", "max_wal_senders=0")
	if err != nil {
		return err
	}
	b.add(server.Server)
	config, err := pgxpool.ParseConfig(server.URL())
	if err != nil {
		return err
	}
	config.MaxConns = connections
	if dial != nil {
		config.ConnConfig.DialFunc = dial
	}
	b.Postgres, err = pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return err
	}
	b.closers = append(b.closers, b.Postgres.Close)
	return pgxstore.Migrate(context.Background(), b.Postgres, pgxstore.Options{})
}

type dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// dial returns a connection on which the round trips are counted.
func (b *Backends) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &countedConn{TCPConn: conn.(*net.TCPConn), flights: &b.flights}, nil
}

// countedConn counts how often something is written after something was read. As it is a TCP connection in all else,
// clients do to it what they do to one.
type countedConn struct {
	*net.TCPConn
	flights *atomic.Int64
	writing atomic.Bool
}

func (c *countedConn) Write(p []byte) (int, error) {
	if !c.writing.Swap(true) {
		c.flights.Add(1)
	}
	return c.TCPConn.Write(p)
}

func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	if n > 0 {
		c.writing.Store(false)
	}
	return n, err
}
