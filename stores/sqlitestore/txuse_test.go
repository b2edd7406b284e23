package sqlitestore_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"modernc.org/sqlite"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/step"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

// shop is a store in a file that also has a table of orders. otherConn is the connection of another program to the
// file.
type shop struct {
	path      string
	store     *sqlitestore.Store
	otherConn *sql.Conn
}

func openShop(t testing.TB, opts sqlitestore.Options) *shop {
	t.Helper()
	s := &shop{path: newPath(t)}
	s.otherConn = openConn(t, s.path)
	execStatement(t, s.otherConn, "PRAGMA journal_mode = WAL")
	execStatement(t, s.otherConn, "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
	s.store = openStore(t, s.path, opts)
	return s
}

// readOrders returns the ids of the committed orders.
func (s *shop) readOrders(t testing.TB) string {
	t.Helper()
	return queryValue[string](t, s.otherConn, "SELECT coalesce(group_concat(id, ' ' ORDER BY id), '') FROM orders")
}

// runOperation runs work as an operation with the given key.
func runOperation(store idempotency.Store, key string, work func(ctx context.Context) error) error {
	runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{
		StoreTimeout: 5 * time.Second, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	_, _, err = runner.Do(context.Background(), keyOf(key), nil, func(ctx context.Context) (idempotency.Response, error) {
		return answer, work(ctx)
	})
	return errors.Join(err, runner.Shutdown(context.Background()))
}

// runStep runs an operation with one step. The step inserts order 1, and then calls also. runStep returns the error
// of the step.
func (s *shop) runStep(t testing.TB, key string, also func(tx *sql.Tx) error) (err error) {
	t.Helper()
	err = runOperation(s.store, key, func(ctx context.Context) error {
		_, err := sqlitestore.DoTx(ctx, "book", func(tx *sql.Tx) (int, error) {
			if _, err := tx.Exec("INSERT INTO orders VALUES (1, 'tea')"); err != nil {
				return 0, err
			}
			return 1, also(tx)
		})
		return err
	})
	return err
}

// requireUsable requires that a step can write a row and finds no temporary objects, so earlier steps have left
// nothing on the connection of the store.
func (s *shop) requireUsable(t testing.TB) {
	t.Helper()
	require.NoError(t, runOperation(s.store, "afterwards "+t.Name(), func(ctx context.Context) error {
		_, err := sqlitestore.DoTx(ctx, "book", func(tx *sql.Tx) (int, error) {
			var left int
			if err := tx.QueryRow("SELECT count(*) FROM temp.sqlite_master").Scan(&left); err != nil || left > 0 {
				return 0, fmt.Errorf("%d temporary objects are left: %w", left, err)
			}
			_, err := tx.Exec("INSERT INTO orders (id) VALUES (1000)")
			return 1, err
		})
		return err
	}))
	require.Contains(t, s.readOrders(t), "1000")
}

func execAll(statements ...string) func(*sql.Tx) error {
	return func(tx *sql.Tx) error {
		for _, statement := range statements {
			if _, err := tx.Exec(statement); err != nil {
				return fmt.Errorf("%s: %w", statement, err)
			}
		}
		return nil
	}
}

// execIgnoringErrors returns a function that runs the statements and ignores their errors.
func execIgnoringErrors(statements ...string) func(*sql.Tx) error {
	return func(tx *sql.Tx) error {
		for _, statement := range statements {
			_, _ = tx.Exec(statement)
		}
		return nil
	}
}

// Only the store commits, whatever a step executes. A step can undo a part of its changes with a savepoint.
func TestStepsAndTheirTransactions(t *testing.T) {
	t.Parallel()
	errOfStep := errors.New("the step has failed")
	for name, test := range map[string]struct {
		statements  func(*sql.Tx) error
		wantOrders  string
		wantError   error // nil: the step succeeds
		wantMessage string
	}{
		"nothing else": {execAll(), "1", nil, ""},
		"an error":     {func(*sql.Tx) error { return errOfStep }, "", errOfStep, ""},
		"Commit":       {func(tx *sql.Tx) error { _ = tx.Commit(); return nil }, "", step.ErrMisuse, "only DoTx commits"},
		"Rollback":     {func(tx *sql.Tx) error { return tx.Rollback() }, "", step.ErrMisuse, "rolled back"},
		"COMMIT":       {execAll("COMMIT"), "", nil, "not authorized"},
		"COMMIT, ignored": {execIgnoringErrors(
			"COMMIT", "END", "ROLLBACK", "BEGIN", "VACUUM", ";;-- a comment\n cOmMiT;",
		), "1", nil, ""},
		"COMMIT after another": {execIgnoringErrors(
			"INSERT INTO orders VALUES (2, ''); COMMIT; INSERT INTO orders VALUES (3, '')",
		), "1 2", nil, ""},
		"SQLite rolls back": {execIgnoringErrors(
			"INSERT OR ROLLBACK INTO orders VALUES (1, '')", "INSERT INTO orders VALUES (2, '')", "SAVEPOINT a",
		), "", step.ErrMisuse, "SQLite has rolled the transaction back"},
		"a savepoint": {execAll("SAVEPOINT part", "INSERT INTO orders VALUES (2, '')", "ROLLBACK TRANSACTION TO SAVEPOINT part",
			"INSERT INTO orders VALUES (3, '')", "RELEASE part"), "1 3", nil, ""},
		"a constraint, ignored": {execIgnoringErrors(
			"INSERT INTO orders VALUES (1, '')", "INSERT INTO orders VALUES (2, '')",
		), "1 2", nil, ""},
		"a table": {execAll("CREATE TABLE more (id INTEGER PRIMARY KEY)", "INSERT INTO more VALUES (7)",
			"INSERT INTO orders SELECT id, '' FROM more"), "1 7", nil, ""},
		"a prepared savepoint": {func(tx *sql.Tx) error {
			savepoint, err := tx.Prepare("SAVEPOINT part")
			if err != nil {
				return err
			}
			insert, err := tx.Prepare("INSERT INTO orders VALUES (2, '')")
			if err != nil {
				return err
			}
			_ = execIgnoringErrors("INSERT OR ROLLBACK INTO orders VALUES (1, '')")(tx)
			_, _ = savepoint.Exec() // begins a new transaction
			_, _ = insert.Exec()
			return nil
		}, "", step.ErrMisuse, "SQLite has rolled the transaction back"},
		"a temporary table": {execAll("CREATE TEMP TABLE items (id INTEGER)", "INSERT INTO temp.items VALUES (4)",
			"CREATE TEMP TRIGGER double AFTER INSERT ON orders BEGIN INSERT INTO items VALUES (NEW.id); END",
			"INSERT INTO orders SELECT id, '' FROM items"), "1 4", nil, ""},
		"a temporary table that shadows the records": {execAll(
			"CREATE TEMP TABLE idempotency_records AS SELECT * FROM main.idempotency_records",
		), "1", nil, ""},
		"open rows": {func(tx *sql.Tx) error {
			rows, err := tx.Query("SELECT 1 UNION SELECT 2")
			if err == nil {
				rows.Next()
			}
			return err
		}, "1", nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openShop(t, sqlitestore.Options{})
			err := s.runStep(t, "key", test.statements)
			require.Equal(t, test.wantOrders, s.readOrders(t))
			switch {
			case test.wantError != nil:
				require.ErrorIs(t, err, test.wantError)
				fallthrough
			case test.wantMessage != "":
				require.ErrorContains(t, err, test.wantMessage)
			default:
				require.NoError(t, err)
			}
			if err != nil { // a later attempt runs the step again
				require.NoError(t, s.runStep(t, "key", execAll()))
				require.Equal(t, "1", s.readOrders(t))
			}
			s.requireUsable(t)
		})
	}
}

// A panic and Goexit roll the rows back, and the connection of the store serves the next step.
func TestStepsThatDoNotReturn(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*sql.Tx) error{
		"panic": func(*sql.Tx) error { panic("boom") }, "Goexit": func(*sql.Tx) error { runtime.Goexit(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openShop(t, sqlitestore.Options{})
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				defer func() { _ = recover() }()
				_ = s.runStep(t, "key", end)
			}()
			<-gone
			require.Empty(t, s.readOrders(t))
			require.NoError(t, s.runStep(t, "key", execAll()))
			s.requireUsable(t)
		})
	}
}

// A step cannot change settings that outlast its transaction. A step can change settings that are a part of the
// transaction or end with it.
func TestSettingsInSteps(t *testing.T) {
	t.Parallel()
	s := openShop(t, sqlitestore.Options{Parameters: "_pragma=recursive_triggers(1)"})
	require.NoError(t, s.runStep(t, "key", func(tx *sql.Tx) error {
		for _, statement := range []string{
			"PRAGMA foreign_keys = 1", "PRAGMA main.query_only(1)", "pragma Recursive_Triggers = on",
			"PRAGMA journal_mode = DELETE", "PRAGMA synchronous = OFF", "SELECT 1; PRAGMA case_sensitive_like = 1",
			"ATTACH ':memory:' AS more", "DETACH main", "PRAGMA wal_checkpoint(TRUNCATE)", "VACUUM INTO 'copy'",
		} {
			_, err := tx.Exec(statement)
			require.Error(t, err, statement)
		}
		_, _ = tx.Exec("PRAGMA recursive_triggers = ''") // only its effect distinguishes this statement from a read
		return execAll("PRAGMA table_info(orders)", "SELECT name FROM pragma_index_list('orders')", "PRAGMA User_Version = 7",
			"PRAGMA foreign_keys", "PRAGMA defer_foreign_keys = 1")(tx)
	}))
	require.Equal(t, 7, queryValue[int](t, s.otherConn, "PRAGMA user_version"))
	require.NoError(t, runOperation(s.store, "next", func(ctx context.Context) error {
		_, err := sqlitestore.DoTx(ctx, "look", func(tx *sql.Tx) (int, error) {
			var deferred, recursive int
			assert.NoError(t, tx.QueryRow("PRAGMA defer_foreign_keys").Scan(&deferred))
			assert.NoError(t, tx.QueryRow("PRAGMA recursive_triggers").Scan(&recursive))
			assert.Zero(t, deferred)
			assert.Equal(t, 1, recursive)
			return 0, nil
		})
		return err
	}))
}

// A step may read the table of records, but only the store writes to this table.
func TestStepsCannotWriteRecords(t *testing.T) {
	t.Parallel()
	s := openShop(t, sqlitestore.Options{})
	completeKey(t, s.store, "before")
	require.NoError(t, s.runStep(t, "key", func(tx *sql.Tx) error {
		for _, statement := range []string{
			"INSERT INTO idempotency_records SELECT * FROM idempotency_records",
			"UPDATE Idempotency_Records SET expires = 0",
			"DELETE FROM main.idempotency_records",
			"DROP TABLE idempotency_records",
			"ALTER TABLE idempotency_records RENAME TO mine",
			"CREATE INDEX mine ON idempotency_records (expires)",
			"DROP INDEX idempotency_records_expires",
			"CREATE TRIGGER mine AFTER INSERT ON idempotency_records BEGIN DELETE FROM idempotency_records; END",
			"CREATE TEMP TRIGGER mine AFTER UPDATE ON idempotency_records BEGIN DELETE FROM idempotency_records; END",
		} {
			_, err := tx.Exec(statement)
			require.ErrorContains(t, err, "not authorized", statement)
		}
		_, err := tx.Exec("INSERT INTO orders SELECT 2, count(*) FROM idempotency_records")
		return err
	}))
	require.Equal(t, "1 2", s.readOrders(t))
	requireReplay(t, s.store, "before")
	requireReplay(t, s.store, "key")
}

// If a trigger of another program keeps the result of a step out of the table of records, the rows of the step are
// not committed.
func TestTriggerRejectsTheResult(t *testing.T) {
	t.Parallel()
	s := openShop(t, sqlitestore.Options{})
	execStatement(t, s.otherConn, `CREATE TRIGGER none BEFORE UPDATE OF steps ON idempotency_records WHEN NEW.steps IS NOT NULL
		BEGIN SELECT RAISE(IGNORE); END`)
	require.ErrorContains(t, s.runStep(t, "key", execAll()), "changed concurrently")
	require.Empty(t, s.readOrders(t))
	execStatement(t, s.otherConn, "DROP TRIGGER none")
	s.requireUsable(t)
}

// If a constraint forbids the commit, the step returns the driver's error, and nothing is committed.
func TestDeferredForeignKey(t *testing.T) {
	t.Parallel()
	s := openShop(t, sqlitestore.Options{Parameters: "_pragma=foreign_keys(1)"})
	execStatement(t, s.otherConn, "CREATE TABLE lines (of INTEGER REFERENCES orders DEFERRABLE INITIALLY DEFERRED)")
	err := s.runStep(t, "key", execAll("INSERT INTO lines VALUES (7)"))
	refusal, ok := errors.AsType[*sqlite.Error](err)
	require.True(t, ok, err)
	require.ErrorContains(t, refusal, "FOREIGN KEY")
	require.Empty(t, s.readOrders(t))
	require.NoError(t, s.runStep(t, "key", execAll("INSERT INTO lines VALUES (1)")))
	s.requireUsable(t)
}

// A goroutine that still runs when its step has ended can no longer use the transaction, and delays no other step.
func TestStepsThatLeaveAStatementRunning(t *testing.T) {
	t.Parallel()
	const endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
	for name, statement := range map[string]string{
		"reads":  endless + "SELECT count(*) FROM n WHERE reached(?)",
		"writes": "INSERT INTO orders " + endless + "SELECT i + 10, '' FROM n WHERE reached(?)",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openShop(t, sqlitestore.Options{})
			runs, failed := make(chan struct{}), make(chan error, 1)
			reachedCallbacks.Store(t.Name(), sync.OnceFunc(func() { close(runs) }))
			var left *sql.Tx
			err := s.runStep(t, "key", func(tx *sql.Tx) error {
				left = tx
				go func() {
					_, err := tx.ExecContext(context.Background(), statement, t.Name())
					failed <- err
				}()
				<-runs
				return nil
			})
			require.ErrorIs(t, err, step.ErrMisuse)
			require.Error(t, <-failed)
			_, err = left.Exec("INSERT INTO orders VALUES (5, '')")
			require.ErrorIs(t, err, sql.ErrTxDone)
			require.Empty(t, s.readOrders(t))
			s.requireUsable(t)
		})
	}
}

// reachedCallbacks has a callback for each test name. The SQL function reached(name) calls the callback.
var reachedCallbacks sync.Map

func init() {
	sqlite.MustRegisterScalarFunction("reached", 1,
		func(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) {
			if call, ok := reachedCallbacks.Load(args[0]); ok {
				call.(func())()
			}
			return int64(1), nil
		})
}

// Libraries over database/sql find what they need: prepared statements, named arguments, column types and times.
func TestLibraries(t *testing.T) {
	t.Parallel()
	s := openShop(t, sqlitestore.Options{Parameters: "_time_format=sqlite"})
	execStatement(t, s.otherConn, "CREATE TABLE payments "+
		"(id INTEGER PRIMARY KEY, rate REAL, note TEXT, proof BLOB, settled BOOLEAN, made DATETIME)")
	made := time.Date(2026, 11, 22, 21, 0, 0, 5e8, time.UTC)
	require.NoError(t, s.runStep(t, "key", func(tx *sql.Tx) error {
		insert, err := tx.Prepare("INSERT INTO payments VALUES (?, ?, ?, ?, ?, ?) RETURNING id")
		require.NoError(t, err)
		for i := range 3 {
			var id int64
			require.NoError(t, insert.QueryRow(nil, 1.5, sql.NullString{}, []byte{0, byte(i)}, i == 0, made).Scan(&id))
			require.EqualValues(t, i+1, id)
		}
		result, err := tx.Exec("UPDATE payments SET note = :note WHERE id < :id", sql.Named("id", 3), sql.Named("note", "tea"))
		require.NoError(t, err)
		changed, err := result.RowsAffected()
		require.NoError(t, err)
		require.EqualValues(t, 2, changed)
		rows, err := tx.Query("SELECT id, rate, note, proof, settled, made FROM payments ORDER BY id")
		require.NoError(t, err)
		defer rows.Close()
		types, err := rows.ColumnTypes()
		require.NoError(t, err)
		require.Equal(t, "DATETIME", types[5].DatabaseTypeName())
		for i := 1; rows.Next(); i++ {
			var id int
			var rate float64
			var note sql.NullString
			var proof []byte
			var settled bool
			var at time.Time
			require.NoError(t, rows.Scan(&id, &rate, &note, &proof, &settled, &at))
			require.Equal(t, i < 3, note.Valid)
			require.Equal(t, []byte{0, byte(i - 1)}, proof)
			require.True(t, at.Equal(made))
			var n int // a second query, while the rows are open
			require.NoError(t, tx.QueryRow("SELECT count(*) FROM payments").Scan(&n))
			require.Equal(t, 3, n)
		}
		require.ErrorIs(t, tx.QueryRow("SELECT 1 WHERE false").Scan(new(int)), sql.ErrNoRows)
		return rows.Err()
	}))
	require.Equal(t, 3, queryValue[int](t, s.otherConn, "SELECT count(*) FROM payments"))
	require.Equal(t, "2026-11-22 21:00:00.5+00:00", queryValue[string](t, s.otherConn, "SELECT made || '' FROM payments"))
}

// While another process writes, a step waits until its timeout, and then reports that the store is busy.
func TestStepWaitsForItsTurn(t *testing.T) {
	t.Parallel()
	s := openShop(t, sqlitestore.Options{})
	_, claim := claimKey(t, s.store, "key")
	execStatement(t, s.otherConn, "BEGIN IMMEDIATE")
	var tx *sql.Tx
	ran := false
	_, err := claim.(idempotency.TxCheckpointer).CheckpointTx(t.Context(), &idempotency.TxStep{
		Name: "book", Var: &tx, Timeout: 100 * time.Millisecond, Run: func() ([]byte, error) { ran = true; return nil, nil },
	})
	require.ErrorIs(t, err, idempotency.ErrStoreBusy)
	require.False(t, ran)
	execStatement(t, s.otherConn, "COMMIT")
	require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Hour}))
	s.requireUsable(t)
}

// newBookStep returns a step for CheckpointTx. tx is the variable that gets the transaction.
func newBookStep(tx **sql.Tx, timeout time.Duration, run func() error) *idempotency.TxStep {
	return &idempotency.TxStep{Name: "book", Var: tx, Timeout: timeout, Run: func() ([]byte, error) { return []byte("1"), run() }}
}

// While the function of a step runs, other calls that write find the store busy, but replays are answered, and the
// lease of the step's own claim can be renewed. Close waits for the step.
func TestOthersWhileAStepRuns(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	other := openConn(t, path)
	execStatement(t, other, "CREATE TABLE orders (id INTEGER PRIMARY KEY)")
	store, err := sqlitestore.Open(t.Context(), path, sqlitestore.Options{})
	require.NoError(t, err)
	completeKey(t, store, "completed")
	_, own := claimKey(t, store, "own")
	_, another := claimKey(t, store, "another")
	closed := make(chan error, 1)
	var tx *sql.Tx
	_, err = own.(idempotency.TxCheckpointer).CheckpointTx(t.Context(), newBookStep(&tx, time.Minute, func() error {
		requireReplay(t, store, "completed")
		require.NoError(t, own.Extend(t.Context(), time.Minute))
		for name, call := range map[string]func(ctx context.Context) error{
			"claim":    func(ctx context.Context) error { _, _, err := store.Begin(ctx, keyOf("new"), request); return err },
			"renewal":  func(ctx context.Context) error { return another.Extend(ctx, time.Minute) },
			"complete": func(ctx context.Context) error { return another.Complete(ctx, answer, time.Hour) },
			"step": func(ctx context.Context) error {
				var tx *sql.Tx
				_, err := another.(idempotency.TxCheckpointer).CheckpointTx(ctx, newBookStep(&tx, time.Minute, func() error { return nil }))
				return err
			},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			require.ErrorIs(t, call(ctx), idempotency.ErrStoreBusy, name)
			cancel()
		}
		go func() { closed <- store.Close() }()
		require.Eventually(t, func() bool {
			_, _, err := store.Begin(t.Context(), keyOf("completed"), request)
			return errors.Is(err, sqlitestore.ErrClosed)
		}, time.Minute, time.Millisecond)
		require.Empty(t, closed)
		_, err := tx.Exec("INSERT INTO orders VALUES (1)")
		return err
	}))
	require.NoError(t, err)
	require.NoError(t, <-closed)
	require.Equal(t, 1, queryValue[int](t, other, "SELECT count(*) FROM orders"))
}

// If the disk does not answer a commit in time, the step is in doubt. The next step begins only after the commit has
// ended, so the result of the commit is known by then.
func TestDiskDoesNotAnswerTheCommitOfAStep(t *testing.T) {
	t.Parallel()
	for name, refusal := range map[string]int32{"committed": 0, "refused": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openShop(t, sqlitestore.Options{})
			_, claim := claimKey(t, s.store, "key")
			own := claim.(idempotency.TxCheckpointer)
			proceed, commits := make(chan struct{}), 0
			answer := sync.OnceFunc(func() { close(proceed) })
			t.Cleanup(answer) // for Close
			require.NoError(t, s.store.OnCommit(func() int32 {
				if commits++; commits > 1 {
					return 0
				}
				<-proceed
				return refusal
			}))
			var tx *sql.Tx
			insert := func() error { _, err := tx.Exec("INSERT INTO orders VALUES (1, 'tea')"); return err }
			_, err := own.CheckpointTx(t.Context(), newBookStep(&tx, time.Second, insert))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err = own.Checkpoints(ctx)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			answer()
			found, err := own.Checkpoints(t.Context())
			require.NoError(t, err)
			require.Equal(t, refusal == 0, string(found["book"]) == "1")
			stored, err := own.CheckpointTx(t.Context(), newBookStep(&tx, time.Minute, func() error {
				if refusal == 0 {
					return nil // the first result counts
				}
				return insert()
			}))
			require.NoError(t, err)
			require.Equal(t, "1", string(stored))
			require.Equal(t, "1", s.readOrders(t))
			require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Hour}))
			s.requireUsable(t)
		})
	}
}

// If the file is replaced while a step runs, the rows are lost with the file, so the step fails.
func TestFileOfAStepIsReplaced(t *testing.T) {
	t.Parallel()
	s := openShop(t, sqlitestore.Options{})
	err := s.runStep(t, "key", func(*sql.Tx) error { return os.Remove(s.path + "-wal") })
	require.ErrorIs(t, err, sqlitestore.ErrReplaced)
	_, _, err = s.store.Begin(t.Context(), keyOf("next"), request)
	require.ErrorIs(t, err, sqlitestore.ErrReplaced)
}

// Above MaxBytes, steps in transactions are refused as other steps are, both in transactions of the store and of the
// handler.
func TestMaxBytesOfSteps(t *testing.T) {
	t.Parallel()
	s := openShop(t, sqlitestore.Options{MaxBytes: 1 << 20})
	for i := 0; ; i++ {
		_, claim, err := s.store.Begin(t.Context(), keyOf(strconv.Itoa(i)), request)
		if errors.Is(err, idempotency.ErrStoreFull) {
			break
		}
		require.NoError(t, err)
		require.NoError(t, claim.Complete(t.Context(), idempotency.Response{Body: make([]byte, 10_000)}, time.Hour))
	}
	for i := range 7 { // makes room for the claim of an operation, but not for its step
		execStatement(t, s.otherConn, "DELETE FROM idempotency_records WHERE key = ?", strconv.Itoa(i))
	}
	require.ErrorIs(t, runOperation(s.store, "key", func(ctx context.Context) error {
		_, err := sqlitestore.DoTx(ctx, "book", func(tx *sql.Tx) (string, error) {
			_, err := tx.Exec("INSERT INTO orders VALUES (1, ?)", make([]byte, 200_000))
			return string(make([]byte, 4000)), err
		})
		return err
	}), idempotency.ErrStoreFull)
	require.Empty(t, s.readOrders(t))
	require.ErrorIs(t, runOperation(s.store, "key", func(ctx context.Context) error {
		tx, err := s.otherConn.BeginTx(ctx, nil)
		require.NoError(t, err)
		defer tx.Rollback()
		_, err = tx.Exec("INSERT INTO orders VALUES (1, ?)", make([]byte, 200_000))
		require.NoError(t, err)
		_, err = sqlitestore.DoInTx(ctx, tx, "book", func() (string, error) { return string(make([]byte, 4000)), nil })
		return err
	}), idempotency.ErrStoreFull)
}

// Two stores on one file act as two processes do. Their steps write each row once.
func TestStepsOfTwoStores(t *testing.T) {
	t.Parallel()
	s := openShop(t, sqlitestore.Options{})
	stores := []*sqlitestore.Store{s.store, openStore(t, s.path, sqlitestore.Options{})}
	const keys = 20
	var all sync.WaitGroup
	for i := range 2 * keys {
		all.Go(func() {
			key := strconv.Itoa(i / 2)
			for until := time.Now().Add(30 * time.Second); time.Now().Before(until); {
				err := runOperation(stores[i%2], key, func(ctx context.Context) error {
					_, err := sqlitestore.DoTx(ctx, "book", func(tx *sql.Tx) (int, error) {
						_, err := tx.Exec("INSERT INTO orders VALUES (?, '')", i/2)
						return i / 2, err
					})
					return err
				})
				if err == nil {
					return
				}
				assert.NotErrorIs(t, err, step.ErrMisuse)
			}
			t.Error("not done within 30 seconds: ", key)
		})
	}
	all.Wait()
	require.Equal(t, keys, queryValue[int](t, s.otherConn, "SELECT count(*) FROM orders"))
}

// Steps that wait for a slow provider hold no lock: other keys run, and replays are answered.
func TestFileWhileProvidersAreSlow(t *testing.T) {
	t.Parallel()
	s := openShop(t, sqlitestore.Options{})
	completeKey(t, s.store, "replayed")
	const keys = 24
	calls, answered := make(chan struct{}, keys), make(chan struct{})
	var all sync.WaitGroup
	for i := range keys {
		all.Go(func() {
			assert.NoError(t, runOperation(s.store, strconv.Itoa(i), func(ctx context.Context) error {
				_, err := step.Do(ctx, "charge", func(context.Context) (string, error) {
					calls <- struct{}{}
					<-answered
					return "receipt", nil
				})
				if err != nil {
					return err
				}
				_, err = sqlitestore.DoTx(ctx, "book", func(tx *sql.Tx) (int, error) {
					_, err := tx.Exec("INSERT INTO orders VALUES (?, '')", i)
					return i, err
				})
				return err
			}))
		})
	}
	for range keys {
		<-calls
	}
	requireReplay(t, s.store, "replayed")
	completeKey(t, s.store, "another")
	close(answered)
	all.Wait()
	require.Equal(t, keys, queryValue[int](t, s.otherConn, "SELECT count(*) FROM orders"))
}
