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

// A step in a transaction keeps its rules whatever the settings of the driver and of the session are.
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
			db := pool(t, server(t).DSN(), settings...)
			store, table := newStore(t, db)
			rows := table + "_rows"
			execute(t, db, "CREATE TABLE "+rows+" (name VARCHAR(50), KEY (name)) ENGINE = InnoDB")
			idempotencytest.RunTxSteps(t, func(*testing.T) idempotency.Store { return store }, transactionsOf(db, rows))
		})
	}
}

func transactionsOf(db *sql.DB, rows string) idempotencytest.Transactions[*sql.Tx] {
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

// bookings is a store with a table of rows, on whose operations the steps of a test run.
type bookings struct {
	db    *sql.DB
	store *mysqlstore.Store
	rows  string
}

// newBookings returns a store on its own table of the shared server, through addr.
func newBookings(t *testing.T, addr string) *bookings {
	t.Helper()
	direct := pool(t, server(t).DSN())
	_, table := newStore(t, direct)
	b := &bookings{db: pool(t, server(t).DSNAt(addr)), rows: table + "_rows"}
	b.store = mysqlstore.New(b.db, mysqlstore.Options{Table: table})
	execute(t, direct, "CREATE TABLE "+b.rows+" (name VARCHAR(50), id INT AUTO_INCREMENT PRIMARY KEY) ENGINE = InnoDB")
	return b
}

// do runs an operation whose handler is work, as an attempt of key.
func (b *bookings) do(key string, work func(context.Context) error) error {
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

// book writes a row in a step, and then does what else is given.
func (b *bookings) book(ctx context.Context, name string, also func(tx *sql.Tx) error) (string, error) {
	return mysqlstore.DoTx(ctx, "book", func(tx *sql.Tx) (string, error) {
		if _, err := tx.ExecContext(ctx, "INSERT INTO "+b.rows+" (name) VALUES (?)", name); err != nil {
			return "", err
		}
		return name, also(tx)
	})
}

func (b *bookings) requireRows(t *testing.T, want int, name string) {
	t.Helper()
	direct := pool(t, server(t).DSN())
	require.Equal(t, want, one[int](t, direct, "SELECT COUNT(*) FROM "+b.rows+" WHERE name = ?", name))
}

func nothing(*sql.Tx) error { return nil }

// What a step does about its transaction is noticed. What it has committed by itself is told, and does not run again.
func TestTxStepMisuse(t *testing.T) {
	t.Parallel()
	run := func(statements ...string) func(*sql.Tx) error {
		return func(tx *sql.Tx) error { return run(tx, statements...) }
	}
	for name, test := range map[string]struct {
		also    func(*sql.Tx) error
		err     error
		escapes bool
	}{
		"Commit":                 {func(tx *sql.Tx) error { _ = tx.Commit(); return nil }, step.ErrMisuse, false},
		"Commit and its error":   {func(tx *sql.Tx) error { return tx.Commit() }, step.ErrMisuse, false},
		"Rollback":               {func(tx *sql.Tx) error { return tx.Rollback() }, step.ErrMisuse, false},
		"COMMIT":                 {run("COMMIT"), step.ErrResult, true},
		"COMMIT, BEGIN":          {run("COMMIT", "BEGIN"), step.ErrResult, true},
		"COMMIT AND CHAIN":       {run("COMMIT AND CHAIN"), step.ErrResult, true},
		"a table":                {nil, step.ErrResult, true},
		"COMMIT, and an error":   {func(tx *sql.Tx) error { return errors.Join(run("COMMIT")(tx), errOfStep) }, step.ErrResult, true},
		"SET autocommit":         {run("SET autocommit = 1"), step.ErrResult, true},
		"LOCK TABLES":            {run("LOCK TABLES mysql.user READ"), step.ErrResult, true},
		"ROLLBACK":               {run("ROLLBACK"), step.ErrMisuse, false},
		"ROLLBACK, BEGIN":        {run("ROLLBACK", "BEGIN"), step.ErrMisuse, false},
		"an error":               {func(*sql.Tx) error { return errOfStep }, errOfStep, false},
		"a statement that fails": {run("SELECT * FROM nowhere"), nil, false},
		"an open cursor": {func(tx *sql.Tx) error {
			_, err := tx.Query("SELECT SEQ FROM seq_1_to_100000") //nolint:rowserrcheck // left open
			return err
		}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBookings(t, server(t).Addr())
			b.db.SetMaxOpenConns(1) // a connection that is not given back would be missed
			also := func(tx *sql.Tx) error { return test.also(tx) }
			if name == "a table" {
				also = run("CREATE TABLE " + b.rows + "_x (y INT)")
			}
			var err error
			require.NoError(t, b.do("key", func(ctx context.Context) error {
				_, err = b.book(ctx, "first", also)
				return nil
			}))
			if name == "an open cursor" {
				require.NoError(t, err)
				b.requireRows(t, 1, "first")
				return
			}
			require.Error(t, err)
			if test.err != nil {
				require.ErrorIs(t, err, test.err)
			}
			rows := 0
			if test.escapes {
				rows = 1
			}
			b.requireRows(t, rows, "first")

			failed := errors.New("so that there is another attempt")
			require.ErrorIs(t, b.do("again", func(ctx context.Context) error {
				_, err = b.book(ctx, "second", also)
				return failed
			}), failed)
			require.NoError(t, b.do("again", func(ctx context.Context) error {
				_, err = b.book(ctx, "second", nothing)
				return nil
			}))
			if test.escapes {
				require.ErrorIs(t, err, step.ErrResult, "the step does not run again")
			} else {
				require.NoError(t, err)
			}
			b.requireRows(t, 1, "second")
			requireClean(t, b)
		})
	}
}

// Whatever message of a step is lost, the rows and the result are permanent together, and a later attempt runs the step if and
// only if there is no result.
func TestTxStepMessagesAreLost(t *testing.T) {
	t.Parallel()
	const begin, enter, save, release, keep, commit = "wait_timeout = 60", "LAST_INSERT_ID", "SAVEPOINT idem", "RELEASE", "CONCAT(COALESCE", "autocommit = 1"
	for _, pattern := range []string{begin, enter, save, "INSERT INTO", release, keep, commit} {
		for _, fault := range []servertest.Fault{
			servertest.LoseRequest, servertest.CutRequest, servertest.LoseReply, servertest.CutReply, servertest.HoldReply, servertest.DelayReply,
		} {
			t.Run(fmt.Sprint(pattern, " ", fault), func(t *testing.T) {
				t.Parallel()
				proxy := servertest.NewProxy(t, server(t).Addr())
				b := newBookings(t, proxy.Addr())
				require.NoError(t, b.do("warm", func(context.Context) error { return nil }))
				proxy.Inject(servertest.Rule{Fault: fault, Pattern: pattern})
				runs := 0
				testservice.Until(t, func() bool {
					return b.do("key", func(ctx context.Context) error {
						ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
						defer cancel()
						result, err := b.book(ctx, "row", func(*sql.Tx) error { runs++; return nil })
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
