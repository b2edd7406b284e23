package compat_test

import (
	"database/sql"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"strings"
	"testing"

	"github.com/golang-migrate/migrate/v4"
	_ "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// migrator is a tool that runs the migration files of pgxstore. Up reports whether a migration was pending.
type migrator struct {
	up   func() (done bool, err error)
	down func() error
}

var migrators = map[string]func(t *testing.T, dir, url string) migrator{
	"goose": func(t *testing.T, dir, url string) migrator {
		db, err := sql.Open("pgx", url)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		provider, err := goose.NewProvider(goose.DialectPostgres, db, os.DirFS(path.Join(dir, "goose")))
		require.NoError(t, err)
		return migrator{
			up: func() (bool, error) {
				results, err := provider.Up(t.Context())
				return len(results) > 0, err
			},
			down: func() error {
				_, err := provider.Down(t.Context())
				return err
			},
		}
	},
	"golang-migrate": func(t *testing.T, dir, url string) migrator {
		files, err := iofs.New(os.DirFS(dir), ".")
		require.NoError(t, err)
		m, err := migrate.NewWithSourceInstance("iofs", files, strings.Replace(url, "postgres:", "pgx5:", 1))
		require.NoError(t, err)
		t.Cleanup(func() {
			source, database := m.Close()
			require.NoError(t, errors.Join(source, database))
		})
		return migrator{
			up: func() (bool, error) {
				err := m.Up()
				if errors.Is(err, migrate.ErrNoChange) {
					return false, nil
				}
				return true, err
			},
			down: m.Down,
		}
	},
}

// The files of pgxstore for other tools make a working table, apply only once, and leave nothing after a migration
// down.
func TestMigrationFiles(t *testing.T) {
	t.Parallel()
	for form, opts := range map[string]pgxstore.Options{"plain": {}, "partitioned": {PartitionDays: 2}} {
		for tool, start := range migrators {
			t.Run(tool+"/"+form, func(t *testing.T) {
				t.Parallel()
				url := servertest.Postgres(t).URL()
				pool, err := pgxpool.New(t.Context(), url)
				require.NoError(t, err)
				t.Cleanup(pool.Close)
				m := start(t, "../../stores/pgxstore/migrations/"+form, url)
				for range 2 {
					requireUp(t, m, true)
					requireWorks(t, pool, opts)
					requireUp(t, m, false)
					require.NoError(t, m.down())
					requireEmpty(t, pool)
				}
			})
		}
	}
}

func requireUp(t *testing.T, m migrator, want bool) {
	t.Helper()
	done, err := m.up()
	require.NoError(t, err)
	require.Equal(t, want, done)
}

// requireWorks requires that a store works after Maintain, which makes the daily partitions of a partitioned table.
func requireWorks(t *testing.T, pool *pgxpool.Pool, opts pgxstore.Options) {
	t.Helper()
	require.NoError(t, pgxstore.NewTable(pool, opts).Maintain(t.Context()))
	onlyFsync(t, pgxstore.NewTable(pool, opts).Check(t.Context()))
	runs := 0
	m, err := idempotency.New(pgxstore.New(pool, opts), idempotency.SingleUser, idempotency.Options{})
	require.NoError(t, err)
	handler := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := pgxstore.DoTx(r.Context(), "run", func(pgx.Tx) (int, error) {
			runs++
			return runs, nil
		})
		assert.NoError(t, err)
		w.WriteHeader(http.StatusCreated)
	}))
	for _, replayed := range []string{"", "true"} {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/payments", nil)
		r.Header.Set("Idempotency-Key", "key")
		handler.ServeHTTP(w, r)
		require.Equal(t, http.StatusCreated, w.Code, w.Body)
		require.Equal(t, replayed, w.Header().Get(marker))
	}
	require.Equal(t, 1, runs)
}

// onlyFsync requires that err has exactly one finding, about fsync, because the servers of tests run without fsync.
func onlyFsync(t *testing.T, err error) {
	t.Helper()
	require.Error(t, err)
	findings := idempotency.Findings(err)
	require.Len(t, findings, 1, "%v", err)
	var unsafe *idempotency.UnsafeSetting
	require.ErrorAs(t, findings[0], &unsafe)
	require.Equal(t, "fsync", unsafe.Setting)
}

// requireEmpty requires that nothing of the table is left: no relations, including partitions and indexes, and no
// functions.
func requireEmpty(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	var left int
	err := pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM pg_class WHERE relname LIKE 'idempotency%')
		+ (SELECT count(*) FROM pg_proc WHERE proname LIKE 'idempotency%')`).Scan(&left)
	require.NoError(t, err)
	require.Zero(t, left)
}
