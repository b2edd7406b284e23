package pgxstore_test

import (
	"context"
	"database/sql"
	"net/http"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/assert"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/stores/cache"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// isolationLevels are the ways in which a step's transaction meets renewals and takeovers.
var isolationLevels = map[string]struct {
	opts    pgxstore.Options
	session pgx.TxIsoLevel
	bouncer bool
}{
	"read committed":              {},
	"divided table":               {opts: pgxstore.Options{PartitionDays: 3}},
	"repeatable read":             {opts: pgxstore.Options{Isolation: pgx.RepeatableRead}},
	"serializable":                {opts: pgxstore.Options{Isolation: pgx.Serializable}},
	"repeatable read by session":  {session: pgx.RepeatableRead},
	"PgBouncer, transaction mode": {bouncer: true},
}

func TestTxStepsConform(t *testing.T) {
	t.Parallel()
	direct := newPool(t, serverURL(t))
	for name, level := range isolationLevels {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, serverURL(t), func(c *pgxpool.Config) {
				if level.session != "" {
					c.ConnConfig.RuntimeParams["default_transaction_isolation"] = string(level.session)
				}
			})
			if level.bouncer {
				pool = newPool(t, startPgBouncer(t), withoutPreparing)
			}
			opts := newTable(t, direct, level.opts)
			rows := newRows(t, direct, opts)
			var store idempotency.Store = pgxstore.New(pool, opts)
			if name == "read committed" {
				store = cache.New(mustSeal(t, store, nil), cache.Options{})
			}
			newStore := func(*testing.T) idempotency.Store { return store }
			t.Run("pgx", func(t *testing.T) {
				idempotencytest.RunTxSteps(t, newStore, idempotencytest.Transactions[pgx.Tx]{
					Write: func(ctx context.Context, tx pgx.Tx, name string) error {
						_, err := tx.Exec(ctx, rows.insertStatement, name)
						return err
					},
					Count: rows.countCommitted,
					Begin: func(ctx context.Context) (pgx.Tx, error) {
						return pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: opts.Isolation})
					},
					Commit:   func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
					Rollback: func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
				})
			})
			t.Run("sql", func(t *testing.T) {
				db := stdlib.OpenDBFromPool(pool)
				idempotencytest.RunTxSteps(t, newStore, idempotencytest.Transactions[*sql.Tx]{
					Write: func(ctx context.Context, tx *sql.Tx, name string) error {
						_, err := tx.ExecContext(ctx, rows.insertStatement, name)
						return err
					},
					Count:    rows.countCommitted,
					Begin:    func(ctx context.Context) (*sql.Tx, error) { return db.BeginTx(ctx, nil) },
					Commit:   func(_ context.Context, tx *sql.Tx) error { return tx.Commit() },
					Rollback: func(_ context.Context, tx *sql.Tx) error { return tx.Rollback() },
				})
			})
		})
	}
}

// rowTable is a table for the rows of handlers. The tests read the table on separate connections.
type rowTable struct {
	*testing.T
	observer        *pgxpool.Pool
	name            string
	insertStatement string // with a parameter for the name of the row
}

func newRows(t *testing.T, direct *pgxpool.Pool, opts pgxstore.Options) *rowTable {
	t.Helper()
	name := pgx.Identifier{opts.Table + " rows"}.Sanitize()
	execStatement(t, direct, "CREATE TABLE "+name+" (name text NOT NULL)")
	return &rowTable{t, direct, name, "INSERT INTO " + name + " VALUES ($1)"}
}

// countCommitted returns the number of committed rows with the name.
func (r *rowTable) countCommitted(ctx context.Context, name string) (n int, err error) {
	err = r.observer.QueryRow(ctx, "SELECT count(*) FROM "+r.name+" WHERE name = $1", name).Scan(&n)
	return n, err
}

// Serializable steps of different keys do not conflict, although their records share a page of the index.
func TestSerializableStepsOfManyKeys(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	opts := newTable(t, pool, pgxstore.Options{Isolation: pgx.Serializable})
	b := &bookings{rows: newRows(t, pool, opts), pool: pool, do: storeTxSteps["DoTx"]}
	h := newMiddleware(t, pgxstore.New(pool, opts), idempotency.Options{}, b.ServeHTTP)
	var crowd sync.WaitGroup
	for range 16 {
		crowd.Go(func() {
			for range 40 {
				w := post(h, uuid.NewString())
				assert.Equal(t, http.StatusCreated, w.Code, w.Body)
			}
		})
	}
	crowd.Wait()
}
