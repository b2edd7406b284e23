package servers_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/guarantees/effort"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// The kinds of effects: in a system outside of the database, or rows, which a step writes in a transaction.
const (
	outside = "effects outside"
	asRows  = "rows"
)

var kinds = []string{outside, asRows}

func newPool(t *testing.T, url string, changes ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	require.NoError(t, err)
	config.MaxConns = 16
	for _, change := range changes {
		change(config)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func execute(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	_, err := pool.Exec(t.Context(), sql)
	require.NoError(t, err)
}

// rows is a ledger in the database of the store. Each effect is a step.
type rows struct{ pool *pgxpool.Pool }

func newRows(t *testing.T, pool *pgxpool.Pool) rows {
	t.Helper()
	execute(t, pool, "CREATE TABLE ledger (key text NOT NULL)")
	return rows{pool}
}

func (rows) add(ctx context.Context, key string) error {
	_, err := pgxstore.DoTx(ctx, "book", func(tx pgx.Tx) (string, error) {
		_, err := tx.Exec(ctx, "INSERT INTO ledger (key) VALUES ($1)", key)
		return key, err
	})
	return err
}

func (r rows) effects(t *testing.T) map[string]int {
	t.Helper()
	found, err := r.pool.Query(t.Context(), "SELECT key, count(*)::int FROM ledger GROUP BY key")
	require.NoError(t, err)
	all := map[string]int{}
	var key string
	var count int
	_, err = pgx.ForEachRow(found, []any{&key, &count}, func() error {
		all[key] = count
		return nil
	})
	require.NoError(t, err)
	return all
}

// databaseShop is a shop whose records are in PostgreSQL.
type databaseShop struct {
	*shop
	rows *rows // the ledger; nil: effects are outside
}

// newDatabaseShop returns a shop whose servers have these pools. The first one makes the tables, unless direct does.
func newDatabaseShop(t *testing.T, kind string, opts idempotency.Options, direct *pgxpool.Pool, pools ...*pgxpool.Pool) databaseShop {
	t.Helper()
	require.NoError(t, pgxstore.Migrate(t.Context(), direct, pgxstore.Options{}))
	var stores []idempotency.Store
	for _, pool := range pools {
		stores = append(stores, pgxstore.New(pool, pgxstore.Options{}))
	}
	if kind == outside {
		return databaseShop{newShop(t, opts, &memory{}, stores...), nil}
	}
	ledger := newRows(t, direct)
	return databaseShop{newShop(t, opts, ledger, stores...), &ledger}
}

// settle audits the shop after a fault.
func (s databaseShop) settle(t *testing.T, cost loss) counts {
	t.Helper()
	if s.rows != nil {
		s.rows.pool.Reset() // its connections may be those of a server that is gone
	}
	return s.audit(t, cost, s.rows != nil)
}

// A server that is stopped at once and started again, again and again, forgets nothing and has nothing done twice.
func TestPostgresIsStopped(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			db := servertest.Postgres(t)
			s := newDatabaseShop(t, kind, patient, newPool(t, db.URL()), newPool(t, db.URL()), newPool(t, db.URL()))
			stops := effort.Of(10)
			for range stops {
				s.open(50, func() { require.NoError(t, db.Restart()) })
			}
			found := s.settle(t, loss{})
			effort.Count(t, "stops", stops)
			found.report(t)
		})
	}
}

// hasty gives up commits that wait for a standby, which makes them visible.
var hasty = idempotency.Options{Lease: time.Minute, StoreTimeout: 500 * time.Millisecond}

// A standby that takes over has what it was sent. Without synchronous replication the rest is lost, all of it and nothing
// else; with it, nothing was acknowledged that the standby does not have.
func TestPostgresStandbyIsPromoted(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		t.Run("asynchronous, "+kind, func(t *testing.T) {
			t.Parallel()
			promote(t, kind, brief, func(s *shop, crash func()) loss {
				from := time.Now()
				s.await(50)
				cost := loss{from: from, to: time.Now()}
				crash()
				return cost
			})
		})
		t.Run("synchronous, "+kind, func(t *testing.T) {
			t.Parallel()
			promote(t, kind, hasty, func(s *shop, crash func()) loss {
				unanswered := func() (count int64) {
					for _, o := range []idempotency.Outcome{
						idempotency.OutcomeUnavailable, idempotency.OutcomeUnrecorded, idempotency.OutcomeInProgress,
					} {
						count += s.outcome(o)
					}
					return count
				}
				before := unanswered()
				require.Eventually(t, func() bool { return unanswered() >= before+30 }, 20*time.Second, time.Millisecond)
				crash()
				return loss{}
			}, "synchronous_standby_names=*")
		})
	}
}

// promote has standbys take over under load. Each is cut off before the primary crashes, which work decides on.
func promote(
	t *testing.T, kind string, opts idempotency.Options, work func(s *shop, crash func()) loss, settings ...string,
) {
	var found counts
	promotions := effort.Of(3)
	for range promotions {
		primary := servertest.Postgres(t, settings...)
		link := servertest.NewProxy(t, primary.Addr())
		standby := servertest.Replica(t, link.Addr())
		url := primary.URLAt(primary.Addr()+","+standby.Addr()) + "&target_session_attrs=read-write"
		s := newDatabaseShop(t, kind, opts, newPool(t, url), newPool(t, url), newPool(t, url))
		var cost loss
		s.open(100, func() {
			since := time.Now()
			replayed(t, newPool(t, primary.URL()), newPool(t, standby.URL()))
			link.Close()
			cost = work(s.shop, primary.Crash)
			require.NoError(t, standby.Promote())
			if cost != (loss{}) {
				cost.since, cost.until = since, time.Now()
			}
		})
		found.add(s.settle(t, cost))
	}
	effort.Count(t, "promotions", promotions)
	found.report(t)
}

// replayed waits until the standby has all that the primary has acknowledged so far.
func replayed(t *testing.T, primary, standby *pgxpool.Pool) {
	t.Helper()
	var end string
	require.NoError(t, primary.QueryRow(t.Context(), "SELECT pg_current_wal_lsn()").Scan(&end))
	require.Eventually(t, func() bool {
		var behind bool
		err := standby.QueryRow(t.Context(), "SELECT pg_last_wal_replay_lsn() < $1::text::pg_lsn", end).Scan(&behind)
		return err == nil && !behind
	}, patience, time.Millisecond)
}

// A PgBouncer that is killed and started again costs nothing.
func TestPgBouncerIsKilled(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"transaction", "session"} {
		for _, kind := range kinds {
			t.Run(strings.Join([]string{mode, kind}, ", "), func(t *testing.T) {
				t.Parallel()
				db := servertest.Postgres(t)
				bouncer := servertest.PgBouncer(t, db, "pool_mode="+mode)
				unprepared := func(c *pgxpool.Config) {
					if mode == "transaction" { // where every statement of a program would have to be prepared, before 1.21
						c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
					}
				}
				s := newDatabaseShop(t, kind, patient, newPool(t, db.URL()),
					newPool(t, bouncer.URL(), unprepared), newPool(t, bouncer.URL(), unprepared))
				deaths := effort.Of(6)
				for range deaths {
					s.open(50, func() { require.NoError(t, bouncer.Restart()) })
				}
				found := s.settle(t, loss{})
				effort.Count(t, "deaths of PgBouncer", deaths)
				found.report(t)
			})
		}
	}
}
