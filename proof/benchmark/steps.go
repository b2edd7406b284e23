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
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/mysqlstore"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

// stepResult is the result of a step: 200 bytes of JSON.
var stepResult = []byte(`"` + string(Small.answer()[:198]) + `"`)

// stepNames are the steps of an operation.
var stepNames = []string{"reserve", "charge", "ship"}

// Stepping compares steps on one store with writes of the same size by hand.
type Stepping struct {
	Name, By string // the store, and the write
	Servers  *Backends
	Store    idempotency.Store

	// Claim stores the token of an operation, by hand. Write stores the result of a step, unless there is one, if the
	// operation has the token.
	Claim func(ctx context.Context, id, token string) error
	Write func(ctx context.Context, id, token, name string) error
}

// Batches returns how the steps of n operations are measured, and how the writes are.
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
	cost, err = costOf(s.Servers, n*len(stepNames), eachStep(keys, func(id, name string) error {
		stored, err := claims[id].Checkpoint(ctx, name, stepResult)
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

// eachStep returns a function that calls write for every step of every key.
func eachStep(keys []string, write func(id, name string) error) func() error {
	return each(keys, func(id string) error {
		for _, name := range stepNames {
			if err := write(id, name); err != nil {
				return err
			}
		}
		return nil
	})
}

// stepToken is that of every operation by hand.
const stepToken = "0123456789abcdef0123456789abcdef"

func (s Stepping) writes(n int) (Cost, error) {
	ctx, keys := context.Background(), NewKeys(n)
	if err := each(keys, func(id string) error { return s.Claim(ctx, id, stepToken) })(); err != nil {
		return Cost{}, err
	}
	return costOf(s.Servers, n*len(stepNames), eachStep(keys, func(id, name string) error {
		return s.Write(ctx, id, stepToken, name)
	}))
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

// byHand is an operation in memory, by hand.
type byHand struct {
	token   string
	results map[string][]byte
}

func steppingInMemory() Stepping {
	var mu sync.Mutex
	all := make(map[string]*byHand)
	return Stepping{
		Name: "memory", By: "an entry of a map of maps, under a mutex",
		Store: idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: 8 << 30}),
		Claim: func(_ context.Context, id, token string) error {
			mu.Lock()
			defer mu.Unlock()
			all[id] = &byHand{token, make(map[string][]byte)}
			return nil
		},
		Write: func(_ context.Context, id, token, name string) error {
			mu.Lock()
			defer mu.Unlock()
			operation := all[id]
			if operation == nil || operation.token != token {
				return errFenced
			}
			if _, there := operation.results[name]; !there {
				operation.results[name] = stepResult
			}
			return nil
		},
	}
}

var errFenced = errors.New("benchmark: another attempt has the operation")

// leastStep is a step in Redis, by hand.
var leastStep = redis.NewScript(`
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
if redis.call('HSETNX', KEYS[2], ARGV[2], ARGV[3]) == 1 then
  redis.call('PEXPIRE', KEYS[2], ARGV[4])
end
return 1`)

func steppingInRedis() (Stepping, func(), error) {
	b, err := OpenRedis()
	if err != nil {
		return Stepping{}, nil, err
	}
	return Stepping{
		Name: "Redis", By: "a script: GET, HSETNX, PEXPIRE", Servers: b, Store: redisStore(b),
		Claim: func(ctx context.Context, id, token string) error { return b.Redis.Set(ctx, id, token, ttl).Err() },
		Write: func(ctx context.Context, id, token, name string) error {
			keys := []string{id, id + ":steps"}
			stored, err := leastStep.Run(ctx, b.Redis, keys, token, name, stepResult, ttl.Milliseconds()).Int()
			return fenced(stored, err)
		},
	}, b.Close, nil
}

func fenced[N int | int64](changed N, err error) error {
	if err == nil && changed == 0 {
		err = errFenced
	}
	return err
}

// What is done by hand in a database.
const (
	createClaims = "CREATE TABLE claims (id varchar(100) PRIMARY KEY, token varchar(32) NOT NULL)"
	createSteps  = "CREATE TABLE steps (id varchar(100), name varchar(100), result %s, PRIMARY KEY (id, name))"
	insertStep   = "%s INTO steps SELECT id, %s, %s FROM claims WHERE id = %s AND token = %s%s"
)

func steppingInPostgres() (Stepping, func(), error) {
	b := &Backends{}
	if _, err := b.opened(b.openPostgres(nil)); err != nil {
		return Stepping{}, nil, err
	}
	ctx := context.Background()
	_, err := b.Postgres.Exec(ctx, createClaims+";"+fmt.Sprintf(createSteps, "bytea"))
	insert := fmt.Sprintf(insertStep, "INSERT", "$2::text", "$3::bytea", "$1", "$4", " ON CONFLICT DO NOTHING")
	return Stepping{
		Name: "PostgreSQL", By: "INSERT ... SELECT ... ON CONFLICT DO NOTHING", Servers: b,
		Store: pgxstore.New(b.Postgres, pgxstore.Options{}),
		Claim: func(ctx context.Context, id, token string) error {
			_, err := b.Postgres.Exec(ctx, "INSERT INTO claims VALUES ($1, $2)", id, token)
			return err
		},
		Write: func(ctx context.Context, id, token, name string) error {
			tag, err := b.Postgres.Exec(ctx, insert, id, name, stepResult, token)
			return fenced(tag.RowsAffected(), err)
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
	ctx := context.Background()
	db, err := sql.Open("mysql", server.DSN())
	if err != nil {
		return Stepping{}, b.Close, err
	}
	b.closers = append(b.closers, func() { _ = db.Close() })
	for _, create := range []string{createClaims, fmt.Sprintf(createSteps, "blob")} {
		_, failed := db.ExecContext(ctx, create)
		err = errors.Join(err, failed)
	}
	err = errors.Join(err, mysqlstore.Migrate(ctx, db, mysqlstore.Options{}))
	return Stepping{
		Name: "MariaDB", By: "INSERT IGNORE ... SELECT", Servers: b, Store: mysqlstore.New(db, mysqlstore.Options{}),
		Claim: claimIn(db), Write: writeIn(db, "INSERT IGNORE"),
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
		_, err = db.ExecContext(ctx, createClaims+";"+fmt.Sprintf(createSteps, "blob"))
	}
	return Stepping{
		Name: "SQLite", By: "INSERT OR IGNORE ... SELECT", Store: store,
		Claim: claimIn(db), Write: writeIn(db, "INSERT OR IGNORE"),
	}, func() { _, _ = store.Close(), db.Close(); end() }, err
}

func claimIn(db *sql.DB) func(ctx context.Context, id, token string) error {
	return func(ctx context.Context, id, token string) error {
		_, err := db.ExecContext(ctx, "INSERT INTO claims VALUES (?, ?)", id, token)
		return err
	}
}

func writeIn(db *sql.DB, insertion string) func(ctx context.Context, id, token, name string) error {
	insert := fmt.Sprintf(insertStep, insertion, "?", "?", "?", "?", "")
	return func(ctx context.Context, id, token, name string) error {
		result, err := db.ExecContext(ctx, insert, name, stepResult, id, token)
		if err != nil {
			return err
		}
		return fenced(result.RowsAffected())
	}
}
