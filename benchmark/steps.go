package benchmark

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	_ "github.com/go-sql-driver/mysql"
	"github.com/redis/go-redis/v9"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/servertest"
	"github.com/idempotency-go/idempotency/mysqlstore"
	"github.com/idempotency-go/idempotency/pgxstore"
	"github.com/idempotency-go/idempotency/sqlitestore"
)

// stepResult is the result of a step: 200 bytes of JSON.
var stepResult = []byte(`"` + string(Small.answer()[:198]) + `"`)

// Stepping compares a step on one store with a write of the same size by hand.
type Stepping struct {
	Name, By string // the store, and the write
	Servers  *Backends
	Store    idempotency.Store
	Write    func(ctx context.Context, id string) error
}

// Batches returns how n steps of n operations are measured, and how n writes are.
func (s Stepping) Batches(n int) []Contender {
	return []Contender{
		{s.Name, func() (Cost, error) { return s.steps(n) }},
		{s.By, func() (Cost, error) { return s.writes(n) }},
	}
}

// steps measures what a step stores: the checkpoint of a claim.
func (s Stepping) steps(n int) (cost Cost, err error) {
	ctx, keys := context.Background(), NewKeys(n)
	claims := make(map[string]idempotency.Checkpointer, n)
	for _, id := range keys {
		key, attempt, _ := entry(id)
		_, claim, err := s.Store.Begin(ctx, key, attempt)
		if err != nil {
			return Cost{}, err
		}
		claims[id] = claim.(idempotency.Checkpointer)
	}
	cost, err = costOf(s.Servers, n, each(keys, func(id string) error {
		stored, err := claims[id].Checkpoint(ctx, "charge", stepResult)
		if err == nil && len(stored) != len(stepResult) {
			err = errors.New("benchmark: another result is stored")
		}
		return err
	}))
	if err != nil {
		return Cost{}, err
	}
	return cost, each(keys, func(id string) error { return claims[id].Release(ctx, ttl) })()
}

func (s Stepping) writes(n int) (Cost, error) {
	ctx := context.Background()
	return costOf(s.Servers, n, each(NewKeys(n), func(id string) error { return s.Write(ctx, id) }))
}

// OpenSteppings starts the servers. The caller calls close. The error wraps [exec.ErrNotFound] if one is not installed.
func OpenSteppings() (all []Stepping, close func(), err error) {
	var closers []func()
	close = func() {
		for _, c := range slices.Backward(closers) {
			c()
		}
	}
	add := func(s Stepping, end func(), err error) error {
		if end != nil {
			closers = append(closers, end)
		}
		all = append(all, s)
		return err
	}
	all = append(all, steppingInMemory())
	for _, open := range []func() (Stepping, func(), error){steppingInRedis, steppingInPostgres, steppingInMariaDB, steppingInSQLite} {
		if err := add(open()); err != nil {
			close()
			return nil, nil, err
		}
	}
	return all, close, nil
}

func steppingInMemory() Stepping {
	var mu sync.Mutex
	written := make(map[string][]byte)
	return Stepping{
		Name: "memory", By: "an entry of a map, under a mutex",
		Store: idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: 8 << 30}),
		Write: func(_ context.Context, id string) error {
			mu.Lock()
			defer mu.Unlock()
			written[id] = stepResult
			return nil
		},
	}
}

func steppingInRedis() (Stepping, func(), error) {
	b, err := OpenRedis()
	if err != nil {
		return Stepping{}, nil, err
	}
	return Stepping{
		Name: "Redis", By: "SET NX GET", Servers: b, Store: redisStore(b),
		Write: func(ctx context.Context, id string) error {
			err := b.Redis.SetArgs(ctx, id, stepResult, redis.SetArgs{Mode: "NX", Get: true, TTL: ttl}).Err()
			if errors.Is(err, redis.Nil) {
				return nil
			}
			return err
		},
	}, b.Close, nil
}

const createSteps = "CREATE TABLE steps (key varchar(100), name varchar(100), result %s, PRIMARY KEY (key, name))"

func steppingInPostgres() (Stepping, func(), error) {
	b := &Backends{}
	if _, err := b.opened(b.openPostgres(nil)); err != nil {
		return Stepping{}, nil, err
	}
	ctx := context.Background()
	_, err := b.Postgres.Exec(ctx, fmt.Sprintf(createSteps, "bytea"))
	return Stepping{
		Name: "PostgreSQL", By: "INSERT ... ON CONFLICT DO NOTHING", Servers: b, Store: pgxstore.New(b.Postgres, pgxstore.Options{}),
		Write: func(ctx context.Context, id string) error {
			const insert = "INSERT INTO steps VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"
			_, err := b.Postgres.Exec(ctx, insert, id, "charge", stepResult)
			return err
		},
	}, b.Close, err
}

func steppingInMariaDB() (Stepping, func(), error) {
	b := &Backends{}
	server, err := servertest.StartMariaDB("innodb_flush_log_at_trx_commit=0", "max_connections=200")
	if err != nil {
		return Stepping{}, nil, err
	}
	b.add(server.Server)
	db, err := sql.Open("mysql", server.DSN())
	if err != nil {
		return Stepping{}, b.Close, err
	}
	b.closers = append(b.closers, func() { _ = db.Close() })
	_, err = db.Exec("CREATE TABLE steps (`key` varchar(100), name varchar(100), result blob, PRIMARY KEY (`key`, name))")
	err = errors.Join(err, mysqlstore.Migrate(context.Background(), db, mysqlstore.Options{}))
	return Stepping{
		Name: "MariaDB", By: "INSERT IGNORE", Servers: b, Store: mysqlstore.New(db, mysqlstore.Options{}),
		Write: func(ctx context.Context, id string) error {
			_, err := db.ExecContext(ctx, "INSERT IGNORE INTO steps VALUES (?, ?, ?)", id, "charge", stepResult)
			return err
		},
	}, b.Close, err
}

func steppingInSQLite() (Stepping, func(), error) {
	dir, err := os.MkdirTemp("", "idempotency-benchmark-")
	if err != nil {
		return Stepping{}, nil, err
	}
	ctx, end := context.Background(), func() { _ = os.RemoveAll(dir) }
	opts := sqlitestore.Options{Synchronous: sqlitestore.Normal}
	store, err := sqlitestore.Open(ctx, filepath.Join(dir, "records"), opts)
	if err != nil {
		return Stepping{}, end, err
	}
	db, err := sql.Open("sqlite", filepath.Join(dir, "steps")+"?_pragma=journal_mode(wal)&_pragma=synchronous(normal)")
	if err == nil {
		_, err = db.ExecContext(ctx, fmt.Sprintf(createSteps, "blob"))
	}
	return Stepping{
		Name: "SQLite", By: "INSERT OR IGNORE", Store: store,
		Write: func(ctx context.Context, id string) error {
			_, err := db.ExecContext(ctx, "INSERT OR IGNORE INTO steps VALUES (?, ?, ?)", id, "charge", stepResult)
			return err
		},
	}, func() { _, _ = store.Close(), db.Close(); end() }, err
}
