package probe_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/guarantees/emulated"
	"github.com/idempotency-go/idempotency/proof/killtest"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/stores/cache"
	"github.com/idempotency-go/idempotency/stores/casstore"
	"github.com/idempotency-go/idempotency/stores/dynamodbstore"
	"github.com/idempotency-go/idempotency/stores/mysqlstore"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
	"github.com/idempotency-go/idempotency/stores/seal"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

// services are the services under test, by name. The processes find their service by the name.
var services = map[string]service{
	"redis, provider":    {startRedis, openRedis, guardedDecisions},
	"redis, refuses":     {startRedisAndFile, openRedisAndFile, refusingDecisions},
	"cache, provider":    {startRedis, openCachedRedis, guardedDecisions},
	"postgres, rows":     {startPostgres, openPostgres, guardedDecisions},
	"postgres, sealed":   {startPostgres, openSealedPostgres, guardedDecisions},
	"mysql, rows":        {startMariaDB, openMariaDB, guardedDecisions},
	"sqlite, rows":       {startSQLite, openSQLite, guardedDecisions},
	"dynamodb, provider": {startDynamoDB, openDynamoDB, guardedDecisions},
	"cas, provider":      {startTable, openTable, guardedDecisions},
	"transaction":        {startTransactions, openTransactions, transactionDecisions},
}

// guardedDecisions are the decisions of a service with default options, apart from Required.
var guardedDecisions = map[string]string{
	"marker":             "Idempotent-Replayed",
	"while-running":      "409",
	"other-content":      "409",
	"other-route":        "executed",
	"other-user":         "executed",
	"key-missing":        "400",
	"key-empty":          "400",
	"key-too-long":       "400",
	"key-twice":          "400",
	"key-not-ascii":      "400",
	"key-quoted":         "same",
	"invalid-request":    "kept",
	"failed-request":     "failed",
	"incomplete-request": "ignored",
	"large-body":         "413",
	"chunked-body":       "executed",
	"compressed-body":    "400",
	"after-death":        "answered",
}

// refusingDecisions are the decisions of a service that refuses what it does not know, and that takes requests without a key.
var refusingDecisions = withDecisions(guardedDecisions, map[string]string{
	"after-death":   "unknown",
	"while-running": "waits",
	"other-content": "422",
	"key-missing":   "executed",
})

// withDecisions returns decisions with the changes.
func withDecisions(decisions, changes map[string]string) map[string]string {
	changed := maps.Clone(decisions)
	maps.Copy(changed, changes)
	return changed
}

// startProvider starts a provider that charges once for each key, and counts its charges.
func startProvider(t *testing.T, place string) sharedData {
	t.Helper()
	provider := killtest.NewProvider(t)
	return sharedData{place: place, env: []string{provider.Env()}, countCharges: func(context.Context) (int, error) {
		_, _, charges := provider.Counts()
		return charges, nil
	}}
}

// chargeByProvider charges at the provider. The receipt is the operation, because the handler may be executed again.
func chargeByProvider(ctx context.Context, _ int) (receipt string, err error) {
	op, _ := idempotency.FromContext(ctx)
	return op.ID.String(), killtest.Charge(ctx)
}

func startRedis(t *testing.T) sharedData {
	return startProvider(t, "redis://:"+servertest.RedisPassword()+"@"+servertest.Redis(t).Addr())
}

func newRedisStore(place string) (idempotency.Store, error) {
	opts, err := redis.ParseURL(place)
	if err != nil {
		return nil, err
	}
	return idempotency.NewRedisStore(redis.NewClient(opts), idempotency.RedisOptions{}), nil
}

func openRedis(place string) (http.Handler, error) {
	store, err := newRedisStore(place)
	if err != nil {
		return nil, err
	}
	return newGuarded(store, chargeByProvider)
}

func openCachedRedis(place string) (http.Handler, error) {
	store, err := newRedisStore(place)
	if err != nil {
		return nil, err
	}
	return newGuarded(cache.New(store, cache.Options{}), chargeByProvider)
}

// fileVariable is the variable with the name of the file of charges.
const fileVariable = "PROBED_FILE"

// startRedisAndFile has charges that nobody can look up, so an operation whose process has died has an unknown outcome.
func startRedisAndFile(t *testing.T) sharedData {
	data := startRedis(t)
	file := filepath.Join(t.TempDir(), "charges")
	data.env = []string{fileVariable + "=" + file}
	data.countCharges = func(context.Context) (int, error) {
		lines, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			return 0, nil
		}
		return bytes.Count(lines, []byte("\n")), err
	}
	return data
}

func openRedisAndFile(place string) (http.Handler, error) {
	store, err := newRedisStore(place)
	if err != nil {
		return nil, err
	}
	file, err := os.OpenFile(os.Getenv(fileVariable), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	chargeIntoFile := func(_ context.Context, amount int) (receipt string, err error) {
		receipt = rand.Text()
		_, err = fmt.Fprintf(file, "%s %d\n", receipt, amount) // one system call
		return receipt, err
	}
	return newGuarded(store, chargeIntoFile, func(o *idempotency.Options) {
		o.Abandoned, o.Required, o.Wait, o.ReuseStatus = idempotency.Refuse, false, 10*time.Second, http.StatusUnprocessableEntity
	})
}

const createCharges = "CREATE TABLE charges (receipt VARCHAR(60) PRIMARY KEY, amount BIGINT NOT NULL)"

func startPostgres(t *testing.T) sharedData {
	url := servertest.Postgres(t).URL()
	pool, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	require.NoError(t, pgxstore.Migrate(t.Context(), pool, pgxstore.Options{}))
	_, err = pool.Exec(t.Context(), createCharges)
	require.NoError(t, err)
	return sharedData{place: url, countCharges: func(ctx context.Context) (count int, err error) {
		err = pool.QueryRow(ctx, "SELECT count(*) FROM charges").Scan(&count)
		return count, err
	}}
}

func chargeInPostgres(ctx context.Context, amount int) (receipt string, err error) {
	return pgxstore.DoTx(ctx, "charge", func(tx pgx.Tx) (string, error) { return insertCharge(ctx, tx, amount) })
}

func insertCharge(ctx context.Context, tx pgx.Tx, amount int) (receipt string, err error) {
	receipt = rand.Text()
	_, err = tx.Exec(ctx, "INSERT INTO charges (receipt, amount) VALUES ($1, $2)", receipt, amount)
	return receipt, err
}

func openPostgres(place string) (http.Handler, error) {
	pool, err := pgxpool.New(context.Background(), place)
	if err != nil {
		return nil, err
	}
	return newGuarded(pgxstore.New(pool, pgxstore.Options{}), chargeInPostgres)
}

func openSealedPostgres(place string) (http.Handler, error) {
	pool, err := pgxpool.New(context.Background(), place)
	if err != nil {
		return nil, err
	}
	store, err := seal.New(pgxstore.New(pool, pgxstore.Options{}), testservice.Sealing("key"))
	if err != nil {
		return nil, err
	}
	return newGuarded(store, chargeInPostgres)
}

// countRows returns a function that counts the charges in db, which is closed at the end of the test.
func countRows(t *testing.T, db *sql.DB) func(context.Context) (int, error) {
	t.Cleanup(func() { _ = db.Close() })
	_, err := db.ExecContext(t.Context(), createCharges)
	require.NoError(t, err)
	return func(ctx context.Context) (count int, err error) {
		err = db.QueryRowContext(ctx, "SELECT count(*) FROM charges").Scan(&count)
		return count, err
	}
}

// doTx is the function DoTx of a store.
type doTx func(ctx context.Context, name string, fn func(tx *sql.Tx) (string, error)) (string, error)

// chargeBy returns a function that inserts a charge in a step.
func chargeBy(doTx doTx) chargeFunc {
	return func(ctx context.Context, amount int) (receipt string, err error) {
		return doTx(ctx, "charge", func(tx *sql.Tx) (string, error) {
			receipt := rand.Text()
			_, err := tx.ExecContext(ctx, "INSERT INTO charges (receipt, amount) VALUES (?, ?)", receipt, amount)
			return receipt, err
		})
	}
}

func startMariaDB(t *testing.T) sharedData {
	dsn := servertest.MariaDB(t).DSN()
	db, err := sql.Open("mysql", dsn)
	require.NoError(t, err)
	require.NoError(t, mysqlstore.Migrate(t.Context(), db, mysqlstore.Options{}))
	return sharedData{place: dsn, countCharges: countRows(t, db)}
}

func openMariaDB(place string) (http.Handler, error) {
	db, err := sql.Open("mysql", place)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(8)
	db.SetMaxIdleConns(8)
	return newGuarded(mysqlstore.New(db, mysqlstore.Options{}), chargeBy(mysqlstore.DoTx[string]))
}

func startSQLite(t *testing.T) sharedData {
	file := filepath.Join(t.TempDir(), "payments.db")
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=journal_mode(WAL)&_pragma=busy_timeout(10000)")
	require.NoError(t, err)
	return sharedData{place: file, countCharges: countRows(t, db)}
}

func openSQLite(place string) (http.Handler, error) {
	store, err := sqlitestore.Open(context.Background(), place, sqlitestore.Options{})
	if err != nil {
		return nil, err
	}
	return newGuarded(store, chargeBy(sqlitestore.DoTx[string]))
}

func startDynamoDB(t *testing.T) sharedData { return startProvider(t, emulated.DynamoDB(t)) }

func openDynamoDB(place string) (http.Handler, error) {
	opts := dynamodbstore.Options{Skew: time.Second} // all processes have one clock
	return newGuarded(dynamodbstore.New(emulated.DynamoDBClient(place), opts), chargeByProvider)
}

func startTable(t *testing.T) sharedData {
	server := httptest.NewServer(&tableServer{values: make(map[string]casstore.Value)})
	t.Cleanup(server.Close)
	return startProvider(t, server.URL)
}

// openTable returns a service whose handler ends with the client.
func openTable(place string) (http.Handler, error) {
	store := casstore.New(tableClient{place}, casstore.Options{Skew: time.Second}) // all processes have one clock
	return newGuarded(store, chargeByProvider, func(o *idempotency.Options) { o.CancelWithClient = true })
}
