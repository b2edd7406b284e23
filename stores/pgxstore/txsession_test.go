package pgxstore_test

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/step"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// The server ends the session of a step, or refuses its statements or its result. The row is rolled back, and the
// next attempt writes it.
func TestSessionsThatFailWithinAStep(t *testing.T) {
	t.Parallel()
	sqlText := func(statement string) func(*sessionFault, context.Context, stepTx) error {
		return func(_ *sessionFault, ctx context.Context, tx stepTx) error { return tx.exec(ctx, statement) }
	}
	for name, fail := range map[string]func(f *sessionFault, ctx context.Context, tx stepTx) error{
		"terminated by itself": sqlText("SELECT pg_terminate_backend(pg_backend_pid())"),
		"terminated, error ignored": func(_ *sessionFault, ctx context.Context, tx stepTx) error {
			_ = tx.exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())")
			return nil
		},
		"terminated by another session": func(f *sessionFault, _ context.Context, _ stepTx) error {
			execStatement(f, f.direct, `SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
				WHERE application_name = $1 AND state = 'idle in transaction'`, f.session)
			return nil
		},
		"silent for too long": func(f *sessionFault, _ context.Context, _ stepTx) error {
			awaitCondition(f.T, f.direct, `SELECT count(*) = 0 FROM pg_stat_activity
				WHERE application_name = '`+f.session+`' AND state = 'idle in transaction'`)
			return nil
		},
		"a statement that takes too long": sqlText("SET LOCAL statement_timeout = '10ms'; SELECT pg_sleep(60)"),
		"a transaction made read-only":    sqlText("SET TRANSACTION READ ONLY"),
		"a role that may not do it":       sqlText("SET LOCAL ROLE pg_monitor"),
		"a deadlock":                      sqlText("DO $$ BEGIN RAISE SQLSTATE '40P01'; END $$"),
	} {
		for kind, do := range mergeMaps(storeTxSteps, handlerTxSteps("")) {
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				f := &sessionFault{T: t, direct: newPool(t, serverURL(t)), session: uuid.NewString()}
				pool := newPool(t, serverURL(t), limitToTwo, withApplicationName(f.session))
				opts := newTable(t, f.direct, pgxstore.Options{IdleTimeout: time.Second})
				b := &bookings{rows: newRows(t, f.direct, opts), pool: pool, do: do}
				h := newMiddleware(t, pgxstore.New(pool, opts), idempotency.Options{}, b.ServeHTTP)
				key := uuid.NewString()

				b.afterInsert = func(ctx context.Context, tx stepTx) error { return fail(f, ctx, tx) }
				require.Equal(t, http.StatusServiceUnavailable, post(h, key).Code)
				require.Error(t, b.lastError)
				require.False(t, errors.Is(b.lastError, step.ErrMisuse) || errors.Is(b.lastError, step.ErrResult), "%v",
					b.lastError)
				require.Zero(t, b.rows.countRows(t, key))

				b.afterInsert = nil
				w := post(h, key)
				require.Equal(t, http.StatusCreated, w.Code, "%v", b.lastError)
				require.Equal(t, key, w.Body.String())
				require.Equal(t, 1, b.rows.countRows(t, key))
			})
		}
	}
}

// Package database/sql rolls a transaction back when its context ends. DoInSQLTx may ask the server before the
// rollback, which does not mean that the step has committed.
func TestStepWhoseContextEnds(t *testing.T) {
	t.Parallel()
	direct := newPool(t, serverURL(t))
	for name, result := range map[string]error{"error": errOfStep, "result": nil} {
		pool, proxy := newProxiedPool(t, withoutPreparing)
		opts := newTable(t, direct, pgxstore.Options{})
		rows, db := newRows(t, direct, opts), stdlib.OpenDBFromPool(pool)
		_, claim := claimNewKey(t, pgxstore.New(pool, opts))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		joined := &closingTx{Tx: tx}
		book := &idempotency.TxStep{Name: "book", Tx: joined, Timeout: 40 * time.Second, Run: func() ([]byte, error) {
			_, err := tx.ExecContext(ctx, rows.insertStatement, "row")
			joined.isClosed = true
			cancel()
			return []byte("done"), errors.Join(err, result)
		}}
		ended := make(chan error, 1)
		go func() {
			_, err := claim.(idempotency.TxCheckpointer).CheckpointTx(ctx, book)
			ended <- err
		}()
		<-ctx.Done()
		sent := proxy.Flights()
		require.Eventually(t, func() bool { return proxy.Flights() > sent+3 }, 20*time.Second, time.Millisecond,
			"the store asks on another connection, until the transaction has ended")
		require.NoError(t, tx.Rollback())
		err = <-ended
		require.Error(t, err, name)
		require.NotErrorIs(t, err, step.ErrMisuse, name)
		require.False(t, book.Escaped, name)
		require.Zero(t, rows.countRows(t, "row"), name)
		require.NoError(t, db.Close())
	}
}

// closingTx is a transaction of package database/sql during its rollback.
type closingTx struct {
	*sql.Tx
	isClosed bool
}

func (tx *closingTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if tx.isClosed {
		return nil, sql.ErrTxDone
	}
	return tx.Tx.QueryContext(ctx, query, args...)
}

// sessionFault is a fault of a server's session.
type sessionFault struct {
	*testing.T
	direct  *pgxpool.Pool
	session string // application name of the service's sessions
}

// A step's transaction has the requested idle timeout unless the session has a shorter one. The timeout applies only
// to this transaction.
func TestIdleTimeoutOfSteps(t *testing.T) {
	t.Parallel()
	const setting = "idle_in_transaction_session_timeout"
	opts := newTable(t, newPool(t, serverURL(t)), pgxstore.Options{})
	for timeout, asked := range map[time.Duration]string{
		0: "1min", 61_500 * time.Millisecond: "61500ms", 2 * time.Hour: "2h", 48 * time.Hour: "2d",
	} {
		for session, want := range map[string]string{"0": asked, "20d": asked, "50s": "50s", asked: asked} {
			pool := newPool(t, serverURL(t), limitToOne, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams[setting] = session })
			opts := opts
			opts.IdleTimeout = timeout
			_, claim := claimNewKey(t, pgxstore.New(pool, opts))
			_, err := runBookStep(claim, func(tx pgx.Tx) error {
				var now string
				err := tx.QueryRow(t.Context(), "SELECT current_setting($1)", setting).Scan(&now)
				require.Equal(t, want, now, "%s, where the session has %s", timeout, session)
				return err
			})
			require.NoError(t, err)
			require.Equal(t, session, queryValue[string](t, pool, "SELECT current_setting($1)", setting))
		}
	}
}

// A goroutine that still runs when its step has ended cannot use the connection, which serves another call by then.
func TestTransactionEndsWithItsStep(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t), limitToOne)
	store := pgxstore.New(pool, newTable(t, pool, pgxstore.Options{}))
	for name, end := range map[string]error{"committed": nil, "rolled back": errOfStep} {
		_, claim := claimNewKey(t, store)
		var left []pgx.Tx
		_, err := runBookStep(claim, func(tx pgx.Tx) error {
			part, err := tx.Begin(ctx)
			require.NoError(t, err)
			left = []pgx.Tx{tx, part}
			return end
		})
		require.ErrorIs(t, err, end, name)
		for _, late := range left {
			_, err := late.Exec(ctx, "SELECT 1")
			require.ErrorIs(t, err, pgx.ErrTxClosed)
			_, err = late.Query(ctx, "SELECT 1")
			require.ErrorIs(t, err, pgx.ErrTxClosed)
			require.ErrorIs(t, late.QueryRow(ctx, "SELECT 1").Scan(nil), pgx.ErrTxClosed)
			batch := &pgx.Batch{}
			batch.Queue("SELECT 1")
			require.ErrorIs(t, late.SendBatch(ctx, batch).Close(), pgx.ErrTxClosed)
			_, err = late.CopyFrom(ctx, pgx.Identifier{"x"}, []string{"x"}, pgx.CopyFromRows(nil))
			require.ErrorIs(t, err, pgx.ErrTxClosed)
			_, err = late.Prepare(ctx, "x", "SELECT 1")
			require.ErrorIs(t, err, pgx.ErrTxClosed)
			objects := late.LargeObjects()
			_, err = objects.Create(ctx, 0)
			require.ErrorIs(t, err, pgx.ErrTxClosed)
			_, err = late.Begin(ctx)
			require.ErrorIs(t, err, pgx.ErrTxClosed)
			require.ErrorIs(t, late.Commit(ctx), pgx.ErrTxClosed)
			require.ErrorIs(t, late.Rollback(ctx), pgx.ErrTxClosed)
		}
		require.Equal(t, 1, queryValue[int](t, pool, "SELECT 1"), "the connection is free")
	}
}

// runBookStep runs the step "book" of a claim in a transaction. The result is "done".
func runBookStep(claim idempotency.Claim, run func(tx pgx.Tx) error) (stored string, err error) {
	var tx pgx.Tx
	data, err := claim.(idempotency.TxCheckpointer).CheckpointTx(context.Background(), &idempotency.TxStep{
		Name: "book", Var: &tx, Timeout: 20 * time.Second, Run: func() ([]byte, error) { return []byte("done"), run(tx) },
	})
	return string(data), err
}
