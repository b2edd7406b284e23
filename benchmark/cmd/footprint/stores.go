package main

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"

	_ "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/servertest"
	"github.com/idempotency-go/idempotency/mysqlstore"
	"github.com/idempotency-go/idempotency/pgxstore"
	"github.com/idempotency-go/idempotency/sqlitestore"
)

// workers is how many requests are under way at once.
const workers = 16

// subject is a store whose records are measured.
type subject struct {
	name string
	open func() (*target, error)
}

// target is an empty store, on a server of its own if it needs one.
type target struct {
	store   idempotency.Store
	size    func() (int64, error) // bytes that it takes now
	closers []func()              // the last one first
}

func (t *target) close() {
	for _, c := range slices.Backward(t.closers) {
		c()
	}
}

func (t *target) opened(err error) (*target, error) {
	if err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

var subjects = []subject{
	{"memory", openMemory},
	{"Redis: memory", openRedis},
	{"SQLite: disk", func() (*target, error) {
		return openSQLite(func(file string) (sqliteStore, error) {
			return sqlitestore.Open(context.Background(), file, sqlitestore.Options{})
		})
	}},
	{"SQLite, transactional: disk", func() (*target, error) {
		return openSQLite(func(file string) (sqliteStore, error) {
			return sqlitestore.OpenTx(context.Background(), file, sqlitestore.Options{})
		})
	}},
	{"PostgreSQL: disk", func() (*target, error) {
		return openPostgres(func(pool *pgxpool.Pool) idempotency.Store { return pgxstore.New(pool, pgxstore.Options{}) })
	}},
	{"PostgreSQL, transactional: disk", func() (*target, error) {
		return openPostgres(func(pool *pgxpool.Pool) idempotency.Store { return pgxstore.NewTx(pool, pgxstore.Options{}) })
	}},
	{"MariaDB: disk", func() (*target, error) {
		return openMariaDB(func(db *sql.DB) idempotency.Store { return mysqlstore.New(db, mysqlstore.Options{}) })
	}},
	{"MariaDB, transactional: disk", func() (*target, error) {
		return openMariaDB(func(db *sql.DB) idempotency.Store { return mysqlstore.NewTx(db, mysqlstore.Options{}) })
	}},
}

func openMemory() (*target, error) {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: 8 << 30})
	return &target{store: store, size: func() (int64, error) {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		runtime.KeepAlive(store)
		return int64(stats.HeapAlloc), nil
	}}, nil
}

func openRedis() (*target, error) {
	t := &target{}
	server, err := servertest.StartRedis()
	if err != nil {
		return t.opened(err)
	}
	t.closers = append(t.closers, server.Close)
	client := redis.NewClient(&redis.Options{
		Addr: server.Addr(), Password: servertest.RedisPassword(), ContextTimeoutEnabled: true, PoolSize: workers,
	})
	t.closers = append(t.closers, func() { _ = client.Close() })
	t.store = idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	t.size = func() (int64, error) {
		info, err := client.InfoMap(context.Background(), "memory").Result()
		if err != nil {
			return 0, err
		}
		return strconv.ParseInt(info["Memory"]["used_memory_dataset"], 10, 64)
	}
	return t, nil
}

// sqliteStore is a store that owns its file.
type sqliteStore interface {
	idempotency.Store
	Close() error
}

func openSQLite(open func(file string) (sqliteStore, error)) (*target, error) {
	t := &target{}
	dir, err := os.MkdirTemp("", "idempotency-footprint-")
	if err != nil {
		return t.opened(err)
	}
	t.closers = append(t.closers, func() { _ = os.RemoveAll(dir) })
	store, err := open(filepath.Join(dir, "records"))
	if err != nil {
		return t.opened(err)
	}
	t.closers = append(t.closers, func() { _ = store.Close() })
	t.store = store
	t.size = func() (bytes int64, err error) {
		files, err := os.ReadDir(dir)
		for _, file := range files {
			info, err := file.Info()
			if err != nil {
				return 0, err
			}
			bytes += info.Size()
		}
		return bytes, err
	}
	return t, nil
}

func openPostgres(open func(*pgxpool.Pool) idempotency.Store) (*target, error) {
	t := &target{}
	server, err := servertest.StartPostgres("max_connections=100")
	if err != nil {
		return t.opened(err)
	}
	t.closers = append(t.closers, server.Close)
	config, err := pgxpool.ParseConfig(server.URL())
	if err != nil {
		return t.opened(err)
	}
	config.MaxConns = 2 * workers
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return t.opened(err)
	}
	t.closers = append(t.closers, pool.Close)
	t.store = open(pool)
	t.size = func() (bytes int64, err error) {
		err = pool.QueryRow(context.Background(),
			"SELECT sum(pg_total_relation_size(relid))::bigint FROM pg_stat_user_tables").Scan(&bytes)
		return bytes, err
	}
	return t.opened(pgxstore.Migrate(context.Background(), pool, pgxstore.Options{}))
}

func openMariaDB(open func(*sql.DB) idempotency.Store) (*target, error) {
	t := &target{}
	server, err := servertest.StartMariaDB("max_connections=200", "innodb_flush_log_at_trx_commit=0") // to be faster
	if err != nil {
		return t.opened(err)
	}
	t.closers = append(t.closers, server.Close)
	db, err := sql.Open("mysql", server.DSN())
	if err != nil {
		return t.opened(err)
	}
	t.closers = append(t.closers, func() { _ = db.Close() })
	db.SetMaxOpenConns(2 * workers)
	db.SetMaxIdleConns(2 * workers)
	t.store = open(db)
	t.size = func() (bytes int64, err error) {
		err = db.QueryRow("SELECT sum(file_size) FROM information_schema.innodb_sys_tablespaces WHERE name LIKE concat(database(), '/%')").
			Scan(&bytes)
		return bytes, err
	}
	return t.opened(mysqlstore.Migrate(context.Background(), db, mysqlstore.Options{}))
}
