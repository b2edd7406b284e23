package pgxstore_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/step"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

var errOfStep = errors.New("the step has failed")

// The store notices if a step leaves its transaction in another state. If the step has committed rows by itself,
// these rows are not written again.
func TestStepsThatEndTheirTransaction(t *testing.T) {
	t.Parallel()
	sqlText := func(statements ...string) func(context.Context, stepTx) error {
		return func(ctx context.Context, tx stepTx) error {
			for _, statement := range statements {
				if err := tx.exec(ctx, statement); err != nil {
					return err
				}
			}
			return nil
		}
	}
	and := func(first func(context.Context, stepTx) error, then func(ctx context.Context, tx stepTx) error) func(context.Context,
		stepTx) error {
		return func(ctx context.Context, tx stepTx) error {
			return errors.Join(first(ctx, tx), then(ctx, tx))
		}
	}
	fails := func(context.Context, stepTx) error { return errOfStep }
	rollsBack := func(ctx context.Context, tx stepTx) error { return tx.rollback(ctx) }
	for name, test := range map[string]struct {
		within        func(ctx context.Context, tx stepTx) error
		checkError    func(error) bool // checks the error of the step; nil: the step panics
		wantCommitted bool             // the row is committed although the step has no result
		isStoreTxOnly bool             // allowed in a transaction of the handler
	}{
		"Commit": {func(ctx context.Context, tx stepTx) error { return tx.commit(ctx) },
			isErrorOf(step.ErrMisuse), false, true},
		"Commit, error ignored": {func(ctx context.Context, tx stepTx) error { _ = tx.commit(ctx); return nil },
			isErrorOf(step.ErrMisuse), false, true},
		"Rollback":               {rollsBack, isErrorOf(step.ErrMisuse), false, false},
		"Rollback, then error":   {and(rollsBack, fails), isErrorOf(errOfStep), false, false},
		"error":                  {fails, isErrorOf(errOfStep), false, false},
		"ROLLBACK":               {sqlText("ROLLBACK"), isErrorOf(step.ErrMisuse), false, false},
		"ROLLBACK; BEGIN":        {sqlText("ROLLBACK; BEGIN"), isErrorOf(step.ErrMisuse), false, false},
		"COMMIT":                 {sqlText("COMMIT"), isErrorOf(step.ErrResult), true, false},
		"COMMIT; BEGIN":          {sqlText("COMMIT; BEGIN"), isErrorOf(step.ErrResult), true, false},
		"COMMIT AND CHAIN":       {sqlText("COMMIT AND CHAIN"), isErrorOf(step.ErrResult), true, false},
		"COMMIT, then error":     {and(sqlText("COMMIT"), fails), isErrorOf(step.ErrResult), true, false},
		"COMMIT, then Rollback":  {and(and(sqlText("COMMIT"), rollsBack), fails), isErrorOf(step.ErrResult), true, false},
		"COMMIT; BEGIN, failure": {sqlText("COMMIT; BEGIN", "SELECT 1/0"), isErrorOf(step.ErrResult), true, false},
		"COMMIT, then panic": {
			and(sqlText("COMMIT"), func(context.Context, stepTx) error { panic(http.ErrAbortHandler) }), nil, true, false,
		},
		"panic": {func(context.Context, stepTx) error { panic(http.ErrAbortHandler) }, nil, false, false},
		"ignored error": {func(ctx context.Context, tx stepTx) error { _ = tx.exec(ctx, "nonsense"); return nil },
			isErrorOf(step.ErrMisuse), false, false},
		"COMMIT; BEGIN, ignored error": {
			func(ctx context.Context, tx stepTx) error {
				_ = sqlText("COMMIT; BEGIN", "nonsense")(ctx, tx)
				return nil
			},
			isErrorOf(step.ErrResult), true, false,
		},
		"error in a savepoint": {
			func(ctx context.Context, tx stepTx) error {
				return errors.Join(sqlText("SAVEPOINT a", "nonsense")(ctx, tx), errOfStep)
			}, isErrorOf(errOfStep), false, false,
		},
		"error of the database": {sqlText("SELECT 1/0"), hasSQLState("22012"), false, false},
		"deferred constraint": {
			sqlText("CREATE TEMP TABLE twice (i int UNIQUE DEFERRABLE INITIALLY DEFERRED) ON COMMIT DROP",
				"INSERT INTO twice VALUES (1), (1)"),
			hasSQLState("23505"), false, false,
		},
		"rows left open": {
			func(ctx context.Context, tx stepTx) error {
				return tx.openRows(ctx, "SELECT generate_series(1, 100000)")
			}, isError, false, true,
		},
	} {
		for kind, do := range mergeMaps(storeTxSteps, handlerTxSteps("")) {
			if _, own := storeTxSteps[kind]; test.isStoreTxOnly && !own {
				continue
			}
			t.Run(kind+"/"+name, func(t *testing.T) {
				t.Parallel()
				direct := newPool(t, serverURL(t), func(c *pgxpool.Config) { c.MaxConns = 2 })
				pool := newPool(t, serverURL(t), func(c *pgxpool.Config) { c.MaxConns = 1 })
				opts := newTable(t, direct, pgxstore.Options{})
				b := &bookings{rows: newRows(t, direct, opts), pool: pool, do: do, afterInsert: test.within}
				h := newMiddleware(t, pgxstore.New(pool, opts), idempotency.Options{StoreTimeout: 10 * time.Second}, b.ServeHTTP)
				key := uuid.NewString()
				func() {
					defer func() { _ = recover() }()
					post(h, key)
				}()
				if test.checkError != nil {
					require.True(t, test.checkError(b.lastError), "%v", b.lastError)
				}
				rows := map[bool]int{true: 1, false: 0}[test.wantCommitted]
				require.Equal(t, rows, b.rows.countRows(t, key))
				require.Equal(t, 1, queryValue[int](t, pool, "SELECT 1"), "the only connection is free")

				b.afterInsert = nil
				w := post(h, key)
				require.Equal(t, 1, b.rows.countRows(t, key))
				if test.wantCommitted {
					require.ErrorIs(t, b.lastError, step.ErrResult)
					require.EqualValues(t, 1, b.stepRuns.Load(), "it does not run again")
				} else {
					require.Equal(t, http.StatusCreated, w.Code)
					require.Equal(t, key, w.Body.String())
				}
			})
		}
	}
}

func isErrorOf(target error) func(error) bool {
	return func(err error) bool { return errors.Is(err, target) }
}

func isError(err error) bool { return err != nil }

// hasSQLState returns a function that reports whether an error is a server's error with the code.
func hasSQLState(code string) func(error) bool {
	return func(err error) bool {
		e, ok := errors.AsType[*pgconn.PgError](err)
		return ok && e.Code == code
	}
}

func mergeMaps[V any](maps ...map[string]V) map[string]V {
	all := map[string]V{}
	for _, m := range maps {
		for name, v := range m {
			all[name] = v
		}
	}
	return all
}
