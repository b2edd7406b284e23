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

// The environment variables of the processes that a test kills.
const (
	kindVariable    = "STEPS_STORE"
	placeVariable   = "STEPS_PLACE"
	effectsVariable = "STEPS_EFFECTS" // the file with the effects of operations that an operator resolves
	rowsVariable    = "STEPS_ROWS"    // not empty: operations write rows
)

func TestMain(m *testing.M) {
	if kind := os.Getenv(kindVariable); kind != "" {
		killtest.RunProcess(func() (killtest.Work, error) {
			store, err := openStore(kind, os.Getenv(placeVariable))
			if err != nil {
				return nil, err
			}
			if effects := os.Getenv(effectsVariable); effects != "" {
				return killtest.ExecuteOnce(store, effects)
			}
			if os.Getenv(rowsVariable) == "" {
				return killtest.ExecuteSteps(store)
			}
			database, err := openDatabases[kind](os.Getenv(placeVariable))
			if err != nil {
				return nil, err
			}
			return killtest.ExecuteTransfers(store, database.bookTransfer)
		})
	}
	os.Exit(m.Run())
}

// openStore opens a store of the given kind. place is the URL, the DSN, or the file.
func openStore(kind, place string) (idempotency.Store, error) {
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

// preparePlace has a function for each kind of store, which starts the server, creates the tables, and returns the place.
var preparePlace = map[string]func(t *testing.T) string{
	"redis": startRedis, "postgres": startPostgres, "mysql": startMySQL, "sqlite": newSQLiteFile,
}

func startRedis(t *testing.T) string {
	return "redis://:" + servertest.RedisPassword() + "@" + servertest.Redis(t).Addr()
}

func startPostgres(t *testing.T) string {
	url := servertest.Postgres(t).URL()
	pool, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	defer pool.Close()
	require.NoError(t, pgxstore.Migrate(t.Context(), pool, pgxstore.Options{}))
	return url
}

func startMySQL(t *testing.T) string {
	dsn := servertest.MariaDB(t).DSN()
	db, err := sql.Open("mysql", dsn)
	require.NoError(t, err)
	defer db.Close()
	require.NoError(t, mysqlstore.Migrate(t.Context(), db, mysqlstore.Options{}))
	return dsn
}

func newSQLiteFile(t *testing.T) string { return filepath.Join(t.TempDir(), "records.db") }

// Wherever a process dies, a finished step does not run again, and the result of the step is not lost.
func TestStepsOfKilledProcesses(t *testing.T) {
	t.Parallel()
	turns := make(chan struct{}, 2)
	for kind, newPlace := range preparePlace {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			turns <- struct{}{}
			defer func() { <-turns }()
			place, deaths := newPlace(t), scaleDeaths()
			provider := killtest.NewStepProvider(t)
			require.NoError(t, provider.Kill(deaths, kindVariable+"="+kind, placeVariable+"="+place))
			store, err := openStore(kind, place)
			require.NoError(t, err)
			require.NoError(t, provider.Explain(t.Context(), store))
			effort.Count(t, "deaths", deaths)
			provider.Count(t)
			t.Log(provider)
		})
	}
}

// scaleDeaths returns the number of processes that a test kills.
func scaleDeaths() int {
	deaths := effort.Of(2000)
	if effort.Of(100) < 10 { // with the race detector, a process takes a second to start
		return max(10, deaths/4)
	}
	return deaths
}

// Processes die while they charge in the first step, and write rows in the next step. The rows exist once, and the provider has
// charged once for them.
func TestRowsOfKilledProcesses(t *testing.T) {
	t.Parallel()
	turns := make(chan struct{}, 2)
	for kind, openDatabase := range openDatabases {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			turns <- struct{}{}
			defer func() { <-turns }()
			place, deaths := preparePlace[kind](t), scaleDeaths()
			store, err := openStore(kind, place)
			require.NoError(t, err)
			database, err := openDatabase(place)
			require.NoError(t, err)
			defer database.close()
			ledger := killtest.Ledger{DB: database.sqlDB}
			require.NoError(t, ledger.Create(t.Context()))
			said := killtest.NewTransfers(t)
			require.NoError(t, said.Kill(deaths, kindVariable+"="+kind, placeVariable+"="+place, rowsVariable+"=yes"))
			require.NoError(t, said.Explain(t.Context(), store, database.bookTransfer, ledger))
			effort.Count(t, "deaths", deaths)
			effort.Count(t, "operations with rows", len(said.Acknowledged()))
			effort.Charges(t, said.Provider())
			t.Log(said)
		})
	}
}
