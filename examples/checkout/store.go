package main

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/database"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/pgxstore"
	"github.com/idempotency-go/idempotency/sqlitestore"
)

// Where the keys and the ledger are:
//
//   - By default both are in one file. A charge and the record of its answer are one transaction: the server may be
//     killed at any time, and there is either both or neither.
//   - With DATABASE_URL, both are in that PostgreSQL, in a schema of their own. The same holds.
//   - With REDIS_URL, the keys are in that Redis, and the ledger is in a file: no transaction spans both. A claim is a
//     lease. If the server is killed after the charge and before Redis has the answer, the lease lapses, and the next
//     request makes another attempt. It has the same operation ID, by which the ledger finds the charge. Another
//     system would have to do the same: hence Operation.DownstreamKey.
//   - With a console, the keys are where they are else, in leases. The ledger stands for a system that knows nothing of
//     transactions or keys, so nobody may charge again before an operator has looked there.
const (
	databaseVariable = "DATABASE_URL"
	redisVariable    = "REDIS_URL"
	fileVariable     = "CHECKOUT_FILE"
	consoleVariable  = "CHECKOUT_CONSOLE"
)

func hasConsole() bool { return os.Getenv(consoleVariable) != "" }

// createLedger makes an empty ledger. The processes that this one starts find it by their environment.
func createLedger(ctx context.Context) (l *ledger, drop func()) {
	if usesPostgres() {
		pool, drop := database.Create(ctx)
		demo.Check(pgxstore.Migrate(ctx, pool, pgxstore.Options{}))
		_, err := pool.Exec(ctx, schema)
		demo.Check(err)
		db := stdlib.OpenDBFromPool(pool)
		return &ledger{db: db}, func() {
			demo.Check(db.Close())
			drop()
		}
	}
	dir, err := os.MkdirTemp("", "checkout")
	demo.Check(err)
	demo.Check(os.Setenv(fileVariable, filepath.Join(dir, "checkout.db")))
	db := openFile()
	_, err = db.ExecContext(ctx, schema)
	demo.Check(err)
	return &ledger{db: db}, func() { demo.Check(errors.Join(db.Close(), os.RemoveAll(dir))) }
}

// openStore opens what createLedger has made, and the store of the keys.
func openStore(ctx context.Context) (*ledger, idempotency.Store) {
	switch {
	case usesPostgres() && hasConsole():
		pool := database.Connect(ctx)
		return &ledger{stdlib.OpenDBFromPool(pool), noTx}, pgxstore.New(pool, pgxstore.Options{})
	case usesPostgres():
		pool := database.Connect(ctx)
		return &ledger{stdlib.OpenDBFromPool(pool), pgxstore.SQLTx}, pgxstore.NewTx(pool, pgxstore.Options{})
	case os.Getenv(redisVariable) != "":
		opts, err := redis.ParseURL(os.Getenv(redisVariable))
		demo.Check(err)
		store := idempotency.NewRedisStore(redis.NewClient(opts), idempotency.RedisOptions{Prefix: "checkout:"})
		return &ledger{openFile(), noTx}, store
	case hasConsole():
		store, err := sqlitestore.Open(ctx, os.Getenv(fileVariable), sqlitestore.Options{})
		demo.Check(err)
		return &ledger{openFile(), noTx}, store
	default:
		store, err := sqlitestore.OpenTx(ctx, os.Getenv(fileVariable), sqlitestore.Options{})
		demo.Check(err)
		return &ledger{openFile(), sqlitestore.Tx}, store
	}
}

func usesPostgres() bool { return os.Getenv(databaseVariable) != "" && os.Getenv(redisVariable) == "" }

func noTx(context.Context) (*sql.Tx, bool) { return nil, false }

// openFile opens the file of the ledger. Those who write to it wait for each other.
func openFile() *sql.DB {
	db, err := sql.Open("sqlite", "file:"+os.Getenv(fileVariable)+"?_pragma=journal_mode(WAL)&_pragma=busy_timeout(10000)")
	demo.Check(err)
	return db
}
