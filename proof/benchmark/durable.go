package benchmark

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"

	_ "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/mysqlstore"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

// OnDisk is where the subjects of [Disk] keep their records. All wait for it before they acknowledge one, unless their
// name says otherwise.
const OnDisk Store = "disk"

// Disk is the stores that survive a loss of power, on private servers and in files of one file system.
type Disk struct {
	Subjects []*Subject

	dir     string
	closers []func() // the last one first
}

// OpenDisk starts the servers and opens the files. The error wraps [exec.ErrNotFound] if a server is not installed.
func OpenDisk() (*Disk, error) {
	dir, err := os.MkdirTemp("", "idempotency-benchmark-") // the servers have theirs beside it
	if err != nil {
		return nil, err
	}
	d := &Disk{dir: dir, closers: []func(){func() { _ = os.RemoveAll(dir) }}}
	for _, open := range []func() error{d.openSQLite, d.openRedis, d.openPostgres, d.openMariaDB} {
		if err := open(); err != nil {
			d.Close()
			return nil, err
		}
	}
	return d, nil
}

// Close ends clients and servers, and deletes the files.
func (d *Disk) Close() {
	for _, c := range slices.Backward(d.closers) {
		c()
	}
}

// add adds a store, with a handler that only answers.
func (d *Disk) add(name string, store idempotency.Store) {
	d.addOpener(name, ReplayMark, func(app *App) (*Target, error) { return overLibrary(store, app) })
}

func (d *Disk) addOpener(name, mark string, open func(app *App) (*Target, error)) {
	d.Subjects = append(d.Subjects, &Subject{Name: name, Store: OnDisk, Mark: mark,
		Open: func(_ *Backends, app *App) (*Target, error) { return open(app) }})
}

// addRows adds the ways to write a row of a handler once.
func (d *Disk) addRows(name string, db database, store idempotency.Store) {
	d.addOpener(name+", a row by DoTx", ReplayMark, func(app *App) (*Target, error) { return overRows(db, store, app) })
	d.addOpener(name+", a row by a unique constraint", ReplayMark, func(app *App) (*Target, error) { return overUnique(db, store, app) })
	d.addOpener(name+", row and answer by hand", "", func(app *App) (*Target, error) { return overHand(db, app) })
}

func (d *Disk) openSQLite() error {
	for _, level := range []sqlitestore.Synchronous{sqlitestore.Full, sqlitestore.Normal} {
		name, file := "SQLite, "+level.String(), filepath.Join(d.dir, "records-"+level.String())
		store, err := sqlitestore.Open(context.Background(), file, sqlitestore.Options{Synchronous: level})
		if err != nil {
			return err
		}
		d.closers = append(d.closers, func() { _ = store.Close() })
		d.add(name, store)
		db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(10000)&_pragma=synchronous("+level.String()+
			")&_pragma=journal_mode(WAL)&_txlock=immediate")
		if err != nil {
			return err
		}
		db.SetMaxOpenConns(1) // more only wait for one another
		d.closers = append(d.closers, func() { _ = db.Close() })
		d.addRows(name, sqlDatabase{db, sqlitestore.DoTx[int], ofSQLite}, store)
	}
	return nil
}

func (d *Disk) openRedis() error {
	server, err := servertest.StartRedis("--appendonly", "yes", "--appendfsync", "always")
	if err != nil {
		return err
	}
	d.closers = append(d.closers, server.Close)
	client := redis.NewClient(&redis.Options{
		Addr: server.Addr(), Password: servertest.RedisPassword(), PoolSize: connections, MinIdleConns: connections,
		ContextTimeoutEnabled: true, MaxRetries: -1,
	})
	d.closers = append(d.closers, func() { _ = client.Close() })
	d.add("Redis, appendfsync always", idempotency.NewRedisStore(client, idempotency.RedisOptions{}))
	return nil
}

func (d *Disk) openPostgres() error {
	server, err := servertest.StartPostgres("fsync=on", "max_connections=100", "shared_buffers=128MB")
	if err != nil {
		return err
	}
	d.closers = append(d.closers, server.Close)
	config, err := pgxpool.ParseConfig(server.URL())
	if err != nil {
		return err
	}
	config.MaxConns = connections
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return err
	}
	d.closers = append(d.closers, pool.Close)
	store := pgxstore.New(pool, pgxstore.Options{})
	d.add("PostgreSQL", store)
	d.addRows("PostgreSQL", pgxDatabase{pool}, store)
	return pgxstore.Migrate(context.Background(), pool, pgxstore.Options{})
}

func (d *Disk) openMariaDB() error {
	server, err := servertest.StartMariaDB("innodb_flush_log_at_trx_commit=1", "innodb_buffer_pool_size=128M",
		"max_connections=200")
	if err != nil {
		return err
	}
	d.closers = append(d.closers, server.Close)
	db, err := sql.Open("mysql", server.DSN())
	if err != nil {
		return err
	}
	d.closers = append(d.closers, func() { _ = db.Close() })
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	store := mysqlstore.New(db, mysqlstore.Options{})
	d.add("MariaDB", store)
	d.addRows("MariaDB", sqlDatabase{db, mysqlstore.DoTx[int], ofMariaDB}, store)
	return mysqlstore.Migrate(context.Background(), db, mysqlstore.Options{})
}

// Fsync returns how long the disk takes to keep 4 KiB: the median of some writes over the same place, each waited for.
func (d *Disk) Fsync() (median time.Duration, err error) {
	file, err := os.Create(filepath.Join(d.dir, "probe"))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	block, took := make([]byte, 4<<10), make([]time.Duration, 101)
	for i := range took {
		began := time.Now()
		if _, err := file.WriteAt(block, 0); err != nil {
			return 0, err
		}
		if err := file.Sync(); err != nil {
			return 0, err
		}
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}
