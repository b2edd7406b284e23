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
	"github.com/idempotency-go/idempotency/stores/pgxstore"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

// These environment variables say where the keys and the ledger are:
//
//   - By default, the keys and the ledger are in one file. A charge is a step, so its row and its result are committed
//     together, or both are missing, whenever the server is killed.
//   - With DATABASE_URL, the keys and the ledger are in a new schema of that PostgreSQL. A charge is a step here, too.
//   - With REDIS_URL, the keys are in that Redis, and the ledger is in a file, so no transaction spans both. If the server is
//     killed after the charge and before Redis has the answer, the next attempt has the same operation ID, and the ledger
//     finds the charge by this ID. Other systems find a charge by Operation.DownstreamKey.
//   - With CHECKOUT_CONSOLE, the ledger stands for a system without transactions and keys. So a charge is repeated only after
//     an operator has looked into the ledger.
const (
	databaseVariable = "DATABASE_URL"
	redisVariable    = "REDIS_URL"
	fileVariable     = "CHECKOUT_FILE"
	consoleVariable  = "CHECKOUT_CONSOLE"
)

func hasConsole() bool { return os.Getenv(consoleVariable) != "" }

// createLedger creates an empty ledger. Children of this process find the ledger by their environment.
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

// openStore opens the ledger of createLedger, and the store of the keys.
func openStore(ctx context.Context) (*ledger, idempotency.Store) {
	l := new(ledger)
	var store idempotency.Store
	switch {
	case usesPostgres():
		pool := database.Connect(ctx)
		l.db, l.runStep, store = stdlib.OpenDBFromPool(pool), pgxstore.DoSQLTx, pgxstore.New(pool, pgxstore.Options{})
	case os.Getenv(redisVariable) != "":
		opts, err := redis.ParseURL(os.Getenv(redisVariable))
		demo.Check(err)
		l.db = openFile()
		store = idempotency.NewRedisStore(redis.NewClient(opts), idempotency.RedisOptions{Prefix: "checkout:"})
	default:
		file, err := sqlitestore.Open(ctx, os.Getenv(fileVariable), sqlitestore.Options{})
		demo.Check(err)
		l.db, l.runStep, store = openFile(), sqlitestore.DoTx, file
	}
	if hasConsole() {
		l.runStep = nil
	}
	return l, store
}

func usesPostgres() bool { return os.Getenv(databaseVariable) != "" && os.Getenv(redisVariable) == "" }

// openFile opens the file of the ledger. Concurrent writers wait for each other.
func openFile() *sql.DB {
	db, err := sql.Open("sqlite", "file:"+os.Getenv(fileVariable)+"?_pragma=journal_mode(WAL)&_pragma=busy_timeout(10000)")
	demo.Check(err)
	return db
}
