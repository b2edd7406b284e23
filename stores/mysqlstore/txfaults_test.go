package mysqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/step"
	"github.com/idempotency-go/idempotency/stores/mysqlstore"
)

// newStoreTxStep returns a step in a transaction of the store. The step inserts row, and then calls also.
func (b *bookings) newStoreTxStep(row string, also func(tx *sql.Tx) error) *idempotency.TxStep {
	var tx *sql.Tx
	s := &idempotency.TxStep{Name: "book", Var: &tx, Timeout: 20 * time.Second}
	s.Run = func() ([]byte, error) { return b.insertRow(tx, row, also) }
	return s
}

// newHandlerTxStep returns a step in tx, the transaction of the handler. The step inserts row, and then calls also.
func (b *bookings) newHandlerTxStep(tx *sql.Tx, row string, also func(tx *sql.Tx) error) *idempotency.TxStep {
	return &idempotency.TxStep{
		Name: "book", Tx: tx, Timeout: 20 * time.Second, Run: func() ([]byte, error) { return b.insertRow(tx, row, also) },
	}
}

func (b *bookings) insertRow(tx *sql.Tx, row string, also func(tx *sql.Tx) error) ([]byte, error) {
	if _, err := tx.Exec("INSERT INTO " + b.rowsTable + " (name) VALUES ('" + row + "')"); err != nil {
		return nil, err
	}
	return []byte(row), also(tx)
}

// claimKey claims key for steps in transactions.
func (b *bookings) claimKey(t *testing.T, key string) idempotency.TxCheckpointer {
	t.Helper()
	_, claim := claimKey(t, b.store, key)
	return claim.(idempotency.TxCheckpointer)
}

func execAll(tx *sql.Tx, statements ...string) error {
	for _, statement := range statements {
		if _, err := tx.Exec(statement); err != nil {
			return err
		}
	}
	return nil
}

var errOfStep = errors.New("the step has failed")

// The store reports that a step has committed by itself, even while renewals of the same claim are busy.
func TestRenewalHidesNoCommit(t *testing.T) {
	t.Parallel()
	proxy := servertest.NewProxy(t, sharedServer(t).Addr())
	b := newBookings(t, proxy.Addr())
	claim := b.claimKey(t, "key")
	require.NoError(t, claim.Extend(t.Context(), time.Minute)) // prepares the statement
	ended, renewed := make(chan struct{}), make(chan error, 1)
	s := b.newStoreTxStep("row", func(tx *sql.Tx) error {
		err := execAll(tx, "COMMIT")
		proxy.Inject(servertest.Rule{Fault: servertest.DelayRequest, Pattern: "SELECT token, COALESCE(lease"})
		go func() {
			var err error
			for err == nil {
				select {
				case <-ended:
					renewed <- nil
					return
				default:
					err = claim.Extend(context.Background(), time.Minute)
				}
			}
			renewed <- err
		}()
		return errors.Join(err, errOfStep)
	})
	_, err := claim.CheckpointTx(t.Context(), s)
	close(ended)
	require.ErrorIs(t, err, errOfStep)
	require.NoError(t, <-renewed)
	require.Equal(t, 1, proxy.Strikes())
	require.True(t, s.Escaped)
	b.requireRows(t, 1, "row")
}

// If the step already has a result, a later joined step returns an error, so its handler rolls back.
func TestResultIsThereBeforeAJoinedStep(t *testing.T) {
	t.Parallel()
	b := newBookings(t, sharedServer(t).Addr())
	claim := b.claimKey(t, "key")
	for _, row := range []string{"first", "second"} {
		tx, err := b.db.Begin()
		require.NoError(t, err)
		_, err = claim.CheckpointTx(t.Context(), b.newHandlerTxStep(tx, row, doNothing))
		if err == nil {
			require.NoError(t, tx.Commit()) // the reply may get lost
			continue
		}
		require.NotErrorIs(t, err, idempotency.ErrClaimLost)
		require.NoError(t, tx.Rollback())
	}
	b.requireRows(t, 1, "first")
	b.requireRows(t, 0, "second")
	found, err := claim.Checkpoints(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[string][]byte{"book": []byte("first")}, found)
}

// The store notices that a step has ended the transaction of its handler, whether the step returns a result or an
// error, or panics.
func TestJoinedStepEndsItsTransaction(t *testing.T) {
	t.Parallel()
	for end, test := range map[string]struct {
		endTx       func(tx *sql.Tx) error
		wantEscaped bool
	}{
		"COMMIT":        {func(tx *sql.Tx) error { return execAll(tx, "COMMIT") }, true},
		"COMMIT, BEGIN": {func(tx *sql.Tx) error { return execAll(tx, "COMMIT", "BEGIN") }, true},
		"Commit":        {(*sql.Tx).Commit, true},
		"ROLLBACK":      {func(tx *sql.Tx) error { return execAll(tx, "ROLLBACK") }, false},
		"Rollback":      {(*sql.Tx).Rollback, false},
		"nothing":       {doNothing, false},
	} {
		for result, returnResult := range map[string]func() error{
			"a result": func() error { return nil },
			"an error": func() error { return errOfStep },
			"a panic":  func() error { panic(errOfStep) },
		} {
			t.Run(end+" and "+result, func(t *testing.T) {
				t.Parallel()
				b := newBookings(t, sharedServer(t).Addr())
				claim := b.claimKey(t, "key")
				tx, err := b.db.Begin()
				require.NoError(t, err)
				s := b.newHandlerTxStep(tx, "row", func(tx *sql.Tx) error {
					if err := test.endTx(tx); err != nil {
						return err
					}
					return returnResult()
				})
				func() {
					defer func() { _ = recover() }()
					_, err = claim.CheckpointTx(t.Context(), s)
				}()
				require.Equal(t, test.wantEscaped, s.Escaped)
				switch {
				case result == "an error":
					require.Equal(t, errOfStep, err)
				case result == "a result" && end != "nothing":
					require.ErrorIs(t, err, step.ErrMisuse)
				}
				_ = tx.Rollback()
				rows := 0
				if test.wantEscaped {
					rows = 1
				}
				b.requireRows(t, rows, "row")
			})
		}
	}
}

// A pool is refused as a transaction, because each statement of a pool commits by itself.
func TestPoolIsNoTransaction(t *testing.T) {
	t.Parallel()
	b := newBookings(t, sharedServer(t).Addr())
	claim := b.claimKey(t, "key")
	_, err := claim.CheckpointTx(t.Context(), &idempotency.TxStep{
		Name: "book", Tx: b.db, Timeout: 20 * time.Second, Run: func() ([]byte, error) { return nil, errOfStep },
	})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.NotErrorIs(t, err, errOfStep)
	require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
}

// If the server does not answer, a step counts as committed only if its transaction has ended.
func TestNobodyTellsWhetherAStepHasCommitted(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		also        func(tx *sql.Tx) error
		wantEscaped bool
	}{
		"an error": {func(*sql.Tx) error { return errOfStep }, false},
		"ROLLBACK": {func(tx *sql.Tx) error { return errors.Join(execAll(tx, "ROLLBACK"), errOfStep) }, true},
		"deadlock": {func(tx *sql.Tx) error { // the server rolls back
			return errors.Join(execAll(tx, "ROLLBACK"), &mysql.MySQLError{Number: 1213}, errOfStep)
		}, false},
		"KILL":   {func(tx *sql.Tx) error { return errors.Join(execAll(tx, "KILL CONNECTION_ID()"), errOfStep) }, false},
		"Commit": {func(tx *sql.Tx) error { return errors.Join(tx.Commit(), errOfStep) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := servertest.NewProxy(t, sharedServer(t).Addr())
			b := newBookings(t, proxy.Addr())
			s := b.newStoreTxStep("row", func(tx *sql.Tx) error {
				err := test.also(tx)
				proxy.Inject(servertest.Rule{Fault: servertest.HoldRequest, Pattern: "SELECT token, COALESCE(lease", Times: 1000})
				return err
			})
			s.Timeout = time.Second
			_, err := b.claimKey(t, "key").CheckpointTx(t.Context(), s)
			require.ErrorIs(t, err, errOfStep)
			require.Equal(t, test.wantEscaped, s.Escaped)
			b.requireRows(t, 0, "row")
		})
	}
}

// Package database/sql rolls a transaction back when its context ends. The store does not blame the step for this
// rollback, although the server cannot be asked.
func TestContextOfAStepEnds(t *testing.T) {
	t.Parallel()
	for name, failure := range map[string]error{"a result": nil, "an error": errOfStep} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := servertest.NewProxy(t, sharedServer(t).Addr())
			b := newBookings(t, proxy.Addr())
			claim := b.claimKey(t, "key")
			ctx, cancel := context.WithCancel(t.Context())
			tx, err := b.db.BeginTx(ctx, nil)
			require.NoError(t, err)
			s := b.newHandlerTxStep(tx, "row", func(tx *sql.Tx) error {
				proxy.Inject(servertest.Rule{Fault: servertest.HoldRequest, Pattern: "SELECT token, COALESCE(lease", Times: 1000})
				cancel()
				require.Eventually(t, func() bool { return errors.Is(execAll(tx, "DO 1"), sql.ErrTxDone) }, 20*time.Second,
					time.Millisecond)
				return failure
			})
			s.Timeout = time.Second
			_, err = claim.CheckpointTx(ctx, s)
			require.Error(t, err)
			require.NotErrorIs(t, err, step.ErrMisuse)
			require.False(t, s.Escaped)
			b.requireRows(t, 0, "row")
		})
	}
}

// Conflicts and broken connections at the beginning of a transaction only cost a repetition, because the function
// has not run yet.
func TestStepBeginsAgain(t *testing.T) {
	t.Parallel()
	for _, statement := range []string{"SET autocommit = 0, @idempotency_wait", "LAST_INSERT_ID", "SAVEPOINT"} {
		for _, number := range []uint16{1213, 1205, 1020, 1053} {
			t.Run(statement+" "+(&mysql.MySQLError{Number: number}).Error(), func(t *testing.T) {
				t.Parallel()
				var strikes atomic.Int32
				target := sharedServer(t)
				w := &interceptor{refuseStatement: func(sent string) *mysql.MySQLError {
					if !strings.Contains(sent, statement) || strikes.Add(1) > 2 {
						return nil
					}
					return &mysql.MySQLError{Number: number, Message: "answered in place of the server"}
				}}
				b := newBookings(t, servertest.Relay(t, target.Addr(), w.relayConns))
				runs := 0
				_, err := b.claimKey(t, "key").CheckpointTx(t.Context(),
					b.newStoreTxStep("row", func(*sql.Tx) error { runs++; return nil }))
				require.NoError(t, err)
				require.Equal(t, 1, runs)
				require.Greater(t, strikes.Load(), int32(2))
				b.requireRows(t, 1, "row")
				requireCleanConns(t, b)
			})
		}
		for _, fault := range []servertest.Fault{
			servertest.LoseRequest, servertest.LoseReply, servertest.CutRequest, servertest.CutReply, servertest.HoldReply,
		} {
			t.Run(statement+" "+string(fault), func(t *testing.T) {
				t.Parallel()
				proxy := servertest.NewProxy(t, sharedServer(t).Addr())
				b := newBookings(t, proxy.Addr())
				claim := b.claimKey(t, "key")
				proxy.Inject(servertest.Rule{Fault: fault, Pattern: statement})
				s := b.newStoreTxStep("row", doNothing)
				s.Timeout = 4 * time.Second
				_, err := claim.CheckpointTx(t.Context(), s)
				require.NoError(t, err)
				require.Equal(t, 1, proxy.Strikes())
				b.requireRows(t, 1, "row")
			})
		}
	}
}

// requireCleanConns requires that all connections are back in the pool with their original settings, and without a
// transaction.
func requireCleanConns(t *testing.T, b *bookings) {
	t.Helper()
	require.Zero(t, b.db.Stats().InUse)
	conns := make([]*sql.Conn, b.db.Stats().Idle)
	for i := range conns {
		conn, err := b.db.Conn(t.Context())
		require.NoError(t, err)
		conns[i] = conn
		var autocommit, open, wait int
		require.NoError(t, conn.QueryRowContext(t.Context(), "SELECT @@autocommit, @@in_transaction, @@wait_timeout").
			Scan(&autocommit, &open, &wait))
		require.Equal(t, []int{1, 0, queryValue[int](t, openPool(t, sharedServer(t).DSN()), "SELECT @@wait_timeout")},
			[]int{autocommit, open, wait})
	}
	for _, conn := range conns {
		require.NoError(t, conn.Close())
	}
}

// If a statement of another goroutine still runs when the function returns, nothing is committed, and the connection
// is closed.
func TestStepLeavesAStatementBehind(t *testing.T) {
	t.Parallel()
	for name, sleep := range map[string]func(ctx context.Context, tx *sql.Tx, query string) error{
		"Exec": func(ctx context.Context, tx *sql.Tx, query string) error {
			_, err := tx.ExecContext(ctx, query)
			return err
		},
		"Query": func(ctx context.Context, tx *sql.Tx, query string) error {
			rows, err := tx.QueryContext(ctx, query)
			if err == nil {
				rows.Next()
				err = errors.Join(rows.Err(), rows.Close())
			}
			return err
		},
		"prepared Exec": func(ctx context.Context, tx *sql.Tx, query string) error {
			stmt, err := tx.PrepareContext(ctx, query)
			if err == nil {
				_, err = stmt.ExecContext(ctx)
			}
			return err
		},
		"prepared Query": func(ctx context.Context, tx *sql.Tx, query string) error {
			stmt, err := tx.PrepareContext(ctx, query)
			if err == nil {
				err = stmt.QueryRowContext(ctx).Scan(new(int))
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBookings(t, sharedServer(t).Addr())
			b.db.SetMaxOpenConns(1)
			claim, ended := b.claimKey(t, "key"), make(chan error, 1)
			query := "SELECT SLEEP(3600), '" + b.rowsTable + "'"
			s := b.newStoreTxStep("row", func(tx *sql.Tx) error {
				go func() { ended <- sleep(context.Background(), tx, query) }()
				requireEventually(t, "a statement that runs", func() bool {
					return queryValue[int](t, openPool(t, sharedServer(t).DSN()),
						"SELECT COUNT(*) FROM information_schema.PROCESSLIST "+
							"WHERE STATE = 'User sleep' AND INFO LIKE ?", "%"+b.rowsTable+"%") == 1
				})
				return nil
			})
			s.Timeout = time.Second
			_, err := claim.CheckpointTx(t.Context(), s)
			require.ErrorIs(t, err, step.ErrMisuse)
			require.Error(t, <-ended)
			require.False(t, s.Escaped)
			b.requireRows(t, 0, "row")
			require.Zero(t, b.db.Stats().InUse)
			_, err = claim.CheckpointTx(t.Context(), b.newStoreTxStep("again", doNothing))
			require.NoError(t, err)
		})
	}
}

// A failover to an asynchronous replica may lose the rows of a step together with the result of the step. The answer
// of the attempt is not stored then, because the rows are not there, and a retry writes the rows again.
func TestFailoverLosesRowsOfSteps(t *testing.T) {
	t.Parallel()
	const lostStep, lostRecord, nothing = "UPDATE %s SET steps = NULL", "DELETE FROM %s", "DO '%s'"
	own := func(b *bookings) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := b.bookRow(ctx, "row", func(*sql.Tx) error { return nil })
			return err
		}
	}
	joined := func(b *bookings) func(context.Context) error {
		return func(ctx context.Context) error {
			tx, err := b.db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer tx.Rollback()
			_, err = mysqlstore.DoInTx(ctx, tx, "book", func() (string, error) {
				_, err := tx.ExecContext(ctx, "INSERT INTO "+b.rowsTable+" (name) VALUES ('row')")
				return "row", err
			})
			return errors.Join(err, tx.Commit())
		}
	}
	for name, test := range map[string]struct {
		newBooking    func(*bookings) func(context.Context) error
		lossStatement string // what the failover does to the record, at the end of the attempt
		lossAttempt   int    // the attempt in which the failover happens
	}{
		"step":                               {own, lostStep, 1},
		"step before another one":            {own, lostStep, 1},
		"record":                             {own, lostRecord, 1},
		"step of an earlier attempt":         {own, lostStep, 2},
		"record after an earlier attempt":    {own, lostRecord, 2},
		"record, transaction of the handler": {joined, lostRecord, 1},
		"step of an earlier attempt, transaction of the handler": {joined, lostStep, 2},
		"nothing":                             {own, nothing, 1},
		"nothing after an earlier attempt":    {own, nothing, 2},
		"nothing, transaction of the handler": {joined, nothing, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBookings(t, sharedServer(t).Addr())
			direct, book, runs := openPool(t, sharedServer(t).DSN()), test.newBooking(b), 0
			table := strings.TrimSuffix(b.rowsTable, "_rows")
			again := func() error {
				return b.runOperation("key", func(ctx context.Context) error {
					runs++
					if err := book(ctx); err != nil {
						return err
					}
					if runs < test.lossAttempt {
						return errOfStep
					}
					if runs == test.lossAttempt {
						execStatement(t, direct, fmt.Sprintf(test.lossStatement, table))
						if test.lossStatement != nothing {
							execStatement(t, direct, "DELETE FROM "+b.rowsTable)
						}
						if name == "step before another one" {
							_, err := mysqlstore.DoTx(ctx, "ship", func(*sql.Tx) (string, error) { return "shipped", nil })
							return err
						}
					}
					return nil
				})
			}
			for range test.lossAttempt - 1 {
				require.ErrorIs(t, again(), errOfStep)
			}
			attempts := test.lossAttempt
			if test.lossStatement == nothing {
				require.NoError(t, again())
			} else {
				attempts++
				require.ErrorIs(t, again(), idempotency.ErrClaimLost)
				marked := queryValue[int](t, direct, "SELECT COUNT(*) FROM "+table+" WHERE steps LIKE '%"+idempotency.RecordLost+
					"%'")
				require.Equal(t, test.lossStatement == lostStep, marked == 1)
				execStatement(t, direct, "UPDATE "+table+" SET lease = 1") // the lease has lapsed
				require.NoError(t, again())
			}
			b.requireRows(t, 1, "row")
			require.NoError(t, again(), "a replay")
			require.Equal(t, attempts, runs)
		})
	}
}
