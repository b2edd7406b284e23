package pgxstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// stepTx is a transaction of DoTx: the store begins the transaction for a step, and commits it with the result of the step.
//
// The claim may be lost while the step runs, so the commit needs a fence:
//
//   - At read committed, the fence is the token of the claim. keep_step.sql stores the result only if the record has that
//     token. Otherwise keep_step.sql fails, and the server skips the commit that follows.
//   - At higher levels, keep_step.sql cannot change a record that was renewed since the snapshot of the transaction. So
//     enter_step.sql locks the record when the transaction begins, and renewals pause. The lock keeps other attempts from
//     claiming the key.
type stepTx struct {
	*claim
	step    *idempotency.TxStep
	usesSQL bool // the step gets a *sql.Tx
	txConn
	handlerTx   *handlerTx
	sqlTx       *sql.Tx
	txID        string      // of the server, as text
	recordPlace string      // ctid of the record, for a serializable transaction; empty at other levels
	isClosed    atomic.Bool // the transaction has ended, and its connection is returned
}

// txConn is the connection of a transaction.
type txConn struct {
	conn          *pgx.Conn
	sqlDriverConn *stdlib.Conn // the same connection; nil unless usesSQL
	releaseConn   func()       // returns the connection; the pool closes a connection with an open transaction
}

// runStep begins the transaction, passes it to the step by handOver, runs the step, and ends the transaction.
func (w *stepTx) runStep(ctx context.Context, handOver func()) (stored []byte, err error) {
	if err := w.beginTx(ctx); err != nil {
		return nil, wrapError("begin the transaction of a step", err)
	}
	defer w.rollbackTx(ctx) // no effect after a commit; also when the step panics
	if w.usesSQL {
		w.sqlTx = openSQLTx(ctx, w.sqlDriverConn, w.handlerTx)
	}
	handOver()
	data, err := w.step.Run()
	if err != nil {
		return nil, err
	}
	return w.commitStep(ctx, data)
}

// beginTx begins the transaction, in one round trip, or in two if the transaction is serializable.
func (w *stepTx) beginTx(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, w.step.Timeout)
	defer cancel()
	err := w.store.retryUntilKnown(ctx, new(bool), func() error { return w.tryBeginTx(ctx) })
	if isNotStored(err) {
		return idempotency.ErrClaimLost
	}
	return w.store.wrapBusyError(err, false)
}

// takeConn takes a connection from the pool.
func (w *stepTx) takeConn(ctx context.Context) error {
	if !w.usesSQL {
		conn, err := w.store.acquireConn(ctx)
		if err == nil {
			w.conn, w.releaseConn = conn.Conn(), conn.Release
		}
		return err
	}
	conn, err := stdlib.GetPoolConnector(w.store.pool).Connect(ctx)
	if err != nil {
		return w.store.wrapAcquireError(ctx, err)
	}
	w.sqlDriverConn = conn.(*stdlib.Conn)
	w.conn, w.releaseConn = w.sqlDriverConn.Conn(), func() { _ = w.sqlDriverConn.Close() }
	return nil
}

// tryBeginTx is a single try of beginTx.
func (w *stepTx) tryBeginTx(ctx context.Context) error {
	if err := w.takeConn(ctx); err != nil {
		return err
	}
	err := w.enterTx(func() (isLocked bool, err error) {
		err = runWithDeadline(ctx, w.conn, func() error {
			if err = w.findRecordPlace(ctx); err == nil {
				isLocked, err = w.sendBeginTx(ctx)
			}
			return err
		})
		return isLocked, err
	})
	if err != nil {
		if refusesWrites(err) { // the pool may then connect to the new primary
			_ = w.conn.Close(ctx)
		}
		w.releaseConn()
	}
	if isNotStored(err) && w.recordPlace != "" { // the record has moved since findRecordPlace, or is gone
		return errOvertaken
	}
	return err
}

// sendBeginTx sends the begin and enter_step.sql in one batch, and reports whether the transaction locks the record.
func (w *stepTx) sendBeginTx(ctx context.Context) (isLocked bool, err error) {
	var batch pgx.Batch
	batch.BeginTx(pgx.TxOptions{BeginQuery: w.store.opts.beginSQL()})
	sql, args := w.statementAtPlace("enter_step", w.enterArgs())
	batch.Queue(sql, args...).QueryRow(func(r pgx.Row) error {
		return r.Scan(&w.txID, &isLocked, nil, nil)
	})
	results := w.conn.SendBatch(ctx, &batch)
	w.handlerTx = &handlerTx{tx: results.Tx(), isClosed: &w.isClosed}
	return isLocked, results.Close()
}

// findRecordPlace reads the place of the record in the table, for a serializable transaction. See place_step.sql for the
// reason.
func (w *stepTx) findRecordPlace(ctx context.Context) error {
	if w.store.opts.Isolation != pgx.Serializable {
		return nil
	}
	err := w.conn.QueryRow(ctx, w.statements["place_step"], w.operation, w.ownerToken).Scan(&w.recordPlace)
	if errors.Is(err, pgx.ErrNoRows) {
		return idempotency.ErrClaimLost
	}
	return err
}

// statementAtPlace returns the statement name and its arguments, in the form that finds the record at recordPlace if the
// place is known.
func (w *stepTx) statementAtPlace(name string, args []any) (sql string, _ []any) {
	if w.recordPlace == "" {
		return w.statements[name], args
	}
	return w.statements[name+"_at"], append(args, w.recordPlace)
}

// commitStep stores the result and commits, in one batch: the server skips the commit if keep_step.sql fails.
func (w *stepTx) commitStep(ctx context.Context, data []byte) (stored []byte, err error) {
	switch w.conn.PgConn().TxStatus() {
	case 'I': // idle: no transaction is open
		return nil, sqlstore.ErrTxEnded
	case 'E': // a statement has failed
		return nil, errFailedTx
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.step.Timeout)
	defer cancel()
	var batch pgx.Batch
	isKept := false
	sql, args := w.statementAtPlace("keep_step", w.keepArgs(w.step.Name, data, w.txID))
	batch.Queue(sql, args...).QueryRow(func(r pgx.Row) error {
		err := r.Scan(nil)
		isKept = err == nil
		return err
	})
	batch.Queue("commit")
	err = runWithDeadline(ctx, w.conn, func() error { return w.conn.SendBatch(ctx, &batch).Close() })
	switch {
	case err == nil:
		w.reliedRows.addSteps(w.step.Name)
		w.closeTx()
		return data, nil
	case !isRefused(err):
		w.closeTx()
		return w.resolveCommit(ctx, err)
	}
	w.rollbackTx(ctx)
	switch {
	case !isKept && isOtherTx(err):
		return nil, sqlstore.ErrTxEnded
	case !isKept && isNotStored(err):
		return w.loadStoredResult(ctx, w.step.Name)
	}
	return nil, wrapError("commit", err)
}

// resolveCommit finds out whether a commit has taken effect whose reply was lost. The commit may still be on its way to
// the server, so resolveCommit asks until the server knows that the transaction has ended.
func (w *stepTx) resolveCommit(ctx context.Context, cause error) (stored []byte, err error) {
	var found settledStep
	for n := 0; ; n++ {
		if found, err = w.querySettledStep(ctx); err == nil && found.isFinal() {
			break
		}
		if err == nil && !sqlstore.Pause(ctx, sqlstore.Growing(n, time.Millisecond)) {
			err = ctx.Err()
		}
		if err != nil {
			return nil, wrapError("commit, in doubt", fmt.Errorf("%w; %w", cause, err))
		}
	}
	switch {
	case !found.isOwn:
		return nil, wrapError("commit", fmt.Errorf("%w: %w", idempotency.ErrClaimLost, cause))
	case found.isKept:
		return w.loadStoredResult(ctx, w.step.Name)
	}
	return nil, wrapError("commit", cause)
}

// settledStep is what settle_step.sql returns for a step whose commit got no reply: whether the claim still holds the
// record, whether the step has a result, and whether the transaction has ended.
type settledStep struct{ isOwn, isKept, hasEnded bool }

// isFinal reports whether the outcome of the commit can no longer change.
func (s settledStep) isFinal() bool { return !s.isOwn || s.isKept || s.hasEnded }

// querySettledStep runs settle_step.sql on another connection. It returns the zero settledStep if the record is gone,
// because a result cannot be stored without the record.
func (w *stepTx) querySettledStep(ctx context.Context) (found settledStep, err error) {
	mayHoldClaim := true // only the end of ctx stops the tries
	err = w.store.retryOnConn(ctx, &mayHoldClaim, fromPoolOrSpare, func(conn *pgx.Conn) error {
		err := conn.QueryRow(ctx, w.statements["settle_step"], w.operation, w.ownerToken, w.step.Name, w.txID).
			Scan(&found.isOwn, &found.isKept, &found.hasEnded)
		if errors.Is(err, pgx.ErrNoRows) { // the record is gone
			found, err = settledStep{}, nil
		}
		return err
	})
	return found, err
}

// rollbackTx rolls the transaction back, unless the transaction is closed. The status that the server reports afterwards
// tells whether the step has committed the transaction by itself.
func (w *stepTx) rollbackTx(ctx context.Context) {
	if w.isClosed.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.step.Timeout)
	defer cancel()
	isEndedByStep := w.conn.PgConn().TxStatus() == 'I'
	status, err := w.sendRollback(ctx)
	if err == nil {
		w.step.Escaped = status != statusAborted
	} else { // the server rolls back when the connection closes
		w.step.Escaped = isEndedByStep
		_ = w.conn.PgConn().Conn().Close()
	}
	if w.closeTx() { // renewals have paused, so the lease may have lapsed
		_ = w.Extend(ctx, w.request.Lease)
	}
}

// sendRollback rolls back, and returns the status of the transaction afterwards. It uses the simple protocol, because a
// failed transaction refuses to prepare the second statement before the rollback is executed.
func (w *stepTx) sendRollback(ctx context.Context) (status string, err error) {
	err = runWithDeadline(ctx, w.conn, func() error {
		results, err := w.conn.PgConn().Exec(ctx, "rollback; select pg_xact_status('"+w.txID+"')").ReadAll()
		if err == nil {
			status = string(results[1].Rows[0][0])
		}
		return err
	})
	return status, err
}

// closeTx closes the transaction for goroutines that the step has left behind, and returns the connection. It reports
// whether the transaction has locked the record.
func (w *stepTx) closeTx() (wasLocked bool) {
	w.isClosed.Store(true)
	if w.sqlTx != nil {
		_ = w.sqlTx.Rollback() // sends nothing to the server, but closes the prepared statements
	}
	w.releaseConn()
	return w.leaveTx()
}

// joinedTx is a transaction of DoInTx: the caller has begun the transaction, and commits it with the result of the step.
type joinedTx struct {
	*claim
	step     *idempotency.TxStep
	queryRow rowQuerier
	txID     string

	isIntact bool // keep_step.sql has shown that the transaction was open until the step had ended
}

// rowQuerier sends a statement in the transaction of a caller, and scans the single row of its result into dest.
type rowQuerier func(ctx context.Context, sql string, args []any, dest ...any) error

// queryByPgx returns the rowQuerier of a transaction of pgx.
func queryByPgx(tx Querier) rowQuerier {
	return func(ctx context.Context, sql string, args []any, dest ...any) error {
		rows, err := tx.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		_, err = pgx.CollectExactlyOneRow(rows, func(r pgx.CollectableRow) (struct{}, error) {
			return struct{}{}, r.Scan(dest...)
		})
		return err
	}
}

// queryBySQL returns the rowQuerier of a transaction of package database/sql.
func queryBySQL(tx SQLQuerier) rowQuerier {
	return func(ctx context.Context, query string, args []any, dest ...any) error {
		return sqlstore.ScanRow(ctx, tx, query, args, dest...)
	}
}

// runStep runs the step between enter_step.sql and keep_step.sql in the transaction. If enter_step.sql locks the record,
// renewals pause until keep_step.sql has returned.
func (j *joinedTx) runStep(ctx context.Context) (stored []byte, err error) {
	defer j.leaveTx()
	if err := j.enterCallerTx(ctx); err != nil {
		return nil, wrapError("enter the transaction of a step", err)
	}
	defer func() { j.step.Escaped = !j.isIntact && j.hasEscaped(ctx) }() // also when the step panics
	data, err := j.step.Run()
	if err != nil {
		return nil, err
	}
	return j.keepResult(ctx, data)
}

// enterCallerTx sends enter_step.sql in the transaction of the caller.
func (j *joinedTx) enterCallerTx(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, j.step.Timeout)
	defer cancel()
	err := j.enterTx(func() (isLocked bool, err error) {
		err = j.queryRow(ctx, j.statements["enter_step"], j.enterArgs(), &j.txID, &isLocked, new(any), new(any))
		return isLocked, err
	})
	if isNotStored(err) {
		return idempotency.ErrClaimLost
	}
	return err
}

// keepResult stores the result of the step with keep_step.sql in the transaction of the caller.
func (j *joinedTx) keepResult(ctx context.Context, data []byte) (stored []byte, err error) {
	bounded, cancel := context.WithTimeout(ctx, j.step.Timeout)
	defer cancel()
	err = j.queryRow(bounded, j.statements["keep_step"], j.keepArgs(j.step.Name, data, j.txID), new(any))
	j.isIntact = err == nil || isNotStored(err)
	switch {
	case err == nil:
		j.reliedRows.addJoinedStep(j.step.Name)
		return data, nil
	case isNotStored(err): // the transaction has failed, so the caller cannot use a stored result
		if _, err := j.loadStoredResult(ctx, j.step.Name); err != nil {
			return nil, err
		}
		return nil, wrapError("store the result of a step", sqlstore.ErrStepChanged)
	case isOtherTx(err), isClosedTx(err) && ctx.Err() == nil:
		return nil, sqlstore.ErrTxEnded
	case sqlState(err) == "25P02": // in_failed_sql_transaction
		return nil, errFailedTx
	}
	return nil, wrapError("store the result of a step", err)
}

// hasEscaped reports whether the step has ended the transaction by itself, so that its rows may be permanent.
//
// hasEscaped asks in the transaction of the caller first. A failed or closed transaction cannot answer, so hasEscaped
// then asks on another connection, but only for a quarter of the timeout, because the caller occupies a connection
// meanwhile.
func (j *joinedTx) hasEscaped(ctx context.Context) bool {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), j.step.Timeout/4)
	defer cancel()
	var isOpenOrUndone bool
	err := j.queryRow(bounded, `SELECT coalesce(pg_current_xact_id_if_assigned() = $1::text::xid8
    OR pg_xact_status($1::text::xid8) = 'aborted', false)`, []any{j.txID}, &isOpenOrUndone)
	if err == nil {
		return !isOpenOrUndone
	}
	isClosed := isClosedTx(err)
	for n := 0; ; n++ {
		status, err := j.queryTxStatus(bounded)
		switch {
		case err == nil && status != statusInProgress:
			return status != statusAborted
		case err == nil && !isClosed: // in progress: the step failed within a savepoint
			return false
		case err != nil, !sqlstore.Pause(bounded, sqlstore.Growing(n, time.Millisecond)): // the outcome remains unknown
			return isClosed && ctx.Err() == nil // after the end of ctx, database/sql closes and rolls back
		}
	}
}

// queryTxStatus returns the status of the transaction, from another connection.
func (j *joinedTx) queryTxStatus(ctx context.Context) (string, error) {
	var status pgtype.Text
	err := j.store.retryOnConn(ctx, new(bool), fromPoolOrSpare, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "select pg_xact_status($1::text::xid8)", j.txID).Scan(&status)
	})
	return status.String, err
}

// isClosedTx reports whether the transaction was ended by a call of one of its methods, or by package database/sql after
// its context had ended.
func isClosedTx(err error) bool {
	return errors.Is(err, sql.ErrTxDone) || errors.Is(err, pgx.ErrTxClosed)
}

// handlerTx is the transaction that a step of DoTx gets, or a savepoint in that transaction. DoTx closes handlerTx at its
// end. Otherwise a goroutine that the step has left behind could use the connection while the connection serves another
// request.
type handlerTx struct {
	tx          pgx.Tx
	isClosed    *atomic.Bool
	isSavepoint bool
}

// closedTx is a transaction without a connection, whose methods all return [pgx.ErrTxClosed].
var closedTx = func() pgx.Tx {
	var batch pgx.Batch
	batch.BeginTx(pgx.TxOptions{})
	return pgx.FailedBatchResults(&batch, pgx.ErrTxClosed).Tx()
}()

// currentTx returns the transaction, or closedTx after DoTx has closed it.
func (t *handlerTx) currentTx() pgx.Tx {
	if t.isClosed.Load() {
		return closedTx
	}
	return t.tx
}

func (t *handlerTx) Begin(ctx context.Context) (pgx.Tx, error) {
	savepoint, err := t.currentTx().Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &handlerTx{savepoint, t.isClosed, true}, nil
}

// Commit of a savepoint releases the savepoint. Commit of the transaction rolls back and returns
// [sqlstore.ErrStepCommits], because only the store may commit.
func (t *handlerTx) Commit(ctx context.Context) error {
	if t.isSavepoint {
		return t.currentTx().Commit(ctx)
	}
	return rollbackInstead(t.Rollback(ctx))
}

// rollbackInstead returns the error of a Commit that has rolled back with the error err.
func rollbackInstead(err error) error {
	if err != nil { // the transaction was closed before, or the connection is broken
		return err
	}
	return sqlstore.ErrStepCommits
}

func (t *handlerTx) Rollback(ctx context.Context) error { return t.currentTx().Rollback(ctx) }

func (t *handlerTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	return t.currentTx().CopyFrom(ctx, table, columns, rows)
}

func (t *handlerTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	return t.currentTx().SendBatch(ctx, b)
}

func (t *handlerTx) LargeObjects() pgx.LargeObjects { return t.currentTx().LargeObjects() }

func (t *handlerTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	return t.currentTx().Prepare(ctx, name, sql)
}

func (t *handlerTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return t.currentTx().Exec(ctx, sql, args...)
}

func (t *handlerTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return t.currentTx().Query(ctx, sql, args...)
}

func (t *handlerTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return t.currentTx().QueryRow(ctx, sql, args...)
}

func (t *handlerTx) Conn() *pgx.Conn { return t.tx.Conn() }

// sqlConn is the connection of a step for package database/sql, and the transaction that is open on the connection.
type sqlConn struct {
	*stdlib.Conn
	ctx context.Context // of the step
	tx  *handlerTx
}

// openSQLTx wraps tx as a transaction of package database/sql. The transaction ignores the end of ctx, and lasts until
// the store ends it.
func openSQLTx(ctx context.Context, conn *stdlib.Conn, tx *handlerTx) *sql.Tx {
	ctx = context.WithoutCancel(ctx)
	db := sql.OpenDB(&sqlConn{conn, ctx, tx})
	opened, _ := db.BeginTx(ctx, nil) // sends nothing to the server, and fails only if ctx has ended
	_ = db.Close()                    // the transaction stays open
	return opened
}

var (
	_ driver.Connector   = (*sqlConn)(nil)
	_ driver.ConnBeginTx = (*sqlConn)(nil)
	_ driver.Tx          = (*sqlConn)(nil)
)

func (c *sqlConn) Connect(context.Context) (driver.Conn, error)                 { return c, nil }
func (c *sqlConn) Driver() driver.Driver                                        { return stdlib.GetDefaultDriver() }
func (c *sqlConn) Close() error                                                 { return nil } // the store returns the connection
func (c *sqlConn) Begin() (driver.Tx, error)                                    { return c, nil }
func (c *sqlConn) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return c, nil }
func (c *sqlConn) ResetSession(context.Context) error                           { return nil }

// Commit implements [driver.Tx].
func (c *sqlConn) Commit() error { return c.tx.Commit(c.ctx) }

// Rollback implements [driver.Tx]. After the store has ended the transaction, the store calls Rollback to make
// database/sql close the prepared statements of the handler.
func (c *sqlConn) Rollback() error {
	if err := c.tx.Rollback(c.ctx); !errors.Is(err, pgx.ErrTxClosed) {
		return err
	}
	return nil
}
