package benchmark

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/idempotency-go/idempotency/internal/servertest"
	"github.com/idempotency-go/idempotency/pgxstore"
)

// Backends are private servers and clients on them, which all subjects share.
type Backends struct {
	Redis    *redis.Client
	Pipeline *redis.AutoPipeliner
	Postgres *pgxpool.Pool

	flights  atomic.Int64 // round trips, if they are counted
	commands atomic.Int64 // that clients have sent to Redis, if they are counted
	servers  []interface{ Close() }
}

// Counting says whether round trips and commands are counted, which costs a little time.
type Counting bool

// connections is how many connections each client has: one for each worker.
const connections = 64

// OpenBackends starts the servers. The error wraps [exec.ErrNotFound] if one is not installed.
func OpenBackends(counting Counting) (_ *Backends, err error) {
	b := &Backends{}
	defer func() {
		if err != nil {
			b.Close()
		}
	}()
	if err := b.openRedis(counting); err != nil {
		return nil, err
	}
	return b, b.openPostgres(counting)
}

// Close ends clients and servers.
func (b *Backends) Close() {
	if b.Pipeline != nil {
		_ = b.Pipeline.Close()
	}
	if b.Redis != nil {
		_ = b.Redis.Close()
	}
	if b.Postgres != nil {
		b.Postgres.Close()
	}
	for _, s := range b.servers {
		s.Close()
	}
}

func (b *Backends) openRedis(counting Counting) error {
	server, err := servertest.StartRedis()
	if err != nil {
		return err
	}
	b.servers = append(b.servers, server)
	opts := redisOptions(server.Addr())
	if counting {
		opts.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			return b.dial(ctx, network, addr)
		}
	}
	b.Redis = redis.NewClient(opts)
	if counting {
		b.Redis.AddHook(commandCounter{&b.commands})
	}
	b.Pipeline, err = b.Redis.AutoPipeline()
	return err
}

// redisOptions are the settings of every client: deadlines and retries are as the library asks for.
func redisOptions(addr string) *redis.Options {
	return &redis.Options{
		Addr: addr, Password: servertest.RedisPassword(),
		PoolSize: connections, MinIdleConns: connections, ContextTimeoutEnabled: true, MaxRetries: -1,
	}
}

func (b *Backends) openPostgres(counting Counting) error {
	// Checkpoints are kept out of the measurements, since they make the WAL larger whenever they come.
	settings := []string{"max_connections=100", "shared_buffers=512MB", "max_wal_size=16GB", "checkpoint_timeout=1h"}
	if counting { // nothing is to write WAL but the requests
		settings = append(settings, "autovacuum=off", "wal_level=minimal", "max_wal_senders=0")
	} else { // every commit reaches the disk, as in production
		settings = append(settings, "fsync=on")
	}
	server, err := servertest.StartPostgres(settings...)
	if err != nil {
		return err
	}
	b.servers = append(b.servers, server)
	config, err := pgxpool.ParseConfig(server.URL())
	if err != nil {
		return err
	}
	config.MaxConns = connections
	if counting {
		config.ConnConfig.DialFunc = b.dial
	}
	b.Postgres, err = pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return err
	}
	_, err = b.Postgres.Exec(context.Background(), rawSchema)
	return errors.Join(err, pgxstore.Migrate(context.Background(), b.Postgres, pgxstore.Options{}))
}

// Reset empties the stores.
func (b *Backends) Reset(ctx context.Context) error {
	if b == nil {
		return nil
	}
	_, err := b.Postgres.Exec(ctx, `TRUNCATE raw_records, idempotency_records`)
	return errors.Join(err, b.Redis.FlushAll(ctx).Err())
}

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

// commandCounter counts commands, not those inside of scripts.
type commandCounter struct{ n *atomic.Int64 }

func (h commandCounter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h commandCounter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.n.Add(1)
		return next(ctx, cmd)
	}
}

func (h commandCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.n.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}

// wal returns how many bytes of WAL the server has written.
func (b *Backends) wal(ctx context.Context) (n int64, err error) {
	err = b.Postgres.QueryRow(ctx, `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint`).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("benchmark: WAL position: %w", err)
	}
	return n, nil
}
