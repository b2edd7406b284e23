package steps_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"testing"

	_ "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/guarantees/effort"
	"github.com/idempotency-go/idempotency/proof/killtest"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/mysqlstore"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

// The environment variables of a process that is to be killed.
const (
	kindVariable    = "STEPS_STORE"
	placeVariable   = "STEPS_PLACE"
	effectsVariable = "STEPS_EFFECTS" // of what an operator resolves
	rowsVariable    = "STEPS_ROWS"    // not empty: operations write rows
)

func TestMain(m *testing.M) {
	if kind := os.Getenv(kindVariable); kind != "" {
		killtest.RunProcess(func() (killtest.Work, error) {
			store, err := open(kind, os.Getenv(placeVariable))
			if err != nil {
				return nil, err
			}
			if effects := os.Getenv(effectsVariable); effects != "" {
				return killtest.ExecuteOnce(store, effects)
			}
			if os.Getenv(rowsVariable) == "" {
				return killtest.ExecuteSteps(store)
			}
			database, err := databases[kind](os.Getenv(placeVariable))
			if err != nil {
				return nil, err
			}
			return killtest.ExecuteTransfers(store, database.book)
		})
	}
	os.Exit(m.Run())
}

// open opens a store of a kind, at a place.
func open(kind, place string) (idempotency.Store, error) {
	ctx := context.Background()
	switch kind {
	case "redis":
		opts, err := redis.ParseURL(place)
		if err != nil {
			return nil, err
		}
		return idempotency.NewRedisStore(redis.NewClient(opts), idempotency.RedisOptions{}), nil
	case "postgres":
		pool, err := pgxpool.New(ctx, place)
		if err != nil {
			return nil, err
		}
		return pgxstore.New(pool, pgxstore.Options{}), nil
	case "mysql":
		db, err := sql.Open("mysql", place)
		if err != nil {
			return nil, err
		}
		db.SetMaxIdleConns(8)
		return mysqlstore.New(db, mysqlstore.Options{}), nil
	case "sqlite":
		return sqlitestore.Open(ctx, place, sqlitestore.Options{})
	}
	return nil, errors.New(kind)
}

// places prepare a store of a kind, and return where it is.
var places = map[string]func(t *testing.T) string{
	"redis": newRedis, "postgres": newPostgres, "mysql": newMySQL, "sqlite": newFile,
}

func newRedis(t *testing.T) string {
	return "redis://:" + servertest.RedisPassword() + "@" + servertest.Redis(t).Addr()
}

func newPostgres(t *testing.T) string {
	url := servertest.Postgres(t).URL()
	pool, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	defer pool.Close()
	require.NoError(t, pgxstore.Migrate(t.Context(), pool, pgxstore.Options{}))
	return url
}

func newMySQL(t *testing.T) string {
	dsn := servertest.MariaDB(t).DSN()
	db, err := sql.Open("mysql", dsn)
	require.NoError(t, err)
	defer db.Close()
	require.NoError(t, mysqlstore.Migrate(t.Context(), db, mysqlstore.Options{}))
	return dsn
}

func newFile(t *testing.T) string { return filepath.Join(t.TempDir(), "records.db") }

// Wherever a process dies, a finished step is not done again, and its result is not lost.
func TestStepsOfKilledProcesses(t *testing.T) {
	t.Parallel()
	turns := make(chan struct{}, 2)
	for kind, newPlace := range places {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			turns <- struct{}{}
			defer func() { <-turns }()
			place, deaths := newPlace(t), howMany()
			provider := killtest.NewStepProvider(t)
			require.NoError(t, provider.Kill(deaths, kindVariable+"="+kind, placeVariable+"="+place))
			store, err := open(kind, place)
			require.NoError(t, err)
			require.NoError(t, provider.Explain(t.Context(), store))
			effort.Count(t, "deaths", deaths)
			provider.Count(t)
			t.Log(provider)
		})
	}
}

// howMany returns how many processes a test kills.
func howMany() int {
	deaths := effort.Of(2000)
	if effort.Of(100) < 10 { // with the race detector, with which a process takes a second to start
		return max(10, deaths/4)
	}
	return deaths
}

// Processes die while they charge in one step, and write rows in the next one. The rows are there once, and the provider has
// charged once for them.
func TestRowsOfKilledProcesses(t *testing.T) {
	t.Parallel()
	turns := make(chan struct{}, 2)
	for kind, openDatabase := range databases {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			turns <- struct{}{}
			defer func() { <-turns }()
			place, deaths := places[kind](t), howMany()
			store, err := open(kind, place)
			require.NoError(t, err)
			database, err := openDatabase(place)
			require.NoError(t, err)
			defer database.close()
			ledger := killtest.Ledger{DB: database.sql}
			require.NoError(t, ledger.Create(t.Context()))
			said := killtest.NewTransfers(t)
			require.NoError(t, said.Kill(deaths, kindVariable+"="+kind, placeVariable+"="+place, rowsVariable+"=yes"))
			require.NoError(t, said.Explain(t.Context(), store, database.book, ledger))
			effort.Count(t, "deaths", deaths)
			effort.Count(t, "operations with rows", len(said.Acknowledged()))
			effort.Charges(t, said.Provider())
			t.Log(said)
		})
	}
}
