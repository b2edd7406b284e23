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

// The kinds of effects: in a system outside of the database, or rows that a step writes in a transaction.
const (
	outsideEffects = "effects outside"
	rowEffects     = "rows"
)

var effectKinds = []string{outsideEffects, rowEffects}

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

func executeSQL(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	_, err := pool.Exec(t.Context(), sql)
	require.NoError(t, err)
}

// rowLedger is a ledger in the database of the store. A step adds each effect.
type rowLedger struct{ pool *pgxpool.Pool }

func newRowLedger(t *testing.T, pool *pgxpool.Pool) rowLedger {
	t.Helper()
	executeSQL(t, pool, "CREATE TABLE ledger (key text NOT NULL)")
	return rowLedger{pool}
}

func (rowLedger) addEffect(ctx context.Context, key string) error {
	_, err := pgxstore.DoTx(ctx, "book", func(tx pgx.Tx) (string, error) {
		_, err := tx.Exec(ctx, "INSERT INTO ledger (key) VALUES ($1)", key)
		return key, err
	})
	return err
}

func (r rowLedger) countEffects(t *testing.T) map[string]int {
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
	rowLedger *rowLedger // nil: effects are outside of the database
}

// newDatabaseShop returns a shop with one server for each of pools. The pool direct creates the tables.
func newDatabaseShop(
	t *testing.T, kind string, opts idempotency.Options, direct *pgxpool.Pool, pools ...*pgxpool.Pool,
) databaseShop {
	t.Helper()
	require.NoError(t, pgxstore.Migrate(t.Context(), direct, pgxstore.Options{}))
	var stores []idempotency.Store
	for _, pool := range pools {
		stores = append(stores, pgxstore.New(pool, pgxstore.Options{}))
	}
	if kind == outsideEffects {
		return databaseShop{newShop(t, opts, &memoryLedger{}, stores...), nil}
	}
	ledger := newRowLedger(t, direct)
	return databaseShop{newShop(t, opts, ledger, stores...), &ledger}
}

// auditAfterFault audits the shop after a fault with the loss cost.
func (s databaseShop) auditAfterFault(t *testing.T, cost loss) auditCounts {
	t.Helper()
	if s.rowLedger != nil {
		s.rowLedger.pool.Reset() // because connections may lead to a lost server
	}
	return s.auditSales(t, cost, s.rowLedger != nil)
}

// A server that is repeatedly stopped at once and started again forgets no answer, and no effect is repeated.
func TestPostgresIsStopped(t *testing.T) {
	t.Parallel()
	for _, kind := range effectKinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			db := servertest.Postgres(t)
			s := newDatabaseShop(t, kind, patientOptions, newPool(t, db.URL()), newPool(t, db.URL()), newPool(t, db.URL()))
			stops := effort.Of(10)
			for range stops {
				s.payDuring(50, func() { require.NoError(t, db.Restart()) })
			}
			found := s.auditAfterFault(t, loss{})
			effort.Count(t, "stops", stops)
			found.reportCounts(t)
		})
	}
}

// hastyOptions gives up commits that wait for a standby. Such a commit becomes visible when the wait ends.
var hastyOptions = idempotency.Options{Lease: time.Minute, StoreTimeout: 500 * time.Millisecond}

// A promoted standby has the commits that the primary sent. Without synchronous replication, exactly the other commits are lost.
// With synchronous replication, the standby has every acknowledged commit.
func TestPostgresStandbyIsPromoted(t *testing.T) {
	t.Parallel()
	for _, kind := range effectKinds {
		t.Run("asynchronous, "+kind, func(t *testing.T) {
			t.Parallel()
			promoteStandbys(t, kind, briefOptions, func(s *shop, crash func()) loss {
				from := time.Now()
				s.awaitAnswers(50)
				cost := loss{lostAfter: from, lostBefore: time.Now()}
				crash()
				return cost
			})
		})
		t.Run("synchronous, "+kind, func(t *testing.T) {
			t.Parallel()
			promoteStandbys(t, kind, hastyOptions, func(s *shop, crash func()) loss {
				unanswered := func() (count int64) {
					for _, o := range []idempotency.Outcome{
						idempotency.OutcomeUnavailable, idempotency.OutcomeUnrecorded, idempotency.OutcomeInProgress,
					} {
						count += s.outcomeCount(o)
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

// promoteStandbys promotes standbys under load. Each standby is cut off before the primary crashes. The primary crashes when work
// calls crash.
func promoteStandbys(
	t *testing.T, kind string, opts idempotency.Options, work func(s *shop, crash func()) loss, settings ...string,
) {
	var found auditCounts
	promotions := effort.Of(3)
	for range promotions {
		primary := servertest.Postgres(t, settings...)
		link := servertest.NewProxy(t, primary.Addr())
		standby := servertest.Replica(t, link.Addr())
		url := primary.URLAt(primary.Addr()+","+standby.Addr()) + "&target_session_attrs=read-write"
		s := newDatabaseShop(t, kind, opts, newPool(t, url), newPool(t, url), newPool(t, url))
		var cost loss
		s.payDuring(100, func() {
			since := time.Now()
			awaitReplayed(t, newPool(t, primary.URL()), newPool(t, standby.URL()))
			link.Close()
			cost = work(s.shop, primary.Crash)
			require.NoError(t, standby.Promote())
			if cost != (loss{}) {
				cost.affectedAfter, cost.affectedBefore = since, time.Now()
			}
		})
		found.addCounts(s.auditAfterFault(t, cost))
	}
	effort.Count(t, "promotions", promotions)
	found.reportCounts(t)
}

// awaitReplayed waits until the standby has replayed every commit that the primary has acknowledged so far.
func awaitReplayed(t *testing.T, primary, standby *pgxpool.Pool) {
	t.Helper()
	var end string
	require.NoError(t, primary.QueryRow(t.Context(), "SELECT pg_current_wal_lsn()").Scan(&end))
	require.Eventually(t, func() bool {
		var behind bool
		err := standby.QueryRow(t.Context(), "SELECT pg_last_wal_replay_lsn() < $1::text::pg_lsn", end).Scan(&behind)
		return err == nil && !behind
	}, patience, time.Millisecond)
}

// A PgBouncer that is killed and started again costs no answer, and repeats no effect.
func TestPgBouncerIsKilled(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"transaction", "session"} {
		for _, kind := range effectKinds {
			t.Run(strings.Join([]string{mode, kind}, ", "), func(t *testing.T) {
				t.Parallel()
				db := servertest.Postgres(t)
				bouncer := servertest.PgBouncer(t, db, "pool_mode="+mode)
				unprepared := func(c *pgxpool.Config) {
					if mode == "transaction" { // where PgBouncer before 1.21 does not keep prepared statements
						c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
					}
				}
				s := newDatabaseShop(t, kind, patientOptions, newPool(t, db.URL()),
					newPool(t, bouncer.URL(), unprepared), newPool(t, bouncer.URL(), unprepared))
				deaths := effort.Of(6)
				for range deaths {
					s.payDuring(50, func() { require.NoError(t, bouncer.Restart()) })
				}
				found := s.auditAfterFault(t, loss{})
				effort.Count(t, "deaths of PgBouncer", deaths)
				found.reportCounts(t)
			})
		}
	}
}
