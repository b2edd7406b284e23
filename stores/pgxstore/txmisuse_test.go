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

// A step that leaves its transaction in another state than it found it in is told so. Rows that it has committed by itself are not
// written again.
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
	and := func(first func(context.Context, stepTx) error, then func(ctx context.Context, tx stepTx) error) func(context.Context, stepTx) error {
		return func(ctx context.Context, tx stepTx) error {
			return errors.Join(first(ctx, tx), then(ctx, tx))
		}
	}
	fails := func(context.Context, stepTx) error { return errOfStep }
	rollsBack := func(ctx context.Context, tx stepTx) error { return tx.rollback(ctx) }
	for name, test := range map[string]struct {
		within    func(ctx context.Context, tx stepTx) error
		want      func(error) bool // of the error of the step; nil: it panics
		escapes   bool             // the row is there although the step has no result
		onlyOwnTx bool             // a handler may do so with a transaction of its own
	}{
		"Commit":                 {func(ctx context.Context, tx stepTx) error { return tx.commit(ctx) }, is(step.ErrMisuse), false, true},
		"Commit, error ignored":  {func(ctx context.Context, tx stepTx) error { _ = tx.commit(ctx); return nil }, is(step.ErrMisuse), false, true},
		"Rollback":               {rollsBack, is(step.ErrMisuse), false, false},
		"Rollback, then error":   {and(rollsBack, fails), is(errOfStep), false, false},
		"error":                  {fails, is(errOfStep), false, false},
		"ROLLBACK":               {sqlText("ROLLBACK"), is(step.ErrMisuse), false, false},
		"ROLLBACK; BEGIN":        {sqlText("ROLLBACK; BEGIN"), is(step.ErrMisuse), false, false},
		"COMMIT":                 {sqlText("COMMIT"), is(step.ErrResult), true, false},
		"COMMIT; BEGIN":          {sqlText("COMMIT; BEGIN"), is(step.ErrResult), true, false},
		"COMMIT AND CHAIN":       {sqlText("COMMIT AND CHAIN"), is(step.ErrResult), true, false},
		"COMMIT, then error":     {and(sqlText("COMMIT"), fails), is(step.ErrResult), true, false},
		"COMMIT, then Rollback":  {and(and(sqlText("COMMIT"), rollsBack), fails), is(step.ErrResult), true, false},
		"COMMIT; BEGIN, failure": {sqlText("COMMIT; BEGIN", "SELECT 1/0"), is(step.ErrResult), true, false},
		"COMMIT, then panic": {
			and(sqlText("COMMIT"), func(context.Context, stepTx) error { panic(http.ErrAbortHandler) }), nil, true, false,
		},
		"panic":         {func(context.Context, stepTx) error { panic(http.ErrAbortHandler) }, nil, false, false},
		"ignored error": {func(ctx context.Context, tx stepTx) error { _ = tx.exec(ctx, "nonsense"); return nil }, is(step.ErrMisuse), false, false},
		"COMMIT; BEGIN, ignored error": {
			func(ctx context.Context, tx stepTx) error {
				_ = sqlText("COMMIT; BEGIN", "nonsense")(ctx, tx)
				return nil
			},
			is(step.ErrResult), true, false,
		},
		"error in a savepoint": {
			func(ctx context.Context, tx stepTx) error {
				return errors.Join(sqlText("SAVEPOINT a", "nonsense")(ctx, tx), errOfStep)
			}, is(errOfStep), false, false,
		},
		"error of the database": {sqlText("SELECT 1/0"), hasState("22012"), false, false},
		"deferred constraint": {
			sqlText("CREATE TEMP TABLE twice (i int UNIQUE DEFERRABLE INITIALLY DEFERRED) ON COMMIT DROP", "INSERT INTO twice VALUES (1), (1)"),
			hasState("23505"), false, false,
		},
		"rows left open": {
			func(ctx context.Context, tx stepTx) error {
				return tx.open(ctx, "SELECT generate_series(1, 100000)")
			}, isError, false, true,
		},
	} {
		for kind, do := range union(ownTx, joinedTx("")) {
			if _, own := ownTx[kind]; test.onlyOwnTx && !own {
				continue
			}
			t.Run(kind+"/"+name, func(t *testing.T) {
				t.Parallel()
				direct := newPool(t, serverURL(t), func(c *pgxpool.Config) { c.MaxConns = 2 })
				pool := newPool(t, serverURL(t), func(c *pgxpool.Config) { c.MaxConns = 1 })
				opts := newTable(t, direct, pgxstore.Options{})
				b := &bookings{rows: newRows(t, direct, opts), pool: pool, do: do, within: test.within}
				h := newMiddleware(t, pgxstore.New(pool, opts), idempotency.Options{StoreTimeout: 10 * time.Second}, b.ServeHTTP)
				key := uuid.NewString()
				func() {
					defer func() { _ = recover() }()
					post(h, key)
				}()
				if test.want != nil {
					require.True(t, test.want(b.err), "%v", b.err)
				}
				rows := map[bool]int{true: 1, false: 0}[test.escapes]
				require.Equal(t, rows, b.rows.written(t, key))
				require.Equal(t, 1, one[int](t, pool, "SELECT 1"), "the only connection is free")

				b.within = nil
				w := post(h, key)
				require.Equal(t, 1, b.rows.written(t, key))
				if test.escapes {
					require.ErrorIs(t, b.err, step.ErrResult)
					require.EqualValues(t, 1, b.runs.Load(), "it does not run again")
				} else {
					require.Equal(t, http.StatusCreated, w.Code)
					require.Equal(t, key, w.Body.String())
				}
			})
		}
	}
}

func is(target error) func(error) bool { return func(err error) bool { return errors.Is(err, target) } }

func isError(err error) bool { return err != nil }

// hasState reports whether an error is one of the server's, with a code.
func hasState(code string) func(error) bool {
	return func(err error) bool {
		e, ok := errors.AsType[*pgconn.PgError](err)
		return ok && e.Code == code
	}
}

func union[V any](maps ...map[string]V) map[string]V {
	all := map[string]V{}
	for _, m := range maps {
		for name, v := range m {
			all[name] = v
		}
	}
	return all
}
