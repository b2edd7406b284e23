package pgxstore_test

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// If the janitor cannot connect, it reports an error at each turn, and continues. The turns of two instances drift
// apart.
func TestJanitorGoesOnAfterFailures(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ interval, want time.Duration }{
		"an hour": {time.Hour, time.Hour},
		"default": {0, 5 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				away := errors.New("away")
				pool := newPool(t, "postgres://nowhere/", func(config *pgxpool.Config) {
					config.ConnConfig.LookupFunc = func(context.Context, string) ([]string, error) { return nil, away }
					config.ConnConfig.DialFunc = func(context.Context, string, string) (net.Conn, error) { return nil, away }
				})
				ctx, cancel := context.WithCancel(t.Context())
				began, waits := time.Now(), map[time.Duration]bool{}
				turns := 0
				pgxstore.NewTable(pool, pgxstore.Options{}).Janitor(ctx, c.interval, func(err error) {
					require.ErrorIs(t, err, away)
					if turns++; turns == 1 {
						require.Zero(t, time.Since(began), "the first turn is at once")
						return
					}
					require.InEpsilon(t, c.want, time.Since(began), 0.1001)
					waits[time.Since(began)] = true
					began = time.Now()
					if turns == 20 {
						cancel()
					}
				})
				require.Greater(t, len(waits), 10, "two instances would always meet")
				require.Error(t, ctx.Err())
			})
		})
	}
}

func TestJanitorDeletesWhatExpiresMeanwhile(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	opts := newTable(t, pool, pgxstore.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		pgxstore.NewTable(pool, opts).Janitor(ctx, 10*time.Millisecond, func(err error) { t.Error(err) })
	}()
	for range 3 {
		insertRecords(t, pool, opts, 10, "now() - interval '2 minutes'")
		require.Eventually(t, func() bool {
			return queryValue[int](t, pool, "SELECT count(*) FROM "+tableName(opts)) == 0
		}, time.Minute, 10*time.Millisecond)
	}
	cancel()
	<-ended
}

// Maintain does nothing if another instance is at work.
func TestMaintainIsTheTurnOfOneInstance(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	opts := newTable(t, pool, pgxstore.Options{})
	insertRecords(t, pool, opts, 10, "now() - interval '2 minutes'")
	table := pgxstore.NewTable(pool, opts)
	locked, err := pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = locked.Exec(t.Context(), "LOCK TABLE "+tableName(opts)+" IN EXCLUSIVE MODE")
	require.NoError(t, err)
	first := make(chan error)
	go func() { first <- table.Maintain(context.Background()) }()
	require.Eventually(t, func() bool {
		return queryValue[bool](t, pool, "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = $1::text::regclass)",
			tableName(opts))
	}, time.Minute, time.Millisecond)

	require.NoError(t, table.Maintain(t.Context()), "the first one waits for the lock: this one would, too")
	require.NoError(t, locked.Commit(t.Context()))
	require.NoError(t, <-first)
	require.Zero(t, queryValue[int](t, pool, "SELECT count(*) FROM "+tableName(opts)))
}

// On a pool with a single connection, the lock of the turn would take the only connection.
func TestMaintainNeedsTwoConnections(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t), func(config *pgxpool.Config) { config.MaxConns = 1 })
	for _, days := range []int{0, 1} {
		table := pgxstore.NewTable(pool, pgxstore.Options{PartitionDays: days})
		require.ErrorContains(t, table.Maintain(t.Context()), "two connections")
	}
}

// operators.sql has a job for pg_cron. The test runs the quoted statement.
func TestStatementForPgCron(t *testing.T) {
	t.Parallel()
	file, err := os.ReadFile("operators.sql")
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(file), "SELECT cron.schedule('idempotency', '* * * * *', $$")
	statement, _, found := strings.Cut(rest, "$$);")
	require.True(t, found)

	pool := newPool(t, serverURL(t))
	opts := newTable(t, pool, pgxstore.Options{})
	insertRecords(t, pool, opts, 10, "now() - interval '2 minutes'")
	completeNewKey(t, pgxstore.New(pool, opts))
	execStatement(t, pool, strings.ReplaceAll(statement, "idempotency_records", tableName(opts)))
	require.Equal(t, 1, queryValue[int](t, pool, "SELECT count(*) FROM "+tableName(opts)))
}
