package mysqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/step"
	"github.com/idempotency-go/idempotency/stores/mysqlstore"
)

// A step in a transaction keeps its rules with all settings of the driver and of the session.
func TestTxStepsConform(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string][]string{
		"default": nil,
		"found rows, interpolated, serializable, another charset": {"clientFoundRows=true", "interpolateParams=true",
			"tx_isolation=%27SERIALIZABLE%27", "charset=latin1"},
		"repeatable read, snapshot isolation": {"tx_isolation=%27REPEATABLE-READ%27", "innodb_snapshot_isolation=1"},
		"read committed, snapshot isolation, local time, ANSI": {"tx_isolation=%27READ-COMMITTED%27",
			"innodb_snapshot_isolation=1", "multiStatements=true", "parseTime=true", "loc=Local",
			"time_zone=%27-03%3A30%27", "sql_mode=%27ANSI,TRADITIONAL,SIMULTANEOUS_ASSIGNMENT,NO_BACKSLASH_ESCAPES%27"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := openPool(t, sharedServer(t).DSN(), settings...)
			store, table := newStore(t, db)
			rows := table + "_rows"
			execStatement(t, db, "CREATE TABLE "+rows+" (name VARCHAR(50), KEY (name)) ENGINE = InnoDB")
			idempotencytest.RunTxSteps(t, func(*testing.T) idempotency.Store { return store }, newTransactions(db, rows))
		})
	}
}

func newTransactions(db *sql.DB, rows string) idempotencytest.Transactions[*sql.Tx] {
	return idempotencytest.Transactions[*sql.Tx]{
		Write: func(ctx context.Context, tx *sql.Tx, name string) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO "+rows+" (name) VALUES (?)", name)
			return err
		},
		Count: func(ctx context.Context, name string) (n int, err error) {
			err = db.QueryRowContext(ctx, "SELECT COUNT(*) FROM "+rows+" WHERE name = ?", name).Scan(&n)
			return n, err
		},
		Begin:    func(ctx context.Context) (*sql.Tx, error) { return db.BeginTx(ctx, nil) },
		Commit:   func(_ context.Context, tx *sql.Tx) error { return tx.Commit() },
		Rollback: func(_ context.Context, tx *sql.Tx) error { return tx.Rollback() },
	}
}

// bookings is a store with a table for the rows that steps insert.
type bookings struct {
	db        *sql.DB
	store     *mysqlstore.Store
	rowsTable string
}

// newBookings returns a store that reaches the shared server through addr, with its own table.
func newBookings(t *testing.T, addr string) *bookings {
	t.Helper()
	direct := openPool(t, sharedServer(t).DSN())
	_, table := newStore(t, direct)
	b := &bookings{db: openPool(t, sharedServer(t).DSNAt(addr)), rowsTable: table + "_rows"}
	b.store = mysqlstore.New(b.db, mysqlstore.Options{Table: table})
	execStatement(t, direct, "CREATE TABLE "+b.rowsTable+" (name VARCHAR(50), id INT AUTO_INCREMENT PRIMARY KEY) ENGINE = InnoDB")
	return b
}

// runOperation runs work as an operation with the given key.
func (b *bookings) runOperation(key string, work func(context.Context) error) error {
	runner, err := idempotency.NewRunner(b.store, idempotency.RunnerOptions{
		StoreTimeout: 2 * time.Second, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	_, _, err = runner.Do(context.Background(), keyOf(key), nil, func(ctx context.Context) (idempotency.Response, error) {
		return idempotency.Response{Status: 201}, work(ctx)
	})
	return errors.Join(err, runner.Shutdown(context.Background()))
}

// bookRow inserts a row in a step, and then calls also.
func (b *bookings) bookRow(ctx context.Context, name string, also func(tx *sql.Tx) error) (string, error) {
	return mysqlstore.DoTx(ctx, "book", func(tx *sql.Tx) (string, error) {
		if _, err := tx.ExecContext(ctx, "INSERT INTO "+b.rowsTable+" (name) VALUES (?)", name); err != nil {
			return "", err
		}
		return name, also(tx)
	})
}

func (b *bookings) requireRows(t *testing.T, want int, name string) {
	t.Helper()
	direct := openPool(t, sharedServer(t).DSN())
	require.Equal(t, want, queryValue[int](t, direct, "SELECT COUNT(*) FROM "+b.rowsTable+" WHERE name = ?", name))
}

func doNothing(*sql.Tx) error { return nil }

// The store notices if a step ends its transaction. If a step has committed by itself, the store reports this
// commit, and the step does not run again.
func TestTxStepMisuse(t *testing.T) {
	t.Parallel()
	exec := func(statements ...string) func(*sql.Tx) error {
		return func(tx *sql.Tx) error { return execAll(tx, statements...) }
	}
	for name, test := range map[string]struct {
		misuse        func(*sql.Tx) error
		wantError     error
		wantCommitted bool
	}{
		"Commit":               {func(tx *sql.Tx) error { _ = tx.Commit(); return nil }, step.ErrMisuse, false},
		"Commit and its error": {func(tx *sql.Tx) error { return tx.Commit() }, step.ErrMisuse, false},
		"Rollback":             {func(tx *sql.Tx) error { return tx.Rollback() }, step.ErrMisuse, false},
		"COMMIT":               {exec("COMMIT"), step.ErrResult, true},
		"COMMIT, BEGIN":        {exec("COMMIT", "BEGIN"), step.ErrResult, true},
		"COMMIT AND CHAIN":     {exec("COMMIT AND CHAIN"), step.ErrResult, true},
		"a table":              {nil, step.ErrResult, true},
		"COMMIT, and an error": {func(tx *sql.Tx) error { return errors.Join(exec("COMMIT")(tx), errOfStep) }, step.ErrResult,
			true},
		"SET autocommit":         {exec("SET autocommit = 1"), step.ErrResult, true},
		"LOCK TABLES":            {exec("LOCK TABLES mysql.user READ"), step.ErrResult, true},
		"ROLLBACK":               {exec("ROLLBACK"), step.ErrMisuse, false},
		"ROLLBACK, BEGIN":        {exec("ROLLBACK", "BEGIN"), step.ErrMisuse, false},
		"an error":               {func(*sql.Tx) error { return errOfStep }, errOfStep, false},
		"a statement that fails": {exec("SELECT * FROM nowhere"), nil, false},
		"an open cursor": {func(tx *sql.Tx) error {
			_, err := tx.Query("SELECT SEQ FROM seq_1_to_100000") //nolint:rowserrcheck // left open
			return err
		}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBookings(t, sharedServer(t).Addr())
			b.db.SetMaxOpenConns(1) // a connection that is not given back would be missed
			also := func(tx *sql.Tx) error { return test.misuse(tx) }
			if name == "a table" {
				also = exec("CREATE TABLE " + b.rowsTable + "_x (y INT)")
			}
			var err error
			require.NoError(t, b.runOperation("key", func(ctx context.Context) error {
				_, err = b.bookRow(ctx, "first", also)
				return nil
			}))
			if name == "an open cursor" {
				require.NoError(t, err)
				b.requireRows(t, 1, "first")
				return
			}
			require.Error(t, err)
			if test.wantError != nil {
				require.ErrorIs(t, err, test.wantError)
			}
			rows := 0
			if test.wantCommitted {
				rows = 1
			}
			b.requireRows(t, rows, "first")

			failed := errors.New("so that there is another attempt")
			require.ErrorIs(t, b.runOperation("again", func(ctx context.Context) error {
				_, err = b.bookRow(ctx, "second", also)
				return failed
			}), failed)
			require.NoError(t, b.runOperation("again", func(ctx context.Context) error {
				_, err = b.bookRow(ctx, "second", doNothing)
				return nil
			}))
			if test.wantCommitted {
				require.ErrorIs(t, err, step.ErrResult, "the step does not run again")
			} else {
				require.NoError(t, err)
			}
			b.requireRows(t, 1, "second")
			requireCleanConns(t, b)
		})
	}
}

// If a message of a step is lost, the rows and the result still become permanent together, and a later attempt runs
// the step if and only if there is no result.
func TestTxStepMessagesAreLost(t *testing.T) {
	t.Parallel()
	const begin, enter, save, release, keep, commit = "wait_timeout = 60", "LAST_INSERT_ID", "SAVEPOINT idem", "RELEASE",
		"CONCAT(COALESCE", "autocommit = 1"
	for _, pattern := range []string{begin, enter, save, "INSERT INTO", release, keep, commit} {
		for _, fault := range []servertest.Fault{
			servertest.LoseRequest, servertest.CutRequest, servertest.LoseReply, servertest.CutReply, servertest.HoldReply,
			servertest.DelayReply,
		} {
			t.Run(fmt.Sprint(pattern, " ", fault), func(t *testing.T) {
				t.Parallel()
				proxy := servertest.NewProxy(t, sharedServer(t).Addr())
				b := newBookings(t, proxy.Addr())
				require.NoError(t, b.runOperation("warm", func(context.Context) error { return nil }))
				proxy.Inject(servertest.Rule{Fault: fault, Pattern: pattern})
				runs := 0
				testservice.Until(t, func() bool {
					return b.runOperation("key", func(ctx context.Context) error {
						ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
						defer cancel()
						result, err := b.bookRow(ctx, "row", func(*sql.Tx) error { runs++; return nil })
						if err == nil {
							require.Equal(t, "row", result)
						}
						return err
					}) == nil
				})
				require.Equal(t, 1, proxy.Strikes())
				b.requireRows(t, 1, "row")
			})
		}
	}
}
