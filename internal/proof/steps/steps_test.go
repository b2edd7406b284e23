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
	"github.com/idempotency-go/idempotency/internal/killtest"
	"github.com/idempotency-go/idempotency/internal/proof/effort"
	"github.com/idempotency-go/idempotency/internal/servertest"
	"github.com/idempotency-go/idempotency/mysqlstore"
	"github.com/idempotency-go/idempotency/pgxstore"
	"github.com/idempotency-go/idempotency/sqlitestore"
	"github.com/idempotency-go/idempotency/step"
)

// The environment variables of a process that is to be killed.
const (
	kindVariable    = "STEPS_STORE"
	placeVariable   = "STEPS_PLACE"
	effectsVariable = "STEPS_EFFECTS" // of what an operator resolves
)

func TestMain(m *testing.M) {
	if kind := os.Getenv(kindVariable); kind != "" {
		killtest.Live(func() (killtest.Work, error) {
			store, err := open(kind, os.Getenv(placeVariable))
			if err != nil {
				return nil, err
			}
			if effects := os.Getenv(effectsVariable); effects != "" {
				return killtest.ExecuteOnce(store, effects)
			}
			return killtest.ExecuteSteps(store)
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
	case "postgres", "postgres transactions":
		pool, err := pgxpool.New(ctx, place)
		if err != nil {
			return nil, err
		}
		steps, err := pgxpool.New(ctx, place)
		if err != nil || kind == "postgres" {
			return pgxstore.New(pool, pgxstore.Options{}), err
		}
		return step.Beside(pgxstore.NewTx(pool, pgxstore.Options{}), pgxstore.New(steps, pgxstore.Options{}))
	case "mysql", "mysql transactions":
		db, err := sql.Open("mysql", place)
		if err != nil {
			return nil, err
		}
		db.SetMaxIdleConns(8)
		steps, err := sql.Open("mysql", place)
		if err != nil || kind == "mysql" {
			return mysqlstore.New(db, mysqlstore.Options{}), err
		}
		steps.SetMaxIdleConns(8)
		return step.Beside(mysqlstore.NewTx(db, mysqlstore.Options{}), mysqlstore.New(steps, mysqlstore.Options{}))
	case "sqlite", "sqlite transactions":
		if kind == "sqlite" {
			return sqlitestore.Open(ctx, place, sqlitestore.Options{})
		}
		tx, err := sqlitestore.OpenTx(ctx, place, sqlitestore.Options{})
		if err != nil {
			return nil, err
		}
		steps, err := sqlitestore.Open(ctx, place+".steps", sqlitestore.Options{})
		if err != nil {
			return nil, err
		}
		return step.Beside(tx, steps)
	}
	return nil, errors.New(kind)
}

// places prepare a store of a kind, and return where it is.
var places = map[string]func(t *testing.T) string{
	"redis":    newRedis,
	"postgres": newPostgres, "postgres transactions": newPostgres,
	"mysql": newMySQL, "mysql transactions": newMySQL,
	"sqlite": newFile, "sqlite transactions": newFile,
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
			place, deaths := newPlace(t), effort.Of(2000)
			if effort.Of(100) < 10 { // with the race detector, with which a process takes a second to start
				deaths = max(10, deaths/4)
			}
			provider := killtest.NewErrands(t)
			provider.Overlaps = kind == "sqlite transactions"
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
