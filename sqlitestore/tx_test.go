package sqlitestore_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"modernc.org/sqlite"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/sqlitestore"
)

// Effects and record are committed together, and nobody sees them before.
func TestEffectsAreCommittedWithTheRecord(t *testing.T) {
	t.Parallel()
	store, other := openOrders(t, sqlitestore.Options{})
	h := handle(t, store, "key")
	h.must(t, "INSERT INTO orders VALUES (1, 'tea')")
	require.Empty(t, orders(t, other))
	record, claim, err := store.Begin(t.Context(), keyOf("key"), request)
	require.NoError(t, err)
	require.Nil(t, claim)
	require.Equal(t, idempotency.Record{NoLease: true}, record)
	require.NoError(t, h.answers(201))
	require.Equal(t, "1", orders(t, other))
	requireReplay(t, store, "key")
}

// Nothing begins before the first statement: until then, others write.
func TestTransactionIsLazy(t *testing.T) {
	t.Parallel()
	store, other := openOrders(t, sqlitestore.Options{})
	execute(t, other, "PRAGMA busy_timeout = 0")
	h := handle(t, store, "key")
	execute(t, other, "BEGIN IMMEDIATE")
	execute(t, other, "COMMIT")
	h.must(t, "SELECT 1")
	_, err := other.ExecContext(t.Context(), "BEGIN IMMEDIATE")
	require.ErrorContains(t, err, "locked")
	require.NoError(t, h.answers(201))
	execute(t, other, "BEGIN IMMEDIATE")
	execute(t, other, "COMMIT")
}

// An operation that another attempt completes while this one is claimed is replayed, and not executed again.
func TestCompletedInTheMeantime(t *testing.T) {
	t.Parallel()
	var store *sqlitestore.TxStore
	var isRead atomic.Bool
	store = openTx(t, newPath(t), sqlitestore.Options{}.At(func() time.Time {
		if isRead.CompareAndSwap(false, true) { // the time is read behind the record
			completed(t, store, "key")
		}
		return time.Now()
	}))
	requireReplay(t, store, "key")
}

// outcomes say what becomes of a transaction.
var outcomes = map[string]struct {
	does   func(t *testing.T, h *handler)
	status int
	left   string // orders
	fails  error  // of Complete; nil: the answer is kept
}{
	"accepts":    {insert, 201, "1", nil},
	"no status":  {insert, 0, "1", nil},
	"redirects":  {insert, 399, "1", nil},
	"refuses":    {insert, 400, "", nil},
	"fails":      {insert, 503, "", nil},
	"no effect":  {func(*testing.T, *handler) {}, 404, "", nil},
	"keeps":      {insertAndKeep, 402, "1", nil},
	"rolls back": {insertAndRollback, 201, "", idempotency.ErrRolledBack},
	"gives up":   {insertAndRollback, 409, "", nil},
	"contradicts": {func(t *testing.T, h *handler) {
		insertAndRollback(t, h)
		require.True(t, sqlitestore.KeepEffects(h.ctx))
	}, 409, "", idempotency.ErrRolledBack},
	"undoes a part": {func(t *testing.T, h *handler) {
		insert(t, h)
		h.must(t, "SAVEPOINT part")
		h.must(t, "INSERT INTO orders VALUES (2, '')")
		h.must(t, "ROLLBACK TRANSACTION TO SAVEPOINT part")
		h.must(t, "INSERT INTO orders VALUES (3, '')")
		h.must(t, "RELEASE part")
	}, 201, "1 3", nil},
	"violates a constraint": {func(t *testing.T, h *handler) {
		insert(t, h)
		require.ErrorContains(t, h.does("INSERT INTO orders VALUES (1, '')"), "UNIQUE")
		h.must(t, "INSERT INTO orders VALUES (2, '')")
	}, 201, "1 2", nil},
	"is rolled back":             {isRolledBack, 201, "", idempotency.ErrRolledBack},
	"is rolled back and refuses": {isRolledBack, 409, "", nil},
	"makes a table": {func(t *testing.T, h *handler) {
		h.must(t, "CREATE TABLE more (id INTEGER PRIMARY KEY)")
		h.must(t, "INSERT INTO more VALUES (1)")
		h.must(t, "INSERT INTO orders SELECT id, '' FROM more")
	}, 201, "1", nil},
}

func insert(t *testing.T, h *handler) {
	h.must(t, "INSERT INTO orders VALUES (1, 'tea')")
}

func insertAndKeep(t *testing.T, h *handler) {
	insert(t, h)
	require.True(t, sqlitestore.KeepEffects(h.ctx))
}

func insertAndRollback(t *testing.T, h *handler) {
	insert(t, h)
	require.NoError(t, h.tx.Rollback())
	require.ErrorIs(t, h.does("INSERT INTO orders VALUES (2, '')"), sql.ErrTxDone)
}

// isRolledBack has SQLite roll back, and goes on as if nothing had happened.
func isRolledBack(t *testing.T, h *handler) {
	insert(t, h)
	prepared, err := h.tx.PrepareContext(h.ctx, "INSERT INTO orders VALUES (?, '')")
	require.NoError(t, err)
	require.ErrorContains(t, h.does("INSERT OR ROLLBACK INTO orders VALUES (1, '')"), "UNIQUE")
	require.Error(t, h.does("INSERT INTO orders VALUES (2, '')"))
	require.Error(t, h.does("SAVEPOINT a"))
	_, err = prepared.Exec(3)
	require.Error(t, err)
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	for name, tt := range outcomes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, other := openOrders(t, sqlitestore.Options{})
			h := handle(t, store, "key")
			tt.does(t, h)
			require.Empty(t, orders(t, other))
			require.ErrorIs(t, h.answers(tt.status), tt.fails)
			require.Equal(t, tt.left, orders(t, other))
			if tt.fails == nil {
				requireStatus(t, store, "key", tt.status)
			} else {
				requireFree(t, store, "key")
			}
			requireWorks(t, store, other)
		})
	}
}

// Release undoes everything.
func TestReleaseUndoes(t *testing.T) {
	t.Parallel()
	store, other := openOrders(t, sqlitestore.Options{})
	h := handle(t, store, "key")
	insert(t, h)
	require.NoError(t, h.Release(t.Context(), time.Hour))
	require.Empty(t, orders(t, other))
	require.ErrorIs(t, h.answers(201), idempotency.ErrClaimLost)
	requireFree(t, store, "key")
	requireWorks(t, store, other)
}

// Only the store commits, whatever the handler says. What is in front of a COMMIT in the same string is a part of the
// transaction, and what is behind it does not happen.
func TestOnlyTheStoreCommits(t *testing.T) {
	t.Parallel()
	for statement, want := range map[string]string{
		"COMMIT":                                 "1",
		";;-- a comment\n /* another */ cOmMiT;": "1",
		"END TRANSACTION":                        "1",
		"ROLLBACK":                               "1",
		"ROLLBACK TRANSACTION":                   "1",
		"BEGIN":                                  "1",
		"BEGIN EXCLUSIVE":                        "1",
		"INSERT INTO orders VALUES (2, ''); COMMIT":                                      "1 2",
		"INSERT INTO orders VALUES (2, ''); END; INSERT INTO orders VALUES (3, '')":      "1 2",
		"INSERT INTO orders VALUES (2, ''); ROLLBACK; INSERT INTO orders VALUES (3, '')": "1 2",
		"SELECT 1; COMMIT; BEGIN": "1",
		"EXPLAIN COMMIT":          "1",
		"VACUUM":                  "1",
	} {
		t.Run(statement, func(t *testing.T) {
			t.Parallel()
			store, other := openOrders(t, sqlitestore.Options{})
			h := handle(t, store, "key")
			insert(t, h)
			require.Error(t, h.does(statement))
			_, err := h.tx.QueryContext(h.ctx, statement)
			require.Error(t, err)
			_, err = h.tx.PrepareContext(h.ctx, "COMMIT")
			require.ErrorIs(t, err, sqlitestore.ErrCommit)
			require.Empty(t, orders(t, other))
			require.NoError(t, h.answers(201))
			require.Equal(t, want, orders(t, other))
			requireReplay(t, store, "key")
			requireWorks(t, store, other)
		})
	}
}

// The Commit of the handler says what is wrong with it, and does nothing.
func TestCommitOfTheHandler(t *testing.T) {
	t.Parallel()
	store, other := openOrders(t, sqlitestore.Options{})
	h := handle(t, store, "key")
	insert(t, h)
	require.ErrorIs(t, h.does("COMMIT"), sqlitestore.ErrCommit)
	require.ErrorIs(t, h.tx.Commit(), sqlitestore.ErrCommit)
	require.Empty(t, orders(t, other))
	require.NoError(t, h.answers(201))
	require.Equal(t, "1", orders(t, other))
}

// Settings that would outlast the transaction are refused. Those that end with it, or are a part of it, are not.
func TestSettings(t *testing.T) {
	t.Parallel()
	store, other := openOrders(t, sqlitestore.Options{})
	h := handle(t, store, "key")
	for _, statement := range []string{
		"PRAGMA foreign_keys = 1", "PRAGMA main.query_only(1)", "pragma Recursive_Triggers = on",
		"PRAGMA journal_mode = DELETE", "PRAGMA synchronous = OFF", "SELECT 1; PRAGMA case_sensitive_like = 1",
		"ATTACH ':memory:' AS more", "DETACH main", "PRAGMA wal_checkpoint(TRUNCATE)", "VACUUM INTO 'copy'",
	} {
		require.Error(t, h.does(statement), statement)
	}
	for _, statement := range []string{
		"PRAGMA table_info(orders)", "SELECT name FROM pragma_index_list('orders')", "PRAGMA User_Version = 7",
		"PRAGMA foreign_keys", "PRAGMA defer_foreign_keys = 1",
	} {
		h.must(t, statement)
	}
	require.NoError(t, h.answers(201))
	require.Equal(t, 7, one[int](t, other, "PRAGMA user_version"))
	next := handle(t, store, "next")
	var deferred int
	require.NoError(t, next.tx.QueryRow("PRAGMA defer_foreign_keys").Scan(&deferred))
	require.Zero(t, deferred)
	require.NoError(t, next.answers(201))
}

// What a handler makes for itself is gone when the next one has the connection.
func TestTemporaryTables(t *testing.T) {
	t.Parallel()
	store, other := openOrders(t, sqlitestore.Options{})
	for _, status := range []int{201, 409} {
		h := handle(t, store, strconv.Itoa(status))
		h.must(t, "CREATE TEMP TABLE items (id INTEGER)")
		h.must(t, "INSERT INTO temp.items VALUES (?)", status)
		h.must(t, "CREATE TEMP TRIGGER double AFTER INSERT ON orders BEGIN INSERT INTO items VALUES (NEW.id); END")
		h.must(t, "INSERT INTO orders SELECT id, '' FROM items")
		require.NoError(t, h.answers(status))
		require.Equal(t, "201", orders(t, other))
		next := handle(t, store, "after "+strconv.Itoa(status))
		require.ErrorContains(t, next.does("SELECT * FROM items"), "no such table")
		var n int
		require.NoError(t, next.tx.QueryRow("SELECT count(*) FROM temp.sqlite_master").Scan(&n))
		require.Zero(t, n)
		require.NoError(t, next.answers(404))
	}
	requireWorks(t, store, other)
}

// A PRAGMA whose argument is ” is told from one without only by its effect. That does not reach the next handler.
func TestSettingsWithoutAnArgument(t *testing.T) {
	t.Parallel()
	store, _ := openOrders(t, sqlitestore.Options{Parameters: "_pragma=recursive_triggers(1)"})
	for _, status := range []int{201, 409} {
		h := handle(t, store, strconv.Itoa(status))
		_ = h.does("PRAGMA recursive_triggers = ''")
		require.NoError(t, h.answers(status))
		next := handle(t, store, "after "+strconv.Itoa(status))
		var recursive int
		require.NoError(t, next.tx.QueryRow("PRAGMA recursive_triggers").Scan(&recursive))
		require.Equal(t, 1, recursive)
		require.NoError(t, next.answers(201))
	}
}

// A savepoint that was prepared before SQLite has rolled back begins a transaction of its own. It ends with the
// handler.
func TestPreparedSavepoint(t *testing.T) {
	t.Parallel()
	for _, status := range []int{201, 409} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			t.Parallel()
			store, other := openOrders(t, sqlitestore.Options{})
			h := handle(t, store, "key")
			insert(t, h)
			savepoint, err := h.tx.PrepareContext(h.ctx, "SAVEPOINT part")
			require.NoError(t, err)
			again, err := h.tx.PrepareContext(h.ctx, "INSERT INTO orders VALUES (2, '')")
			require.NoError(t, err)
			require.Error(t, h.does("INSERT OR ROLLBACK INTO orders VALUES (1, '')"))
			_, _ = savepoint.Exec()
			_, _ = again.Exec()
			if err := h.answers(status); status == 201 {
				require.ErrorIs(t, err, idempotency.ErrRolledBack)
			} else {
				require.NoError(t, err)
			}
			require.Empty(t, orders(t, other))
			requireWorks(t, store, other)
		})
	}
}

// Effects are not committed if their record is kept out of the table of the store.
func TestRecordIsKeptOut(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		statement string
		fails     error
	}{
		"table": {"CREATE TEMP TABLE idempotency_records AS SELECT * FROM main.idempotency_records", nil},
		"trigger": {`CREATE TEMP TRIGGER none BEFORE INSERT ON idempotency_records
			BEGIN SELECT RAISE(IGNORE); END`, idempotency.ErrRolledBack},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, other := openOrders(t, sqlitestore.Options{})
			h := handle(t, store, "key")
			insert(t, h)
			h.must(t, tt.statement)
			require.ErrorIs(t, h.answers(201), tt.fails)
			if tt.fails == nil {
				requireReplay(t, store, "key")
			} else {
				require.Empty(t, orders(t, other))
				requireFree(t, store, "key")
			}
			requireWorks(t, store, other)
		})
	}
}

// The table of the records is the store's. A handler may read it.
func TestRecordsAreTheStores(t *testing.T) {
	t.Parallel()
	store, other := openOrders(t, sqlitestore.Options{})
	before, claim := begun(t, store, "before")
	require.Equal(t, 1, before.Attempt)
	require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
	h := handle(t, store, "key")
	insert(t, h)
	for _, statement := range []string{
		"INSERT INTO idempotency_records SELECT * FROM idempotency_records",
		"UPDATE Idempotency_Records SET expires = 0",
		"DELETE FROM main.idempotency_records",
		"DROP TABLE idempotency_records",
		"ALTER TABLE idempotency_records RENAME TO mine",
		"CREATE INDEX mine ON idempotency_records (expires)",
		"CREATE TRIGGER mine AFTER INSERT ON idempotency_records BEGIN DELETE FROM idempotency_records; END",
	} {
		require.ErrorContains(t, h.does(statement), "not authorized", statement)
	}
	h.must(t, "INSERT INTO orders SELECT 2, count(*) FROM idempotency_records")
	require.NoError(t, h.answers(201))
	require.Equal(t, "1 2", orders(t, other))
	requireReplay(t, store, "before")
	requireReplay(t, store, "key")
}

// A goroutine that is left behind may call what it likes while the transaction ends.
func TestLeftBehindWhileTheTransactionEnds(t *testing.T) {
	t.Parallel()
	store, other := openOrders(t, sqlitestore.Options{})
	for i := range 20 {
		h := handle(t, store, strconv.Itoa(i))
		ctx, cancel := context.WithCancel(t.Context())
		calls, gone := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(gone)
			for once := sync.OnceFunc(func() { close(calls) }); ctx.Err() == nil; once() {
				sqlitestore.KeepEffects(h.ctx)
			}
		}()
		<-calls
		require.NoError(t, h.answers(409))
		cancel()
		<-gone
	}
	requireWorks(t, store, other)
}

// A commit that the data forbid is not to be tried again.
func TestDeferredForeignKey(t *testing.T) {
	t.Parallel()
	store, other := openOrders(t, sqlitestore.Options{Parameters: "_pragma=foreign_keys(1)"})
	execute(t, other, `CREATE TABLE lines (of INTEGER REFERENCES orders DEFERRABLE INITIALLY DEFERRED)`)
	h := handle(t, store, "key")
	insert(t, h)
	h.must(t, "INSERT INTO lines VALUES (7)")
	err := h.answers(201)
	require.ErrorIs(t, err, idempotency.ErrRolledBack)
	refusal, ok := errors.AsType[*idempotency.Error](err)
	require.True(t, ok)
	require.Equal(t, idempotency.RetryNever, refusal.Retry)
	require.Empty(t, orders(t, other))
	requireFree(t, store, "key")
	requireWorks(t, store, other)

	unchecked, other := openOrders(t, sqlitestore.Options{})
	execute(t, other, `CREATE TABLE lines (of INTEGER REFERENCES orders)`)
	h = handle(t, unchecked, "key")
	h.must(t, "INSERT INTO lines VALUES (7)")
	require.NoError(t, h.answers(201))
}

const endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "

// A statement whose context ends undoes the transaction, also one that reads.
func TestInterruptedStatement(t *testing.T) {
	t.Parallel()
	for name, statement := range map[string]string{
		"write": "INSERT INTO orders " + endless + "SELECT i + 10, '' FROM n LIMIT 1000000000",
		"read":  endless + "SELECT count(*) FROM n",
	} {
		for _, status := range []int{201, 409} {
			t.Run(name+" "+strconv.Itoa(status), func(t *testing.T) {
				t.Parallel()
				store, other := openOrders(t, sqlitestore.Options{})
				h := handle(t, store, "key")
				insert(t, h)
				for limit := 20 * time.Millisecond; limit < time.Minute; limit *= 2 {
					ctx, cancel := context.WithTimeout(h.ctx, limit)
					_, err := h.tx.ExecContext(ctx, statement)
					cancel()
					require.ErrorIs(t, err, context.DeadlineExceeded)
					if h.does("SELECT 1") != nil {
						break // else its time was over before it had begun
					}
				}
				require.Error(t, h.does("INSERT INTO orders VALUES (2, '')"))
				require.ErrorIs(t, h.answers(status), idempotency.ErrRolledBack)
				require.Empty(t, orders(t, other))
				requireFree(t, store, "key")
				requireWorks(t, store, other)
			})
		}
	}
}

// A handler that returns while somebody uses its transaction has it undone. Others go on at once.
func TestTransactionInUse(t *testing.T) {
	t.Parallel()
	for name, use := range map[string]func(t *testing.T, h *handler){
		"rows": func(t *testing.T, h *handler) {
			rows, err := h.tx.QueryContext(h.ctx, endless+"SELECT i FROM n")
			require.NoError(t, err)
			require.True(t, rows.Next())
			t.Cleanup(func() { require.NoError(t, rows.Close()) })
		},
		"reads": func(t *testing.T, h *handler) {
			leaveBehind(t, h, endless+"SELECT count(*) FROM n WHERE reached(?)")
		},
		"writes": func(t *testing.T, h *handler) {
			leaveBehind(t, h, "INSERT INTO orders "+endless+"SELECT i + 10, '' FROM n WHERE reached(?)")
		},
	} {
		for how, settle := range map[string]func(h *handler) error{
			"complete": func(h *handler) error { return h.answers(201) },
			"release":  func(h *handler) error { return h.Release(context.Background(), time.Hour) },
		} {
			t.Run(name+" "+how, func(t *testing.T) {
				t.Parallel()
				store, other := openOrders(t, sqlitestore.Options{})
				h := handle(t, store, "key")
				insert(t, h)
				use(t, h)
				if err := settle(h); how == "complete" {
					require.ErrorIs(t, err, idempotency.ErrRolledBack)
				} else {
					require.NoError(t, err)
				}
				require.ErrorIs(t, h.does("INSERT INTO orders VALUES (5, '')"), sql.ErrTxDone)
				requireFree(t, store, "key")
				requireWorks(t, store, other)
				require.Equal(t, "999", orders(t, other))
			})
		}
	}
}

// leaveBehind runs a statement without end in the background.
func leaveBehind(t *testing.T, h *handler, statement string) {
	t.Helper()
	runs, failed := make(chan struct{}), make(chan error, 1)
	name := t.Name()
	reached.Store(name, sync.OnceFunc(func() { close(runs) }))
	go func() {
		_, err := h.tx.ExecContext(context.Background(), statement, name)
		failed <- err
	}()
	<-runs
	t.Cleanup(func() { require.Error(t, <-failed) })
}

// reached has a function by name, for the function of that name in SQL to call.
var reached sync.Map

func init() {
	sqlite.MustRegisterScalarFunction("reached", 1,
		func(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) {
			if call, ok := reached.Load(args[0]); ok {
				call.(func())()
			}
			return int64(1), nil
		})
}

// A goroutine that is left behind while it waits for its turn gets none, nor does one that has not even asked.
func TestLeftBehindWithoutATurn(t *testing.T) {
	t.Parallel()
	for name, isLate := range map[string]bool{"waits": false, "late": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, other := openOrders(t, sqlitestore.Options{})
			first, second := handle(t, store, "first"), handle(t, store, "second")
			insert(t, first)
			begins, proceed, failed := make(chan struct{}), make(chan struct{}), make(chan error)
			ctx, cancel := context.WithCancel(second.ctx)
			defer cancel()
			second.ctx = observed{ctx, sync.OnceFunc(func() {
				close(begins)
				if isLate {
					<-proceed
				}
			})}
			go func() { failed <- second.does("INSERT INTO orders VALUES (2, '')") }()
			<-begins
			require.ErrorIs(t, second.answers(201), idempotency.ErrRolledBack)
			require.NoError(t, first.answers(201))
			close(proceed)
			require.Error(t, <-failed)
			require.Equal(t, "1", orders(t, other))
			requireFree(t, store, "second")
			requireWorks(t, store, other)
		})
	}
}

// observed is a context that is told when another one is derived from it, which is done when a statement has been
// admitted.
type observed struct {
	context.Context
	isDerived func()
}

func (c observed) Value(key any) any {
	c.isDerived()
	return c.Context.Value(key)
}
