package pgxstore_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/pgxstore"
)

var errHandler = errors.New("the handler has failed")

// newMiddleware guards handler with store.
func newMiddleware(t testing.TB, store idempotency.Store, opts idempotency.Options, handler http.HandlerFunc) http.Handler {
	t.Helper()
	opts.Logger = slog.New(slog.DiscardHandler)
	m, err := idempotency.New(store, idempotency.SingleUser, opts)
	require.NoError(t, err)
	return m.Handler(handler)
}

func post(h http.Handler, key string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodPost, "/payments", nil)
	r.Header.Set("Idempotency-Key", key)
	h.ServeHTTP(w, r)
	return w
}

// Whatever a handler does to its transaction, the client sees no success that was not committed with its record, and no
// refusal that has taken effect.
func TestHandlerInTransaction(t *testing.T) {
	t.Parallel()
	direct := newPool(t, serverURL(t))
	execute(t, direct, `DROP TABLE IF EXISTS child, parent; CREATE TABLE parent (id int PRIMARY KEY);
		CREATE TABLE child (id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
		CREATE OR REPLACE PROCEDURE commits() LANGUAGE plpgsql AS 'BEGIN COMMIT; END'`)
	run := func(statements ...string) func(context.Context, pgx.Tx) {
		return func(ctx context.Context, tx pgx.Tx) {
			for _, sql := range statements {
				_, _ = tx.Exec(ctx, sql) // the handler ignores what comes of it
			}
		}
	}
	behind := func(statements ...string) func(context.Context, pgx.Tx) {
		return func(ctx context.Context, tx pgx.Tx) {
			for _, sql := range statements {
				if _, err := tx.Conn().Exec(ctx, sql); err != nil {
					panic(err)
				}
			}
		}
	}
	for name, c := range map[string]struct {
		then    func(ctx context.Context, tx pgx.Tx) // after the effect
		status  int                                  // if the handler answers 201
		effects int
		refused int // the status if the handler answers 422
	}{
		"does nothing more":           {run(), 201, 1, 422},
		"rolls back":                  {func(ctx context.Context, tx pgx.Tx) { _ = tx.Rollback(ctx) }, 503, 0, 422},
		"swallows an error":           {run("SELECT 1/0"), 503, 0, 422},
		"breaks a deferred rule":      {run("INSERT INTO child VALUES (1)"), 500, 0, 422},
		"rolls back in SQL":           {run("ROLLBACK"), 503, 0, 503},
		"rolls back and begins again": {run("ROLLBACK", "BEGIN"), 503, 0, 503},
		"commits in SQL": {run("COMMIT", " end work", "prepare TRANSACTION 'x'", // all of which is refused
			"-- name: Done :exec\nCOMMIT", ";/* a */ /* b\n */COMMIT"), 201, 1, 422},
		"commits and begins again": {run("COMMIT", "BEGIN"), 201, 1, 422},
		// What commits behind another statement is not refused. It is noticed: nothing more is done.
		"commits in a string":                  {run("SELECT 1; COMMIT", "SELECT 1"), 503, 1, 503},
		"undoes a part in a string":            {run("SAVEPOINT a", "SELECT 1/0", "ROLLBACK TO a; SELECT 1"), 201, 1, 422},
		"commits in a string and begins again": {run("SELECT 1; COMMIT; BEGIN"), 503, 1, 503},
		"commits in a string, and rolls back": {func(ctx context.Context, tx pgx.Tx) {
			_, _ = tx.Exec(ctx, "SELECT 1; COMMIT")
			_ = tx.Rollback(ctx)
		}, 503, 1, 503},
		"commits in a batch": {func(ctx context.Context, tx pgx.Tx) {
			batch := &pgx.Batch{}
			batch.Queue("SELECT 1")
			batch.Queue("COMMIT")
			if err := tx.SendBatch(ctx, batch).Close(); !errors.Is(err, pgxstore.ErrCommit) {
				panic("the batch is not refused")
			}
		}, 201, 1, 422},
		"prepares a commit": {func(ctx context.Context, tx pgx.Tx) {
			if _, err := tx.Prepare(ctx, "done", "COMMIT"); !errors.Is(err, pgxstore.ErrCommit) {
				panic("it is prepared")
			}
		}, 201, 1, 422},
		"commits in a block":     {run("DO $$ BEGIN COMMIT; END $$"), 503, 0, 422}, // PostgreSQL refuses it
		"commits in a procedure": {run("CALL commits()"), 503, 0, 422},
		// A commit behind our back nobody can undo, but no success is reported, and nothing more is done.
		"commits behind our back": {behind("COMMIT"), 503, 1, 503},
		"goes on behind our back": {behind("COMMIT", "BEGIN"), 503, 1, 503},
		"fails behind our back": {func(ctx context.Context, tx pgx.Tx) {
			behind("COMMIT", "BEGIN")(ctx, tx)
			_, _ = tx.Exec(ctx, "SELECT 1/0")
		}, 503, 1, 503},
		"commits behind our back, and goes on": {func(ctx context.Context, tx pgx.Tx) {
			behind("COMMIT")(ctx, tx)
			if _, err := tx.Exec(ctx, "INSERT INTO parent VALUES (9)"); err == nil {
				panic("a statement after the end is not refused")
			}
		}, 503, 1, 503},
		"commits behind our back, and rolls back": {func(ctx context.Context, tx pgx.Tx) {
			behind("COMMIT")(ctx, tx)
			_ = tx.Rollback(ctx)
		}, 503, 1, 503},
		"commits behind our back, and ends its session": {func(ctx context.Context, tx pgx.Tx) {
			behind("COMMIT")(ctx, tx)
			_, _ = tx.Conn().Exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())")
		}, 503, 1, 503},
		"begins and commits behind our back": {func(ctx context.Context, tx pgx.Tx) {
			part, _ := tx.Conn().Begin(ctx) // as code does that is given a connection
			_ = part.Commit(ctx)
		}, 503, 1, 503},
		"rolls back behind our back":          {behind("ROLLBACK"), 503, 0, 503},
		"uses the connection behind our back": {behind("SELECT 1"), 201, 1, 422},
		"commits": {func(ctx context.Context, tx pgx.Tx) {
			if !errors.Is(tx.Commit(ctx), pgxstore.ErrCommit) {
				panic("Commit is not refused")
			}
		}, 201, 1, 422},
		"leaves rows open": {func(ctx context.Context, tx pgx.Tx) {
			_, _ = tx.Query(ctx, "SELECT generate_series(1, 100000)")
		}, 503, 0, 503},
		"rolls back in vain": {func(ctx context.Context, tx pgx.Tx) { _ = tx.Rollback(canceled(ctx)) }, 503, 0, 422},
		"rolls back while rows are open": {func(ctx context.Context, tx pgx.Tx) {
			rows, _ := tx.Query(ctx, "SELECT 1")
			defer rows.Close()
			_ = tx.Rollback(ctx)
		}, 503, 0, 422},
		"asks for nothing when nobody waits": {func(ctx context.Context, tx pgx.Tx) {
			_, _ = tx.Exec(canceled(ctx), "SELECT 1")
		}, 503, 0, 503},
		"reads nothing when nobody waits": {func(ctx context.Context, tx pgx.Tx) {
			_ = tx.QueryRow(canceled(ctx), "SELECT 1").Scan(nil)
		}, 503, 0, 503},
		"undoes a part in vain": {func(ctx context.Context, tx pgx.Tx) {
			part, _ := tx.Begin(ctx)
			_ = part.Rollback(canceled(ctx))
		}, 503, 0, 503},
		"commits a part in vain": {func(ctx context.Context, tx pgx.Tx) {
			part, _ := tx.Begin(ctx)
			_ = part.Commit(canceled(ctx)) // the handler believes that the part is undone
		}, 503, 0, 503},
		"commits a part while rows are open": {func(ctx context.Context, tx pgx.Tx) {
			part, _ := tx.Begin(ctx)
			rows, _ := part.Query(ctx, "SELECT 1")
			defer rows.Close()
			_ = part.Commit(ctx)
		}, 503, 0, 422},
		"uses a part that has ended": {func(ctx context.Context, tx pgx.Tx) {
			for _, end := range []func(pgx.Tx) error{
				func(part pgx.Tx) error { return part.Commit(ctx) }, func(part pgx.Tx) error { return part.Rollback(ctx) },
			} {
				part, err := tx.Begin(ctx)
				if err := errors.Join(err, end(part)); err != nil {
					panic(err)
				}
				_, late := part.Exec(ctx, "INSERT INTO parent VALUES (6)")
				_, later := part.Begin(ctx)
				for _, err := range []error{late, later, part.Commit(ctx), part.Rollback(ctx)} {
					if !errors.Is(err, pgx.ErrTxClosed) {
						panic(err)
					}
				}
			}
		}, 201, 1, 422},
		"reads in every way": {func(ctx context.Context, tx pgx.Tx) { // and each leaves the connection to the next
			var n int
			rows, err := tx.Query(ctx, "SELECT generate_series(1, 3)")
			numbers, err1 := pgx.CollectRows(rows, pgx.RowTo[int])
			rows, err2 := tx.Query(ctx, "SELECT generate_series(1, 3)")
			rows.Next()
			if err := errors.Join(err, err1, err2, rows.Scan(&n)); err != nil || len(numbers) != 3 {
				panic(err)
			}
			_, err = tx.Exec(ctx, "SELECT 1")
			if err == nil {
				panic("two at once")
			}
			rows.Close()
			rows.Close()
			_, wrong := tx.Query(ctx, "SELECT $1::int") // is not sent
			if wrong == nil {
				panic("no error")
			}
			batch := &pgx.Batch{}
			batch.Queue("SELECT 2")
			err = errors.Join(
				tx.QueryRow(ctx, "SELECT 1").Scan(&n),
				tx.SendBatch(ctx, batch).Close(),
			)
			_, err1 = tx.Prepare(ctx, "one", "SELECT 1")
			_, err2 = tx.CopyFrom(ctx, pgx.Identifier{"parent"}, []string{"id"}, pgx.CopyFromRows(nil))
			if err := errors.Join(err, err1, err2); err != nil {
				panic(err)
			}
		}, 201, 1, 422},
		"fails to read a row": {func(ctx context.Context, tx pgx.Tx) { // which closes the rows
			tx.Conn().TypeMap().RegisterType(&pgtype.Type{Name: "text", OID: pgtype.TextOID, Codec: pgtype.Int4Codec{}})
			for _, read := range []func(pgx.Rows) error{
				func(rows pgx.Rows) error { return rows.Scan(new(int)) },
				func(rows pgx.Rows) error { _, err := rows.Values(); return err },
			} {
				rows, err := tx.Query(ctx, "SELECT 'x'::text FROM generate_series(1, 3)")
				if err != nil || !rows.Next() || read(rows) == nil {
					panic("the row was read")
				}
			}
			if _, err := tx.Exec(ctx, "INSERT INTO parent (id) SELECT 5 WHERE false"); err != nil {
				panic(err)
			}
		}, 201, 1, 422},
		"ends its session": {run("SELECT pg_terminate_backend(pg_backend_pid())"), 503, 0, 503},
		"undoes a part": {func(ctx context.Context, tx pgx.Tx) {
			_ = pgx.BeginFunc(ctx, tx, func(part pgx.Tx) error {
				_, err := part.Exec(ctx, "SELECT 1/0")
				return err
			})
		}, 201, 1, 422},
		"commits a part": {func(ctx context.Context, tx pgx.Tx) {
			_ = pgx.BeginFunc(ctx, tx, func(part pgx.Tx) error {
				_, err := part.Exec(ctx, "INSERT INTO parent VALUES (7)")
				return err
			})
		}, 201, 1, 422},
		"uses a large object in SQL": {run("SELECT lo_from_bytea(0, 'x')"), 201, 1, 422},
	} {
		for answer, want := range map[int]struct{ status, effects int }{
			http.StatusCreated:             {c.status, c.effects},
			http.StatusUnprocessableEntity: {c.refused, c.effects},
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
					tx, ok := pgxstore.Tx(r.Context())
					if _, err := tx.Exec(r.Context(), l.insert(), key); err != nil || !ok {
						panic(err)
					}
					c.then(r.Context(), tx)
					w.WriteHeader(answer)
				})
				require.Equal(t, want.status, post(h, key).Code)
				require.Equal(t, want.effects, l.effects(t, keyOf(key)))
				records := one[int](t, direct, "SELECT count(*) FROM "+tableName(opts))
				lost := want.effects == 1 && want.status != answer
				require.Equal(t, want.status == answer || lost, records == 1, "what has taken effect has a record")
				if lost {
					require.Contains(t, post(h, key).Body.String(), "not-replayable", "it does not run again")
				}
			})
		}
	}
}

// A handler that charges first, and whose commit fails then, charges once: the provider sees the same key again.
func TestChargeBehindAFailedCommit(t *testing.T) {
	t.Parallel()
	direct := newPool(t, serverURL(t))
	execute(t, direct, `DROP TABLE IF EXISTS payment, account; CREATE TABLE account (id int PRIMARY KEY);
		CREATE TABLE payment (account int REFERENCES account DEFERRABLE INITIALLY DEFERRED)`)
	for name, c := range map[string]struct {
		sql   string // what keeps the first attempt from being committed
		first int
	}{
		"deferred constraint": {"INSERT INTO payment VALUES (1)", http.StatusInternalServerError},
		"end of the session":  {"SELECT pg_terminate_backend(pg_backend_pid())", http.StatusServiceUnavailable},
		"conflict":            {"DO $$ BEGIN RAISE SQLSTATE '40001'; END $$", http.StatusServiceUnavailable},
		"rollback":            {"ROLLBACK", http.StatusServiceUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts := newTable(t, direct, pgxstore.Options{})
			l := newLedger(t, direct, opts)
			charges, ran := make(map[string]int), 0
			h := newMiddleware(t, pgxstore.NewTx(newPool(t, serverURL(t)), opts), idempotency.Options{},
				func(w http.ResponseWriter, r *http.Request) {
					op, _ := idempotency.FromContext(r.Context())
					assert.Equal(t, 1, op.Attempt, "nothing is left of the first")
					charges[op.DownstreamKey("charge")]++
					tx, _ := pgxstore.Tx(r.Context())
					_, err := tx.Exec(r.Context(), l.insert(), op.Key.ID)
					assert.NoError(t, err)
					if ran++; ran == 1 {
						_, _ = tx.Exec(r.Context(), c.sql)
					}
					w.WriteHeader(http.StatusCreated)
				})
			require.Equal(t, c.first, post(h, "1").Code)
			require.Zero(t, l.effects(t, keyOf("1")))
			require.Equal(t, http.StatusCreated, post(h, "1").Code)
			require.Equal(t, 1, l.effects(t, keyOf("1")))
			require.Len(t, charges, 1)
			require.Equal(t, 2, ran)
		})
	}
}

// A handler that commits by way of Conn and then fails does not run again. One that rolls back does.
func TestFailureBehindACommit(t *testing.T) {
	t.Parallel()
	for sql, runs := range map[string]int{"COMMIT": 1, "COMMIT; BEGIN": 1, "ROLLBACK": 2, "ROLLBACK; BEGIN": 2, "SELECT 1": 2} {
		for how, fail := range map[string]func(http.ResponseWriter){
			"answers 503": func(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) },
			"panics":      func(http.ResponseWriter) { panic(errHandler) },
		} {
			t.Run(sql+"/"+how, func(t *testing.T) {
				t.Parallel()
				direct := newPool(t, serverURL(t))
				opts := newTable(t, direct, pgxstore.Options{})
				l := newLedger(t, direct, opts)
				ran := 0
				h := newMiddleware(t, pgxstore.NewTx(newPool(t, serverURL(t), alone), opts), idempotency.Options{},
					func(w http.ResponseWriter, r *http.Request) {
						ran++
						tx, _ := pgxstore.Tx(r.Context())
						_, err := tx.Exec(r.Context(), l.insert(), "1")
						require.NoError(t, err)
						if ran == 1 {
							_, err = tx.Conn().Exec(r.Context(), sql)
							require.NoError(t, err)
							fail(w)
						}
					})
				func() {
					defer func() { _ = recover() }()
					_ = post(h, "1")
				}()
				second := post(h, "1")
				require.Equal(t, runs, ran)
				require.Equal(t, 1, l.effects(t, keyOf("1")))
				require.Equal(t, runs == 1, second.Code == http.StatusConflict)
			})
		}
	}
}

// canceled is ctx when the client has gone.
func canceled(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	return ctx
}

// A goroutine that the handler has left behind is in the middle of a call when the handler returns. No success is
// reported, and nothing of it stays.
func TestGoroutineLeftBehind(t *testing.T) {
	t.Parallel()
	const number = 4711
	wait := fmt.Sprintf("SELECT pg_advisory_xact_lock(%d)", number)
	direct := newPool(t, serverURL(t))
	for name, call := range map[string]func(context.Context, pgx.Tx) error{
		"Exec": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, wait)
			return err
		},
		"Query": func(ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, wait)
			if err != nil {
				return err
			}
			_, err = pgx.CollectRows(rows, pgx.RowTo[any])
			return err
		},
		"QueryRow": func(ctx context.Context, tx pgx.Tx) error { return tx.QueryRow(ctx, wait).Scan(nil) },
		"SendBatch": func(ctx context.Context, tx pgx.Tx) error {
			batch := &pgx.Batch{}
			batch.Queue(wait)
			return tx.SendBatch(ctx, batch).Close()
		},
		"savepoint": func(ctx context.Context, tx pgx.Tx) error {
			return pgx.BeginFunc(ctx, tx, func(part pgx.Tx) error {
				_, err := part.Exec(ctx, wait)
				return err
			})
		},
	} {
		for end, status := range map[string]int{"answers": http.StatusCreated, "panics": 0} {
			t.Run(name+"/"+end, func(t *testing.T) {
				pool := newPool(t, serverURL(t), alone)
				opts := newTable(t, direct, pgxstore.Options{})
				l := newLedger(t, direct, opts)
				held, err := direct.Begin(t.Context())
				require.NoError(t, err)
				defer func() { _ = held.Rollback(t.Context()) }()
				_, err = held.Exec(t.Context(), wait)
				require.NoError(t, err)

				late := make(chan error, 1)
				first := true
				h := newMiddleware(t, pgxstore.NewTx(pool, opts), idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
					tx, _ := pgxstore.Tx(r.Context())
					if _, err := tx.Exec(r.Context(), l.insert(), "1"); err != nil {
						panic(err)
					}
					if !first {
						w.WriteHeader(http.StatusCreated)
						return
					}
					first = false
					ctx := context.WithoutCancel(r.Context())
					pid := tx.Conn().PgConn().PID()
					go func() { late <- call(ctx, tx) }()
					for !one[bool](t, direct, "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND NOT granted)", pid) {
						runtime.Gosched()
					}
					if status == 0 {
						panic("broken")
					}
					w.WriteHeader(status)
				})
				if status == 0 {
					require.PanicsWithValue(t, "broken", func() { post(h, "1") })
				} else {
					require.Equal(t, http.StatusServiceUnavailable, post(h, "1").Code)
				}
				require.Error(t, <-late)
				require.NoError(t, held.Rollback(t.Context())) // and so the server goes on with it
				require.Eventually(t, func() bool { return post(h, "1").Code == http.StatusCreated }, 10*time.Second, time.Millisecond)
				require.Equal(t, 1, l.effects(t, keyOf("1")))
			})
		}
	}
}

// So it is whenever the handler returns, in what it reports and in what stays, and the process goes on.
func TestManyLeftBehind(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t), func(c *pgxpool.Config) { c.MaxConns = 4 })
	opts := newTable(t, pool, pgxstore.Options{})
	l := newLedger(t, pool, opts)
	var strays sync.WaitGroup
	h := newMiddleware(t, pgxstore.NewTx(pool, opts), idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
		op, _ := idempotency.FromContext(r.Context())
		tx, _ := pgxstore.Tx(r.Context())
		if _, err := tx.Exec(r.Context(), l.insert(), op.Key.ID); err != nil {
			panic(err)
		}
		ctx := context.WithoutCancel(r.Context())
		for range 2 {
			strays.Go(func() {
				for range 1000 {
					if _, err := tx.Exec(ctx, l.insert(), "stray of "+op.Key.ID); errors.Is(err, pgx.ErrTxClosed) {
						return
					}
				}
			})
		}
		for range op.Key.ID[0] % 4 {
			runtime.Gosched()
		}
		w.WriteHeader(http.StatusCreated)
	})
	var crowd sync.WaitGroup
	for range 4 {
		crowd.Go(func() {
			for range 50 {
				key := uuid.NewString()
				code := post(h, key).Code
				if code != http.StatusCreated {
					assert.Equal(t, http.StatusServiceUnavailable, code)
				}
				want := map[int]int{http.StatusCreated: 1}[code]
				assert.Equal(t, want, l.effects(t, keyOf(key)))
				if want == 0 {
					assert.Zero(t, l.effects(t, keyOf("stray of "+key)))
				}
			}
		})
	}
	crowd.Wait()
	strays.Wait()
	records := one[int](t, pool, "SELECT count(*) FROM "+tableName(opts))
	require.Equal(t, records, one[int](t, pool, "SELECT count(DISTINCT key) FROM "+l.table+" WHERE key NOT LIKE 'stray%'"))
}

func TestPanicRollsBack(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t), alone)
	opts := newTable(t, pool, pgxstore.Options{})
	l := newLedger(t, pool, opts)
	fail := true
	h := newMiddleware(t, pgxstore.NewTx(pool, opts), idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
		tx, _ := pgxstore.Tx(r.Context())
		if _, err := tx.Exec(r.Context(), l.insert(), "1"); err != nil || fail {
			panic("broken")
		}
		w.WriteHeader(http.StatusCreated)
	})
	require.PanicsWithValue(t, "broken", func() { post(h, "1") })
	fail = false
	require.Equal(t, http.StatusCreated, post(h, "1").Code, "at once, on the same connection")
	require.Equal(t, 1, l.effects(t, keyOf("1")))
}

// Of many at once, at every level of isolation, one takes effect. The others get its answer, or are told to come again.
func TestIsolation(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, serverURL(t))
			opts := newTable(t, pool, pgxstore.Options{Isolation: level})
			l := newLedger(t, pool, opts)
			h := newMiddleware(t, pgxstore.NewTx(pool, opts), idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
				op, _ := idempotency.FromContext(r.Context())
				tx, _ := pgxstore.Tx(r.Context())
				if _, err := tx.Exec(r.Context(), l.insert(), op.Key.ID); err != nil {
					http.Error(w, err.Error(), http.StatusServiceUnavailable)
					return
				}
				w.Header().Set("Run", uuid.NewString())
				w.WriteHeader(http.StatusCreated)
			})
			for range 10 {
				key := uuid.NewString()
				var mu sync.Mutex
				answers := make(map[string]int)
				var crowd sync.WaitGroup
				for range 32 {
					crowd.Go(func() {
						w := post(h, key)
						for w.Code == http.StatusConflict || w.Code == http.StatusServiceUnavailable {
							w = post(h, key)
						}
						mu.Lock()
						defer mu.Unlock()
						answers[w.Header().Get("Run")]++
					})
				}
				crowd.Wait()
				require.Len(t, answers, 1, "one answer for all")
				require.Equal(t, 1, l.effects(t, keyOf(key)))
			}
		})
	}
}

// Duplicates that wait hold no connection: a pool of 4 stays usable under 64 of them.
func TestWaitingHoldsNoConnection(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t), func(c *pgxpool.Config) { c.MaxConns = 4 })
	opts := newTable(t, pool, pgxstore.Options{})
	running, finish := make(chan struct{}), make(chan struct{})
	h := newMiddleware(t, pgxstore.NewTx(pool, opts), idempotency.Options{Wait: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
		close(running) // panics if it runs twice
		<-finish
		w.WriteHeader(http.StatusCreated)
	})
	codes := make(chan int, 65)
	var crowd sync.WaitGroup
	crowd.Go(func() { codes <- post(h, "1").Code })
	<-running
	for range 64 {
		crowd.Go(func() { codes <- post(h, "1").Code })
	}
	for range 100 {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		_, err := pool.Exec(ctx, "SELECT pg_sleep(0.005)")
		cancel()
		require.NoError(t, err, "an unrelated query")
	}
	require.LessOrEqual(t, pool.Stat().AcquiredConns(), int32(2), "the owner's, and that of one who looks for all")
	close(finish)
	crowd.Wait()
	for range 65 {
		require.Equal(t, http.StatusCreated, <-codes)
	}
}

// An owner that falls silent is ended by the server, and cannot commit any more.
func TestSilentOwner(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	opts := newTable(t, pool, pgxstore.Options{})
	store := pgxstore.NewTx(pool, opts)
	opts.IdleTimeout = 100 * time.Millisecond
	key, silent := begun(t, pgxstore.NewTx(pool, opts))
	var next idempotency.Claim
	require.Eventually(t, func() bool {
		_, claim, err := store.Begin(ctx, key, attempt)
		require.NoError(t, err)
		next = claim
		return claim != nil
	}, 10*time.Second, 10*time.Millisecond)
	require.NoError(t, next.Complete(ctx, answer, time.Hour))
	require.ErrorIs(t, silent.Complete(ctx, answer, time.Hour), idempotency.ErrClaimLost)
}

// There is no round trip beyond those of a transaction without idempotency: begin, the handler's statement, commit.
func TestRoundTripsOfTransactions(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool, proxy := newProxiedPool(t, alone)
	opts := newTable(t, pool, pgxstore.Options{})
	l := newLedger(t, pool, opts)
	store := pgxstore.NewTx(pool, opts)
	first := func() {
		_, claim := begun(t, store)
		tx, _ := pgxstore.Tx(claim.Context(ctx))
		_, err := tx.Exec(ctx, l.insert(), "1")
		require.NoError(t, err)
		require.NoError(t, claim.Complete(ctx, answer, time.Hour))
	}
	first() // prepares the statements
	before := proxy.Flights()
	first()
	require.Equal(t, 3, proxy.Flights()-before)
}

// settlings are how a claim ends.
var settlings = map[string]func(idempotency.Claim) error{
	"complete": func(c idempotency.Claim) error { return c.Complete(context.Background(), answer, time.Hour) },
	"release":  func(c idempotency.Claim) error { return c.Release(context.Background(), time.Hour) },
}

// A goroutine that the handler left behind cannot reach the connection, which serves somebody else by then.
func TestTransactionEndsWithItsClaim(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t), alone)
	store := pgxstore.NewTx(pool, newTable(t, pool, pgxstore.Options{}))
	for name, settle := range settlings {
		t.Run(name, func(t *testing.T) {
			_, claim := begun(t, store)
			tx, ok := pgxstore.Tx(claim.Context(ctx))
			require.True(t, ok)
			part, err := tx.Begin(ctx)
			require.NoError(t, err)
			require.NoError(t, settle(claim))
			for _, late := range []pgx.Tx{tx, part} {
				_, err := late.Exec(ctx, "SELECT 1")
				require.ErrorIs(t, err, pgx.ErrTxClosed)
				rows, err := late.Query(ctx, "SELECT 1")
				require.ErrorIs(t, err, pgx.ErrTxClosed)
				_, err = pgx.CollectRows(rows, pgx.RowTo[int])
				require.ErrorIs(t, err, pgx.ErrTxClosed)
				var n int
				require.ErrorIs(t, late.QueryRow(ctx, "SELECT 1").Scan(&n), pgx.ErrTxClosed)
				batch := &pgx.Batch{}
				batch.Queue("SELECT 1")
				results := late.SendBatch(ctx, batch)
				_, err = results.Exec()
				require.ErrorIs(t, err, pgx.ErrTxClosed)
				_, err = results.Query()
				require.ErrorIs(t, err, pgx.ErrTxClosed)
				require.ErrorIs(t, results.QueryRow().Scan(&n), pgx.ErrTxClosed)
				require.ErrorIs(t, results.Close(), pgx.ErrTxClosed)
				_, err = late.CopyFrom(ctx, pgx.Identifier{"x"}, []string{"x"}, pgx.CopyFromRows(nil))
				require.ErrorIs(t, err, pgx.ErrTxClosed)
				_, err = late.Prepare(ctx, "x", "SELECT 1")
				require.ErrorIs(t, err, pgx.ErrTxClosed)
				_, err = late.Begin(ctx)
				require.ErrorIs(t, err, pgx.ErrTxClosed)
				require.ErrorIs(t, late.Commit(ctx), pgx.ErrTxClosed)
				require.ErrorIs(t, late.Rollback(ctx), pgx.ErrTxClosed)
			}
			require.Equal(t, 1, one[int](t, pool, "SELECT 1"), "the connection is free")
		})
	}
}

// What pgx knows large objects by would outlive the transaction.
func TestLargeObjectsPanic(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t), alone)
	_, claim := begun(t, pgxstore.NewTx(pool, newTable(t, pool, pgxstore.Options{})))
	tx, _ := pgxstore.Tx(claim.Context(t.Context()))
	require.PanicsWithValue(t, "pgxstore: no LargeObjects here: call lo_from_bytea, lo_put and lo_get in SQL",
		func() { tx.LargeObjects() })
	require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
}

// A lease that has lapsed is taken over by a transaction, which nobody can see. If its owner completes it after all, or
// another one claims it, the transaction gives way.
func TestTransactionGivesWayToLease(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	for name, opts := range map[string]pgxstore.Options{"plain": {}, "partitions": {PartitionDays: 3}} {
		t.Run(name, func(t *testing.T) {
			opts := newTable(t, pool, opts)
			l := newLedger(t, pool, opts)
			leases, transactions := pgxstore.New(pool, opts), pgxstore.NewTx(pool, opts)
			lapsing := attempt
			lapsing.Lease, lapsing.TakeOver = time.Microsecond, true
			key := keyOf("lapses")
			_, owner, err := leases.Begin(ctx, key, lapsing)
			require.NoError(t, err)
			_, taker, err := transactions.Begin(ctx, key, lapsing)
			require.NoError(t, err)
			tx, _ := pgxstore.Tx(taker.Context(ctx))
			_, err = tx.Exec(ctx, l.insert(), key.ID)
			require.NoError(t, err)
			require.NoError(t, owner.Complete(ctx, answer, time.Hour))
			err = taker.Complete(ctx, idempotency.Response{Status: 202}, 25*time.Hour) // in another partition
			require.ErrorIs(t, err, idempotency.ErrRolledBack)
			record, _, err := transactions.Begin(ctx, key, attempt)
			require.NoError(t, err)
			require.Equal(t, &answer, record.Response, "what was acknowledged stays")
			require.Zero(t, l.effects(t, key))
		})
	}

	opts := newTable(t, pool, pgxstore.Options{})
	key, inTx := begun(t, pgxstore.NewTx(pool, opts))
	_, lease, err := pgxstore.New(pool, opts).Begin(ctx, key, attempt)
	require.NoError(t, err)
	require.ErrorIs(t, inTx.Complete(ctx, answer, time.Hour), idempotency.ErrClaimLost)
	require.NoError(t, lease.Complete(ctx, answer, time.Hour))
}

// Where no unique index can refuse a second record, a transaction has to see what others have committed.
func TestLevelOfDividedTables(t *testing.T) {
	t.Parallel()
	pool := newPool(t, serverURL(t), func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["default_transaction_isolation"] = "repeatable read"
	})
	_, claim := begun(t, pgxstore.NewTx(pool, newTable(t, pool, pgxstore.Options{PartitionDays: 2})))
	defer func() { _ = claim.Release(t.Context(), time.Hour) }()
	tx, _ := pgxstore.Tx(claim.Context(t.Context()))
	var level string
	require.NoError(t, tx.QueryRow(t.Context(), "SHOW transaction_isolation").Scan(&level))
	require.Equal(t, "read committed", level)
}

// The timeout of a transaction is what was asked for, however it is written; and is left alone if the session has it.
func TestIdleTimeout(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	const setting = "idle_in_transaction_session_timeout"
	opts := newTable(t, newPool(t, serverURL(t)), pgxstore.Options{})
	for timeout, want := range map[time.Duration]string{
		0: "1min", 61_500 * time.Millisecond: "61500ms", time.Minute: "1min", 90 * time.Second: "90s",
		2 * time.Hour: "2h", 90 * time.Minute: "90min", 48 * time.Hour: "2d", 36 * time.Hour: "36h",
	} {
		for session, source := range map[string]string{"77s": "session", want: "client"} {
			pool := newPool(t, serverURL(t), alone, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams[setting] = session })
			opts := opts
			opts.IdleTimeout = timeout
			_, claim := begun(t, pgxstore.NewTx(pool, opts))
			defer func() { _ = claim.Release(ctx, time.Hour) }() // in any case: the pool waits for its connections
			tx, _ := pgxstore.Tx(claim.Context(ctx))
			var now, from string
			require.NoError(t, tx.QueryRow(ctx, "SELECT current_setting(name), source FROM pg_settings WHERE name = $1", setting).
				Scan(&now, &from))
			require.Equal(t, []string{want, source}, []string{now, from})
			require.NoError(t, claim.Release(ctx, time.Hour))
			require.Equal(t, session, one[string](t, pool, "SELECT current_setting($1)", setting))
		}
	}
}
