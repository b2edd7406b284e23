package pgxstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/pgxstore"
)

// Whatever a handler does by way of database/sql comes to the same as with the transaction of pgx.
func TestHandlerInSQLTransaction(t *testing.T) {
	t.Parallel()
	direct := newPool(t, serverURL(t))
	run := func(statements ...string) func(context.Context, *sql.Tx) {
		return func(ctx context.Context, tx *sql.Tx) {
			for _, sql := range statements {
				_, _ = tx.ExecContext(ctx, sql) // the handler ignores what comes of it
			}
		}
	}
	for name, c := range map[string]struct {
		then    func(ctx context.Context, tx *sql.Tx) // after the effect
		status  int                                   // if the handler answers 201
		effects int
		refused int // the status if the handler answers 422
	}{
		"does nothing more": {run(), 201, 1, 422},
		"rolls back":        {func(_ context.Context, tx *sql.Tx) { assert.NoError(t, tx.Rollback()) }, 503, 0, 422},
		"swallows an error": {run("SELECT 1/0"), 503, 0, 422},
		"commits":           {func(_ context.Context, tx *sql.Tx) { assert.ErrorIs(t, tx.Commit(), pgxstore.ErrCommit) }, 201, 1, 422},
		"commits, and defers a rollback": {func(_ context.Context, tx *sql.Tx) {
			defer func() { assert.ErrorIs(t, tx.Rollback(), sql.ErrTxDone) }()
			assert.ErrorIs(t, tx.Commit(), pgxstore.ErrCommit)
		}, 201, 1, 422},
		"commits in SQL":       {run("COMMIT", "-- name: Done :exec\nCOMMIT", "BEGIN"), 201, 1, 422},
		"commits in a string":  {run("SELECT 1; COMMIT", "SELECT 1"), 503, 1, 503}, // noticed, not refused
		"rolls back in SQL":    {run("ROLLBACK"), 503, 0, 503},
		"leaves rows open":     {func(ctx context.Context, tx *sql.Tx) { leaveOpen(ctx, t, tx) }, 503, 0, 503},
		"is interrupted":       {interrupted, 503, 0, 503},
		"ends its session":     {run("SELECT pg_terminate_backend(pg_backend_pid())"), 503, 0, 503},
		"may try again":        {run("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$"), 503, 0, 503},
		"undoes a part":        {run("SAVEPOINT a", "SELECT 1/0", "ROLLBACK TO SAVEPOINT a"), 201, 1, 422},
		"commits a part":       {run("SAVEPOINT a", "SELECT 1", "RELEASE a"), 201, 1, 422},
		"reads in every way":   {func(ctx context.Context, tx *sql.Tx) { readInEveryWay(ctx, t, tx) }, 201, 1, 422},
		"uses both interfaces": {func(ctx context.Context, tx *sql.Tx) { useBoth(ctx, t, tx) }, 201, 1, 422},
	} {
		for answer, want := range map[int]struct{ status, effects int }{
			http.StatusCreated: {c.status, c.effects}, http.StatusUnprocessableEntity: {c.refused, c.effects},
		} {
			if want.status == http.StatusUnprocessableEntity {
				want.effects = 0
			}
			t.Run(fmt.Sprint(name, "/", answer), func(t *testing.T) {
				t.Parallel()
				pool := newPool(t, serverURL(t), alone) // so that what is left of a connection would be noticed
				opts := newTable(t, direct, pgxstore.Options{})
				l := newLedger(t, direct, opts)
				key := uuid.NewString()
				h := newMiddleware(t, pgxstore.NewTx(pool, opts), idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
					tx, ok := pgxstore.SQLTx(r.Context())
					if _, err := tx.ExecContext(r.Context(), l.insert(), key); err != nil || !ok {
						panic(err)
					}
					c.then(r.Context(), tx)
					w.WriteHeader(answer)
				})
				require.Equal(t, want.status, post(h, key).Code)
				require.Equal(t, want.effects, l.effects(t, keyOf(key)))
				records := one[int](t, direct, "SELECT count(*) FROM "+tableName(opts))
				require.Equal(t, want.status == answer || want.effects == 1, records == 1, "what has taken effect has a record")
			})
		}
	}
}

func leaveOpen(ctx context.Context, t testing.TB, tx *sql.Tx) {
	rows, err := tx.QueryContext(ctx, "SELECT generate_series(1, 100000)")
	assert.NoError(t, err)
	assert.True(t, rows.Next())
}

func interrupted(ctx context.Context, tx *sql.Tx) {
	brief, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, _ = tx.ExecContext(brief, "SELECT pg_sleep(60)")
}

// readInEveryWay leaves the connection to the next statement each time.
func readInEveryWay(ctx context.Context, t testing.TB, tx *sql.Tx) {
	numbers := func(rows *sql.Rows, err error) (all []int) {
		assert.NoError(t, err)
		for rows.Next() {
			var n int
			assert.NoError(t, rows.Scan(&n))
			all = append(all, n)
		}
		assert.NoError(t, rows.Err())
		return all
	}
	assert.Equal(t, []int{1, 2, 3}, numbers(tx.QueryContext(ctx, "SELECT generate_series(1, 3)")))
	assert.Empty(t, numbers(tx.QueryContext(ctx, "SELECT 1 WHERE false")))

	rows, err := tx.QueryContext(ctx, "SELECT generate_series(1, 3)")
	assert.NoError(t, err)
	_, err = tx.ExecContext(ctx, "SELECT 1")
	assert.ErrorContains(t, err, "in use")
	assert.NoError(t, rows.Close())

	statement, err := tx.PrepareContext(ctx, "SELECT $1::int + generate_series(0, 1)")
	assert.NoError(t, err)
	assert.Equal(t, []int{4, 5}, numbers(statement.QueryContext(ctx, 4)))
	result, err := statement.ExecContext(ctx, 4)
	assert.NoError(t, err)
	affected, err := result.RowsAffected()
	assert.NoError(t, err)
	assert.EqualValues(t, 2, affected)
	assert.NoError(t, statement.Close())

	var n int
	assert.Error(t, tx.QueryRowContext(ctx, "SELECT $1::int").Scan(&n), "is not sent")
	assert.Error(t, tx.QueryRowContext(ctx, "SELECT 'many'").Scan(&n), "cannot be scanned")
	assert.ErrorIs(t, tx.QueryRowContext(ctx, "SELECT 1 WHERE false").Scan(&n), sql.ErrNoRows)
	assert.NoError(t, tx.QueryRowContext(ctx, "SELECT 7").Scan(&n))
	assert.Equal(t, 7, n)
}

func useBoth(ctx context.Context, t testing.TB, tx *sql.Tx) {
	again, ok := pgxstore.SQLTx(ctx)
	assert.True(t, ok)
	assert.Same(t, tx, again)
	other, ok := pgxstore.Tx(ctx)
	assert.True(t, ok)
	const id = "SELECT pg_current_xact_id()::text"
	var one, two string
	assert.NoError(t, tx.QueryRowContext(ctx, id).Scan(&one))
	assert.NoError(t, other.QueryRow(ctx, id).Scan(&two))
	assert.Equal(t, one, two)
}

// What the server refuses is told as pgx tells it, at once.
func TestErrorsInSQL(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	_, claim := begun(t, pgxstore.NewTx(pool, newTable(t, pool, pgxstore.Options{})))
	defer func() { _ = claim.Release(t.Context(), time.Hour) }()
	tx, ok := pgxstore.SQLTx(claim.Context(t.Context()))
	require.True(t, ok)
	exec := func(sql string) error {
		_, err := tx.Exec(sql)
		return err
	}
	require.NoError(t, exec(`CREATE TEMPORARY TABLE goods (name text CONSTRAINT "one of each" UNIQUE) ON COMMIT DROP`))
	require.NoError(t, exec("INSERT INTO goods VALUES ('chair')"))
	for name, insert := range map[string]func(string) error{
		"Exec":     exec,
		"QueryRow": func(sql string) error { return tx.QueryRow(sql + " RETURNING name").Scan(new(string)) },
		"Query": func(sql string) error {
			_, err := tx.Query(sql)
			return err
		},
	} {
		require.NoError(t, exec("SAVEPOINT before"))
		err := insert("INSERT INTO goods VALUES ('chair')")
		var refused *pgconn.PgError
		require.True(t, errors.As(err, &refused), name)
		require.Equal(t, []string{"23505", "one of each"}, []string{refused.Code, refused.ConstraintName}, name)
		require.NoError(t, exec("ROLLBACK TO before"))
	}
}

// A statement that database/sql has kept back, because the client has left, is one that was not made.
func TestEndOfTheHandlerInSQL(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	for _, status := range []int{http.StatusCreated, http.StatusUnprocessableEntity} {
		opts := newTable(t, pool, pgxstore.Options{})
		l := newLedger(t, pool, opts)
		var leave context.CancelFunc
		h := newMiddleware(t, pgxstore.NewTx(pool, opts), idempotency.Options{CancelWithClient: true},
			func(w http.ResponseWriter, r *http.Request) {
				tx, _ := pgxstore.SQLTx(r.Context())
				_, err := tx.ExecContext(r.Context(), l.insert(), "1")
				assert.NoError(t, err)
				leave()
				<-r.Context().Done()
				_, err = tx.ExecContext(r.Context(), l.insert(), "1")
				assert.Error(t, err)
				w.WriteHeader(status)
			})
		r := httptest.NewRequest(http.MethodPost, "/payments", nil)
		r.Header.Set("Idempotency-Key", "1")
		ctx, cancel := context.WithCancel(r.Context())
		leave = cancel
		h.ServeHTTP(httptest.NewRecorder(), r.WithContext(ctx))
		require.Zero(t, l.effects(t, keyOf("1")))
		require.Zero(t, one[int](t, pool, "SELECT count(*) FROM "+tableName(opts)))
	}
}

// A goroutine that the handler has left behind is in the middle of a call when the handler returns.
func TestSQLLeftBehind(t *testing.T) {
	t.Parallel()
	const wait = "SELECT pg_advisory_xact_lock(4712)"
	direct := newPool(t, serverURL(t))
	pool := newPool(t, serverURL(t), alone)
	opts := newTable(t, direct, pgxstore.Options{})
	l := newLedger(t, direct, opts)
	held, err := direct.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = held.Rollback(t.Context()) }()
	_, err = held.Exec(t.Context(), wait)
	require.NoError(t, err)
	calls := map[string]func(context.Context, *sql.Tx) error{
		"Exec": func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, wait)
			return err
		},
		"Query":    func(ctx context.Context, tx *sql.Tx) error { return tx.QueryRowContext(ctx, wait).Scan(new(any)) },
		"Rollback": func(_ context.Context, tx *sql.Tx) error { _, _ = tx.Exec(wait); return tx.Rollback() },
	}
	for name, call := range calls {
		late := make(chan error, 1)
		h := newMiddleware(t, pgxstore.NewTx(pool, opts), idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
			tx, _ := pgxstore.SQLTx(r.Context())
			var pid int
			assert.NoError(t, tx.QueryRow("SELECT pg_backend_pid()").Scan(&pid))
			_, err := tx.Exec(l.insert(), name)
			assert.NoError(t, err)
			go func() { late <- call(context.WithoutCancel(r.Context()), tx) }()
			assert.Eventually(t, func() bool {
				return one[bool](t, direct, "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND NOT granted)", pid)
			}, 10*time.Second, time.Millisecond)
			w.WriteHeader(http.StatusCreated)
		})
		require.Equal(t, http.StatusServiceUnavailable, post(h, name).Code, name)
		require.Error(t, <-late, name)
		require.Zero(t, l.effects(t, keyOf(name)), name)
	}
}

// What a handler keeps of its transaction is of no use after it.
func TestSQLTransactionEndsWithItsClaim(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t), alone)
	store := pgxstore.NewTx(pool, newTable(t, pool, pgxstore.Options{}))
	for name, settle := range settlings {
		_, claim := begun(t, store)
		ctx := claim.Context(t.Context())
		tx, ok := pgxstore.SQLTx(ctx)
		require.True(t, ok, name)
		statement, err := tx.Prepare("SELECT 1")
		require.NoError(t, err)
		require.NoError(t, settle(claim), name)
		_, err = tx.Exec("SELECT 1")
		require.Error(t, err, name)
		_, err = statement.Exec()
		require.Error(t, err, name)
		require.Error(t, tx.Commit(), name)
		require.Error(t, tx.Rollback(), name)

		_, claim = begun(t, store)
		ctx = claim.Context(t.Context())
		require.NoError(t, settle(claim), name)
		tx, ok = pgxstore.SQLTx(ctx) // for the first time
		require.True(t, ok)
		_, err = tx.Exec("SELECT 1")
		require.Error(t, err, name)
		require.Equal(t, 1, one[int](t, pool, "SELECT 1"), "the connection is free")
	}
	_, ok := pgxstore.SQLTx(t.Context())
	require.False(t, ok, "without a store")
}

// Values are those that package stdlib of pgx gives to database/sql, in every mode of pgx.
func TestValuesInSQL(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]pgx.QueryExecMode{
		"prepared": pgx.QueryExecModeCacheStatement, "described once": pgx.QueryExecModeCacheDescribe,
		"described": pgx.QueryExecModeDescribeExec, "unprepared": pgx.QueryExecModeExec,
		"simple protocol": pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, serverURL(t), func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
			_, claim := begun(t, pgxstore.NewTx(pool, newTable(t, pool, pgxstore.Options{})))
			defer func() { _ = claim.Release(t.Context(), time.Hour) }()
			ours, _ := pgxstore.SQLTx(claim.Context(t.Context()))
			db := stdlib.OpenDBFromPool(pool)
			defer db.Close()
			for _, literal := range literals {
				sql := "SELECT " + literal
				require.Equal(t, valueOf(t, db, sql), valueOf(t, ours, sql), literal)
			}
			for _, argument := range []any{
				7, int64(1) << 40, uint8(3), 1.5, true, "text", nil, time.Date(2026, 11, 22, 1, 2, 3, 4000, time.UTC),
				sql.NullString{}, sql.NullInt64{Int64: 5, Valid: true}, new(int), uuid.New(), []int{1, 2}, []string{"a"},
			} {
				const types = "SELECT $1::%s"
				sql := fmt.Sprintf(types, typeOf(argument))
				require.Equal(t, valueOf(t, db, sql, argument), valueOf(t, ours, sql, argument), "%T", argument)
			}
			require.Equal(t, "string b", valueOf(t, ours, "SELECT @name::text", pgx.NamedArgs{"name": "b"}))
		})
	}
}

var literals = []string{
	"true", "NULL", "1::int2", "-1", "1::int8", "1.1::float4", "1.1::float8", "'NaN'::float8", "1.10::numeric", "1::oid", "'1'::xid",
	"'text'", "'text'::varchar", "'c'::\"char\"", "'name'::name", "'\\x0102'::bytea", "'2026-11-22'::date", "'infinity'::date",
	"'2026-11-22 01:02:03.000004'::timestamp", "'2026-11-22 01:02:03.000004+05'::timestamptz", "'infinity'::timestamptz",
	"'01:02:03'::time", "'1 day 01:02:03'::interval", "'{\"a\": 1}'::json", "'{\"a\": 1}'::jsonb", "'<a/>'::xml",
	"'11111111-2222-3333-4444-555555555555'::uuid", "'10.0.0.1'::inet", "'10.0.0.0/8'::cidr", "'{1,NULL,3}'::int[]",
	"ARRAY['a','b c']", "'[1,5)'::int4range", "'(1,2)'::point", "B'101'", "row(1,'a')", "'a b'::tsvector", "'1'::money",
}

func typeOf(argument any) string {
	switch argument.(type) {
	case int, uint8, sql.NullInt64, *int:
		return "int"
	case int64:
		return "bigint"
	case float64:
		return "float8"
	case bool:
		return "bool"
	case time.Time:
		return "timestamptz"
	case uuid.UUID:
		return "uuid"
	case []int:
		return "int[]"
	case []string:
		return "text[]"
	default:
		return "text"
	}
}

// valueOf shows type and value of what a query yields that has one row of one column.
func valueOf(t testing.TB, from interface {
	QueryRow(string, ...any) *sql.Row
}, query string, args ...any) string {
	t.Helper()
	var value any
	if err := from.QueryRow(query, args...).Scan(&value); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return fmt.Sprintf("%T %v", value, value)
}

// The way by database/sql adds no round trip.
func TestRoundTripsInSQL(t *testing.T) {
	t.Parallel()
	pool, proxy := newProxiedPool(t, alone)
	store := pgxstore.NewTx(pool, newTable(t, newPool(t, serverURL(t)), pgxstore.Options{}))
	operation := func() int {
		before := proxy.Flights()
		_, claim := begun(t, store)
		tx, _ := pgxstore.SQLTx(claim.Context(t.Context()))
		for range 2 {
			_, err := tx.Exec("SELECT $1::int", 1)
			require.NoError(t, err)
			require.Equal(t, "int64 1", valueOf(t, tx, "SELECT $1::int", 1))
		}
		statement, err := tx.Prepare("SELECT $1::int")
		require.NoError(t, err)
		_, err = statement.Exec(2)
		require.NoError(t, err)
		require.NoError(t, statement.Close())
		require.NoError(t, claim.Complete(context.Background(), answer, time.Hour))
		return proxy.Flights() - before
	}
	operation() // prepares the statements
	require.Equal(t, 2+5, operation())
}

// database/sql would take the name of an argument for a place.
func TestNamedArgumentsInSQL(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t))
	_, claim := begun(t, pgxstore.NewTx(pool, newTable(t, pool, pgxstore.Options{})))
	defer func() { _ = claim.Release(context.Background(), time.Hour) }()
	tx, ok := pgxstore.SQLTx(claim.Context(t.Context()))
	require.True(t, ok)
	_, err := tx.ExecContext(t.Context(), "SELECT $1::int", sql.Named("a", 1))
	require.ErrorContains(t, err, "named arguments")
	_, err = tx.QueryContext(t.Context(), "SELECT $1::int", sql.Named("a", 1))
	require.ErrorContains(t, err, "named arguments")
}
