package pgxstore_test

import (
	"context"
	"database/sql"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// stepTx is the transaction of a step, of any type.
type stepTx struct {
	exec     func(ctx context.Context, sql string, args ...any) error
	openRows func(ctx context.Context, sql string) error // runs a query, and leaves its rows open
	commit   func(ctx context.Context) error
	rollback func(ctx context.Context) error
}

func stepTxOfPgx(tx pgx.Tx) stepTx {
	return stepTx{
		exec: func(ctx context.Context, sql string, args ...any) error {
			_, err := tx.Exec(ctx, sql, args...)
			return err
		},
		openRows: func(ctx context.Context, sql string) error {
			rows, err := tx.Query(ctx, sql)
			if err == nil {
				rows.Next()
			}
			return err
		},
		commit: tx.Commit, rollback: tx.Rollback,
	}
}

func stepTxOfSQL(tx *sql.Tx) stepTx {
	return stepTx{
		exec: func(ctx context.Context, sql string, args ...any) error {
			_, err := tx.ExecContext(ctx, sql, args...)
			return err
		},
		openRows: func(ctx context.Context, sql string) error {
			rows, err := tx.QueryContext(ctx, sql) //nolint:rowserrcheck,sqlclosecheck // left open
			if err == nil {
				rows.Next()
			}
			return err
		},
		commit:   func(context.Context) error { return tx.Commit() },
		rollback: func(context.Context) error { return tx.Rollback() },
	}
}

// stepFunc runs a step in a transaction on pool.
type stepFunc func(ctx context.Context, pool *pgxpool.Pool, name string, fn func(tx stepTx) (string, error)) (string, error)

// storeTxSteps has the ways to run a step in a transaction of the store.
var storeTxSteps = map[string]stepFunc{
	"DoTx": func(ctx context.Context, _ *pgxpool.Pool, name string, fn func(stepTx) (string, error)) (string, error) {
		return pgxstore.DoTx(ctx, name, func(tx pgx.Tx) (string, error) { return fn(stepTxOfPgx(tx)) })
	},
	"DoSQLTx": func(ctx context.Context, _ *pgxpool.Pool, name string, fn func(stepTx) (string, error)) (string, error) {
		return pgxstore.DoSQLTx(ctx, name, func(tx *sql.Tx) (string, error) { return fn(stepTxOfSQL(tx)) })
	},
}

// handlerTxSteps returns the ways to run a step in a transaction of the handler, at the given isolation level.
func handlerTxSteps(level pgx.TxIsoLevel) map[string]stepFunc {
	isolation := map[pgx.TxIsoLevel]sql.IsolationLevel{
		"": sql.LevelDefault, pgx.RepeatableRead: sql.LevelRepeatableRead, pgx.Serializable: sql.LevelSerializable,
	}
	const longest = 10 * time.Second // because a Commit without a deadline waits forever for a lost reply
	return map[string]stepFunc{
		"DoInTx": func(ctx context.Context, pool *pgxpool.Pool, name string, fn func(stepTx) (string, error)) (s string,
			err error) {
			ctx, cancel := context.WithTimeout(ctx, longest)
			defer cancel()
			err = pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
				s, err = pgxstore.DoInTx(ctx, tx, name, func() (string, error) { return fn(stepTxOfPgx(tx)) })
				return err
			})
			return s, err
		},
		"DoInSQLTx": func(ctx context.Context, pool *pgxpool.Pool, name string, fn func(stepTx) (string, error)) (string, error) {
			ctx, cancel := context.WithTimeout(ctx, longest)
			defer cancel()
			db := stdlib.OpenDBFromPool(pool)
			defer db.Close()
			tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: isolation[level]})
			if err != nil {
				return "", err
			}
			defer tx.Rollback()
			s, err := pgxstore.DoInSQLTx(ctx, tx, name, func() (string, error) { return fn(stepTxOfSQL(tx)) })
			if err != nil {
				return "", err
			}
			return s, tx.Commit()
		},
	}
}

// bookings is a service that inserts one row for each key in a step, and responds with the result of the step.
type bookings struct {
	rows        *rowTable
	pool        *pgxpool.Pool
	do          stepFunc
	afterInsert func(ctx context.Context, tx stepTx) error // called after the INSERT, unless nil
	stepRuns    atomic.Int32                               // number of runs of the step

	mu        sync.Mutex
	lastError error // error of the last step
}

func (b *bookings) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	op, _ := idempotency.FromContext(ctx)
	answer, err := b.do(ctx, b.pool, "book", func(tx stepTx) (string, error) {
		b.stepRuns.Add(1)
		if err := tx.exec(ctx, b.rows.insertStatement, op.Key.ID); err != nil || b.afterInsert == nil {
			return op.Key.ID, err
		}
		return op.Key.ID, b.afterInsert(ctx, tx)
	})
	b.mu.Lock()
	b.lastError = err
	b.mu.Unlock()
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write([]byte(answer))
}

// countRows returns the number of rows of a key.
func (r *rowTable) countRows(t testing.TB, key string) int {
	t.Helper()
	return queryValue[int](t, r.observer, "SELECT count(*) FROM "+r.name+" WHERE name = $1", key)
}
