package benchmark

import (
	"context"
	"database/sql"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	_ "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/mysqlstore"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

// Backends are private servers and files with the stores of the library. All subjects share the backends.
type Backends struct {
	Records map[Store]Records

	Redis        *redis.Client
	Postgres     *pgxpool.Pool
	dynamoClient *dynamodb.Client

	dial           dialer // nil: as usual
	isCounting     bool   // dial counts round trips
	tempDir        string
	serversByStore map[Store]*servertest.Server
	roundTrips     atomic.Int64
	closeFuncs     []func() // called by Close in reverse order
}

// Records is a store of the library.
type Records struct {
	Store idempotency.Store
	Size  func() (int64, error) // bytes of the records
	Copy  func(n int) error     // adds n copies of a stored record, whose IDs belong to no operation; nil: impossible
}

// connections is the most connections of each client. The command measures with up to 256 workers, and each worker has a
// connection.
const connections = 256

// OpenCounting starts Redis, PostgreSQL and an emulated DynamoDB, and counts the round trips to them. The error wraps
// [exec.ErrNotFound] if a server is not installed.
func OpenCounting() (*Backends, error) {
	b := newBackends()
	b.dial, b.isCounting = dialWith(func() { b.roundTrips.Add(1) }, nil), true
	return b.openAll(b.openRedis, b.openPostgres, b.openDynamoDB)
}

// Open starts all servers. The servers and SQLite wait for the disk before acknowledging a record.
func Open() (*Backends, error) {
	b := newBackends()
	return b.openAll(b.openSQLite, b.openRedis, b.openPostgres, b.openMariaDB, b.openDynamoDB)
}

// OpenDistant starts Redis and PostgreSQL, whose replies arrive later by delay, as from another machine.
func OpenDistant(delay time.Duration) (*Backends, error) {
	b := newBackends()
	b.dial = dialWith(nil, func() { time.Sleep(delay) })
	return b.openAll(b.openRedis, b.openPostgres)
}

// OpenStore starts the server of one store: InSQLite, InRedis, InPostgres or InMariaDB.
func OpenStore(store Store) (*Backends, error) {
	b := newBackends()
	return b.openAll(map[Store]func() error{
		InSQLite: b.openSQLite, InRedis: b.openRedis, InPostgres: b.openPostgres, InMariaDB: b.openMariaDB,
	}[store])
}

func newBackends() *Backends {
	return &Backends{Records: make(map[Store]Records), serversByStore: make(map[Store]*servertest.Server)}
}

func (b *Backends) openAll(openers ...func() error) (_ *Backends, err error) {
	if b.tempDir, err = os.MkdirTemp("", "idempotency-benchmark-"); err != nil {
		return nil, err
	}
	b.closeFuncs = append(b.closeFuncs, func() { _ = os.RemoveAll(b.tempDir) })
	for _, open := range openers {
		if err := open(); err != nil {
			b.Close()
			return nil, err
		}
	}
	return b, nil
}

// Close stops clients and servers, and deletes the files.
func (b *Backends) Close() {
	for _, c := range slices.Backward(b.closeFuncs) {
		c()
	}
}

// addServer adds a running server, and closes the server in Close.
func (b *Backends) addServer(store Store, server *servertest.Server) {
	b.serversByStore[store] = server
	b.closeFuncs = append(b.closeFuncs, server.Close)
}

func (b *Backends) openSQLite() error {
	dir := filepath.Join(b.tempDir, "sqlite")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	path := filepath.Join(dir, "records")
	store, err := sqlitestore.Open(context.Background(), path, sqlitestore.Options{})
	if err != nil {
		return err
	}
	other, err := sql.Open("sqlite", "file:"+path+"?_pragma=synchronous(off)")
	if err != nil {
		return err
	}
	b.closeFuncs = append(b.closeFuncs, func() {
		_ = other.Close()
		_ = store.Close()
	})
	b.Records[InSQLite] = Records{store, func() (bytes int64, err error) {
		files, err := os.ReadDir(dir)
		for _, file := range files {
			info, err := file.Info()
			if err != nil {
				return 0, err
			}
			bytes += info.Size()
		}
		return bytes, err
	}, copyRows(other, copySQLite)}
	return nil
}

func (b *Backends) openRedis() error {
	server, err := servertest.StartRedis("--appendonly", "yes", "--appendfsync", "always")
	if err != nil {
		return err
	}
	b.addServer(InRedis, server)
	// The library requires these settings of deadlines and retries.
	b.Redis = redis.NewClient(&redis.Options{
		Addr: server.Addr(), Password: servertest.RedisPassword(), Dialer: b.dial,
		PoolSize: connections, ContextTimeoutEnabled: true, MaxRetries: -1,
	})
	b.closeFuncs = append(b.closeFuncs, func() { _ = b.Redis.Close() })
	b.Records[InRedis] = Records{idempotency.NewRedisStore(b.Redis, idempotency.RedisOptions{}), func() (int64, error) {
		info, err := b.Redis.InfoMap(context.Background(), "memory").Result()
		if err != nil {
			return 0, err
		}
		return strconv.ParseInt(info["Memory"]["used_memory_dataset"], 10, 64)
	}, b.copyRedisRecords}
	return nil
}

func (b *Backends) openPostgres() error {
	settings := []string{"fsync=on", "max_connections=300", "shared_buffers=512MB", "max_wal_size=16GB"}
	if b.isCounting { // only requests may write WAL: the first change of a page after a checkpoint writes more
		settings = append(settings, "checkpoint_timeout=1h", "autovacuum=off", "wal_level=minimal", "max_wal_senders=0")
	}
	server, err := servertest.StartPostgres(settings...)
	if err != nil {
		return err
	}
	b.addServer(InPostgres, server.Server)
	config, err := pgxpool.ParseConfig(server.URL())
	if err != nil {
		return err
	}
	config.MaxConns = connections
	if b.dial != nil {
		config.ConnConfig.DialFunc = b.dial
	}
	if b.Postgres, err = pgxpool.NewWithConfig(context.Background(), config); err != nil {
		return err
	}
	b.closeFuncs = append(b.closeFuncs, b.Postgres.Close)
	b.Records[InPostgres] = Records{pgxstore.New(b.Postgres, pgxstore.Options{}), func() (bytes int64, err error) {
		const query = "SELECT sum(pg_total_relation_size(relid))::bigint FROM pg_stat_user_tables"
		err = b.Postgres.QueryRow(context.Background(), query).Scan(&bytes)
		return bytes, err
	}, copyRows(stdlib.OpenDBFromPool(b.Postgres), copyPostgres)}
	return pgxstore.Migrate(context.Background(), b.Postgres, pgxstore.Options{})
}

func (b *Backends) openMariaDB() error {
	server, err := servertest.StartMariaDB("innodb_flush_log_at_trx_commit=1", "innodb_buffer_pool_size=512M",
		"innodb_log_file_size=1G", "max_connections=300")
	if err != nil {
		return err
	}
	b.addServer(InMariaDB, server.Server)
	db, err := sql.Open("mysql", server.DSN())
	if err != nil {
		return err
	}
	b.closeFuncs = append(b.closeFuncs, func() { _ = db.Close() })
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	b.Records[InMariaDB] = Records{mysqlstore.New(db, mysqlstore.Options{}), func() (bytes int64, err error) {
		const query = "SELECT sum(file_size) FROM information_schema.innodb_sys_tablespaces " +
			"WHERE name LIKE concat(database(), '/%')"
		err = db.QueryRow(query).Scan(&bytes)
		return bytes, err
	}, copyRows(db, copyMariaDB)}
	return mysqlstore.Migrate(context.Background(), db, mysqlstore.Options{})
}

type dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// dialWith returns a dialer whose connections call onRequest for each write after a read, and onReply for each read after a
// write. Nil does nothing.
func dialWith(onRequest, onReply func()) dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &roundTripConn{TCPConn: conn.(*net.TCPConn), onRequest: onRequest, onReply: onReply}, nil
	}
}

// roundTripConn observes round trips. roundTripConn embeds the TCP connection, because clients ask a connection for the
// file descriptor.
type roundTripConn struct {
	*net.TCPConn
	onRequest, onReply func()
	isWriting          atomic.Bool
}

func (c *roundTripConn) Write(p []byte) (int, error) {
	if !c.isWriting.Swap(true) && c.onRequest != nil {
		c.onRequest()
	}
	return c.TCPConn.Write(p)
}

func (c *roundTripConn) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	if n > 0 && c.isWriting.Swap(false) && c.onReply != nil {
		c.onReply()
	}
	return n, err
}
