package sqlstore

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/step"
)

// TxLeases is a [Leases] that runs steps in transactions.
//
// A transaction locks the record of the claim before the step writes anything. So the key cannot be claimed by a
// different attempt while the transaction is open, at any isolation level. Renewals pause while the step runs, because
// a renewal would wait for the lock, and because a renewal between the snapshot and the lock of the transaction would
// make the transaction fail.
type TxLeases interface {
	RowLeases

	// BeginStep begins a transaction on a separate connection, and calls enter with the transaction. After a conflict
	// with a transaction or a broken connection, BeginStep begins again, until ctx ends. If BeginStep returns an error,
	// the transaction has ended.
	BeginStep(ctx context.Context, enter func(ctx context.Context, tx StepTx) error) (StepTx, error)

	// JoinStep returns the statements of the store in a transaction of the handler.
	JoinStep(tx Querier) StepStatements

	// ReadSettled waits until no transaction has locked the record of operation, or until ctx ends, and returns the
	// record.
	ReadSettled(ctx context.Context, operation uuid.UUID) (Settled, error)
}

// Settled is the record returned by ReadSettled of [TxLeases]. Without a record, Settled is the zero value.
type Settled struct {
	Token   []byte
	Lease   int64
	Entries []byte // encoded checkpoints
}

// Querier is a transaction of package database/sql, or of a library on top of database/sql: a *sql.Tx or *sqlx.Tx, the
// Tx of ent, or the Statement.ConnPool of a transaction of GORM.
type Querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// StepStatements are the statements of the store in the transaction of a step.
type StepStatements interface {
	// Enter renews the lease, which locks the record. Enter also marks the transaction, so that Leave can tell the
	// transaction from a later transaction of the step. Enter returns the end of the new lease, or 0 if the claim does
	// not hold the record.
	Enter(ctx context.Context, operation uuid.UUID, token []byte, lease time.Duration) (lapses int64, err error)

	// Leave returns an error unless the transaction is the transaction marked by Enter. The error wraps
	// [step.ErrMisuse] if the step has ended the transaction. If the server has rolled back because of cause, the error
	// of the step, the error does not wrap ErrMisuse.
	Leave(ctx context.Context, cause error) error

	// Keep stores checkpoints as Checkpoint of [Steps] does, and renews the lease.
	Keep(ctx context.Context, operation uuid.UUID, token, entries []byte, before int, lease time.Duration) (kept bool, err error)

	// Checkpoints returns the checkpoints of the record as seen by the transaction, or sql.ErrNoRows.
	Checkpoints(ctx context.Context, operation uuid.UUID) (entries []byte, err error)

	// HasRoom is HasRoom of [Steps].
	HasRoom(n int) bool
}

// StepTx is a transaction begun by the store for a step.
type StepTx interface {
	StepStatements

	// Open returns the transaction for the handler.
	Open(ctx context.Context) (*sql.Tx, error)

	// CloseHandler takes the transaction away from the handler. The error wraps [step.ErrMisuse] if the handler has
	// ended the transaction.
	CloseHandler(ctx context.Context) error

	// Commit commits, and returns the connection to the pool. After an error with isRefused, the transaction can still
	// be rolled back. After any different error, the transaction may or may not be committed.
	Commit(ctx context.Context) (isRefused bool, err error)

	// Rollback rolls back, and returns the connection to the pool.
	Rollback(ctx context.Context)
}

// Errors of steps in transactions.
var (
	// ErrTxEnded reports that a step has ended the transaction by itself.
	ErrTxEnded = fmt.Errorf("%w: the step has ended its transaction", step.ErrMisuse)

	// ErrStepCommits is the error of Commit on the transaction of a step. The transaction is rolled back.
	ErrStepCommits = fmt.Errorf("%w: rolled back, because only DoTx commits, after the function has returned", step.ErrMisuse)

	// ErrStepChanged reports that a checkpoint could not be stored although the claim holds the record.
	ErrStepChanged = errors.New("the record was changed concurrently")
)

const beginStep = "begin the transaction of a step"

var _ idempotency.TxCheckpointer = (*leaseClaim)(nil)

// CheckpointTx implements [idempotency.TxCheckpointer].
func (l *leaseClaim) CheckpointTx(ctx context.Context, s *idempotency.TxStep) ([]byte, error) {
	run := &txRun{leaseClaim: l, step: s}
	var ok bool
	if run.store, ok = l.store.(TxLeases); ok {
		if variable, isSQL := s.Var.(**sql.Tx); isSQL {
			return run.runInOwnTx(ctx, variable)
		}
		_, isPool := s.Tx.(*sql.DB) // each statement of a pool commits by itself
		if tx, isSQL := s.Tx.(Querier); isSQL && !isPool {
			return run.runInHandlerTx(ctx, run.store.JoinStep(tx))
		}
	}
	tx := s.Tx
	if tx == nil {
		tx = s.Var
	}
	return nil, l.store.Failure(beginStep, fmt.Errorf("a %T is not a transaction of this store: %w", tx, errors.ErrUnsupported))
}

// txRun is a run of a step in a transaction.
type txRun struct {
	*leaseClaim
	store         TxLeases
	step          *idempotency.TxStep
	leaseEnd      int64  // end of the lease written by Enter; only that Enter writes the value
	stepErr       error  // error of the step function
	hasLeft       bool   // Leave was called
	leaveErr      error  // error of Leave
	newEntries    []byte // checkpoints with the result of this run, in the transaction; nil: the result is not stored
	earlierResult []byte // result of the step, stored by an earlier run
}

// settlingContext returns the context for ending a transaction. The context outlives ctx, and lasts for Timeout of the
// step.
func (r *txRun) settlingContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), r.step.Timeout)
}

// enterStep locks the record in the transaction, and pauses renewals.
func (r *txRun) enterStep(ctx context.Context, tx StepStatements) error {
	r.renewals.Lock() // waits for a renewal under way
	defer r.renewals.Unlock()
	lapses, err := tx.Enter(ctx, r.operation, r.ownerToken, r.grantedRecord.LeaseLeft)
	switch {
	case err != nil:
		return err
	case lapses == 0:
		return idempotency.ErrClaimLost
	}
	r.leaseEnd, r.renewals.isPaused = lapses, true
	return nil
}

// resumeRenewals ends the pause of renewals.
func (r *txRun) resumeRenewals() {
	r.renewals.Lock()
	defer r.renewals.Unlock()
	r.renewals.isPaused = false
}

// leaveStep calls Leave once, and returns the error of Leave each time.
func (r *txRun) leaveStep(ctx context.Context, tx StepStatements) error {
	if !r.hasLeft {
		r.hasLeft, r.leaveErr = true, tx.Leave(ctx, r.stepErr)
	}
	return r.leaveErr
}

// hasEnded reports whether err of Leave says that the step has ended the transaction by itself. A rollback by package
// database/sql at the end of ctx is not an act of the step.
func hasEnded(ctx context.Context, err error) bool {
	return errors.Is(err, step.ErrMisuse) || errors.Is(err, sql.ErrTxDone) && ctx.Err() == nil
}

// keepResult stores the result in the transaction, unless an earlier run has stored a result. The checkpoints known to
// the claim may differ from the stored checkpoints, because the claim cannot see whether the handler has committed its
// own transaction.
func (r *txRun) keepResult(ctx context.Context, tx StepStatements, data []byte) error {
	if err := r.leaveStep(ctx, tx); err != nil {
		return r.wrapKeepError(err)
	}
	if !tx.HasRoom(len(r.step.Name) + len(data)) {
		return r.wrapKeepError(idempotency.ErrStoreFull)
	}
	if kept, err := r.addResult(ctx, tx, r.checkpoints.loadEntries(), data); kept || err != nil {
		return r.wrapKeepError(err)
	}
	entries, err := tx.Checkpoints(ctx, r.operation)
	if errors.Is(err, sql.ErrNoRows) {
		err = idempotency.ErrClaimLost
	}
	if err != nil {
		return r.wrapKeepError(err)
	}
	found, err := decodeEntries(entries)
	if err != nil {
		return r.wrapKeepError(err)
	}
	if stored, ok := found[r.step.Name]; ok {
		r.earlierResult = stored
		return nil
	}
	kept, err := r.addResult(ctx, tx, entries, data)
	if !kept && err == nil {
		err = ErrStepChanged
	}
	return r.wrapKeepError(err)
}

// addResult appends the result to the known checkpoints, if the record has exactly the known checkpoints and none of
// the step.
func (r *txRun) addResult(ctx context.Context, tx StepStatements, known, data []byte) (kept bool, err error) {
	if hasEntry(known, r.step.Name) {
		return false, nil
	}
	entries := appendEntry(known, r.step.Name, data)
	kept, err = tx.Keep(ctx, r.operation, r.ownerToken, entries, len(known), r.grantedRecord.LeaseLeft)
	if kept {
		r.newEntries = entries
	}
	return kept, err
}

func (r *txRun) wrapKeepError(err error) error {
	return r.store.Failure("store the result of a step", err)
}

// hasEscaped reports whether the step has ended the transaction by itself, and may have committed. After a commit, the
// record has the lease written by the transaction. If the store does not reply or a different attempt has claimed the
// key since, hasEscaped returns true only if the step has certainly ended the transaction.
func (r *txRun) hasEscaped(ctx context.Context, tx StepStatements) bool {
	settling, cancel := r.settlingContext(ctx)
	defer cancel()
	left := r.leaveStep(settling, tx)
	if left == nil {
		return false
	}
	settled, err := r.store.ReadSettled(settling, r.operation)
	if err != nil || !bytes.Equal(settled.Token, r.ownerToken) {
		return hasEnded(ctx, left)
	}
	return settled.Lease == r.leaseEnd
}

// runInOwnTx runs the step in a transaction begun and committed by the store.
func (r *txRun) runInOwnTx(ctx context.Context, variable **sql.Tx) (stored []byte, err error) {
	begun, cancel := context.WithTimeout(ctx, r.step.Timeout)
	defer cancel()
	tx, err := r.store.BeginStep(begun, func(ctx context.Context, tx StepTx) error { return r.enterStep(ctx, tx) })
	if err != nil {
		return nil, r.store.Failure(beginStep, err)
	}
	isOver := false
	defer func() { // also when the step panics
		if isOver {
			r.resumeRenewals()
		} else {
			r.rollbackStep(ctx, tx)
		}
	}()
	if *variable, err = tx.Open(ctx); err != nil {
		return nil, r.store.Failure(beginStep, err)
	}
	data, err := r.step.Run()
	if err != nil {
		r.stepErr = err
		return nil, err
	}
	stored, isOver, err = r.commitStep(ctx, tx, data)
	return stored, err
}

// commitStep stores the result of the step, and commits. The bool isOver reports that the transaction may be committed.
func (r *txRun) commitStep(ctx context.Context, tx StepTx, data []byte) (stored []byte, isOver bool, err error) {
	settled, cancel := r.settlingContext(ctx)
	defer cancel()
	if err := tx.CloseHandler(settled); err != nil {
		return nil, false, err
	}
	if err := r.keepResult(settled, tx, data); err != nil {
		return nil, false, err
	}
	if r.newEntries == nil {
		return r.earlierResult, false, nil
	}
	isRefused, err := tx.Commit(settled)
	switch {
	case err == nil:
		r.checkpoints.noteRelied(r.newEntries)
		return data, true, nil
	case isRefused:
		return nil, false, r.store.Failure("commit", err)
	}
	stored, err = r.resolveCommit(ctx, err)
	return stored, true, err
}

// resolveCommit finds out the outcome of a commit whose reply was lost.
func (r *txRun) resolveCommit(ctx context.Context, cause error) ([]byte, error) {
	ctx, cancel := r.settlingContext(ctx)
	defer cancel()
	settled, err := r.store.ReadSettled(ctx, r.operation)
	switch {
	case err != nil:
		return nil, r.store.Failure("commit, in doubt", fmt.Errorf("%w; %w", cause, err))
	case !bytes.Equal(settled.Token, r.ownerToken):
		return nil, r.store.Failure("commit", fmt.Errorf("%w: %w", idempotency.ErrClaimLost, cause))
	}
	found, err := decodeEntries(settled.Entries)
	if err != nil {
		return nil, r.wrapKeepError(err)
	}
	stored, ok := found[r.step.Name]
	if !ok {
		return nil, r.store.Failure("commit", cause)
	}
	r.checkpoints.noteRelied(settled.Entries)
	return stored, nil
}

// rollbackStep rolls back the transaction, and finds out whether the step has committed by itself. The end of the lease
// tells a commit by the step, and a renewal would change the end of the lease, so renewals stay paused until the answer
// is known.
func (r *txRun) rollbackStep(ctx context.Context, tx StepTx) {
	settled, cancel := r.settlingContext(ctx)
	defer cancel()
	_ = tx.CloseHandler(settled)
	_ = r.leaveStep(settled, tx)
	tx.Rollback(settled)
	r.step.Escaped = r.hasEscaped(ctx, tx)
	r.resumeRenewals()
	renewed, cancel := r.settlingContext(ctx)
	defer cancel()
	_ = r.Extend(renewed, r.grantedRecord.LeaseLeft) // the lease may have ended during the pause
}

// runInHandlerTx runs the step between statements in a transaction of the handler. After an error, the handler rolls
// back.
func (r *txRun) runInHandlerTx(ctx context.Context, tx StepStatements) ([]byte, error) {
	bounded, cancel := context.WithTimeout(ctx, r.step.Timeout)
	defer cancel()
	if err := r.enterStep(bounded, tx); err != nil {
		return nil, r.store.Failure(beginStep, err)
	}
	defer r.resumeRenewals()
	isKept := false
	defer func() { // also when the step panics
		if !isKept {
			r.step.Escaped = r.hasEscaped(ctx, tx)
		}
	}()
	data, err := r.step.Run()
	if err != nil {
		r.stepErr = err
		return nil, err
	}
	settled, cancel := context.WithTimeout(ctx, r.step.Timeout)
	defer cancel()
	err = r.keepResult(settled, tx, data)
	isKept = err == nil
	switch {
	case hasEnded(ctx, err):
		return nil, ErrTxEnded
	case err != nil:
		return nil, err
	case r.newEntries == nil:
		return nil, r.wrapKeepError(ErrStepChanged)
	}
	r.checkpoints.noteJoinedRows()
	return data, nil
}

// StepConn is the driver connection below a transaction of the store for a step. The handler uses the transaction as a
// [sql.Tx] that cannot begin or end the transaction: BeginTx, Commit and Rollback send nothing.
type StepConn struct {
	driverConn

	handlerDB *sql.DB
	handlerTx *sql.Tx // nil: Open was not called

	interruptContext    context.Context // ends the statements of the handler that still run at the end of CloseHandler
	interruptStatements context.CancelFunc
	isStuck             bool // a statement was interrupted

	stateMutex sync.Mutex
	isClosing  bool  // CloseHandler was called
	endErr     error // reason to roll back: the handler has called Commit or Rollback
}

// driverConn lists the interfaces of connections of the MySQL and SQLite drivers.
type driverConn interface {
	driver.Conn
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
}

// driverStmt lists the interfaces of prepared statements of the MySQL and SQLite drivers.
type driverStmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

var (
	_ driver.Connector         = (*StepConn)(nil)
	_ driver.ConnBeginTx       = (*StepConn)(nil)
	_ driver.NamedValueChecker = (*StepConn)(nil)
)

// errStepRolledBack reports that a step has called Rollback.
var errStepRolledBack = fmt.Errorf("%w: the step has rolled back its transaction", step.ErrMisuse)

// NewStepConn returns a StepConn on the driver connection of conn. Until Close of conn, only the StepConn may use the
// connection.
func NewStepConn(conn *sql.Conn) (*StepConn, error) {
	c := new(StepConn)
	err := conn.Raw(func(driven any) error {
		own, ok := driven.(driverConn)
		if !ok {
			return fmt.Errorf("the driver's connection, a %T, cannot run a step in a transaction: %w", driven, errors.ErrUnsupported)
		}
		c.driverConn = own
		return nil
	})
	return c, err
}

// Open returns the transaction for the handler. The transaction lasts until CloseHandler, even if ctx, the context of
// the handler, ends earlier.
func (c *StepConn) Open(ctx context.Context) (*sql.Tx, error) {
	ctx = context.WithoutCancel(ctx)
	c.interruptContext, c.interruptStatements = context.WithCancel(ctx)
	c.handlerDB = sql.OpenDB(c)
	var err error
	c.handlerTx, err = c.handlerDB.BeginTx(ctx, nil)
	return c.handlerTx, err
}

// Send executes a statement of the store.
func (c *StepConn) Send(ctx context.Context, statement string) (driver.Result, error) {
	return c.driverConn.ExecContext(ctx, statement, nil)
}

// ReadBytes runs a query of the store, and returns the only value of the only row, or sql.ErrNoRows.
func (c *StepConn) ReadBytes(ctx context.Context, query string) ([]byte, error) {
	rows, err := c.driverConn.QueryContext(ctx, query, nil)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	row := make([]driver.Value, 1)
	if err := rows.Next(row); err == io.EOF {
		return nil, sql.ErrNoRows
	} else if err != nil {
		return nil, err
	}
	value, _ := row[0].([]byte)
	return bytes.Clone(value), nil // the driver may reuse the memory
}

// ScanRow runs a query in a transaction of the handler, and scans the only row. Without a row, the error is
// sql.ErrNoRows.
func ScanRow(ctx context.Context, tx interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}, query string, args []any, dest ...any,
) error {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	if !rows.Next() {
		return cmp.Or(rows.Err(), sql.ErrNoRows)
	}
	return cmp.Or(rows.Scan(dest...), rows.Close(), rows.Err())
}

// CloseHandler takes the transaction away from the handler and from goroutines started by the handler. CloseHandler
// closes the prepared statements of the handler, and waits for the running statements. When ctx ends, CloseHandler
// interrupts the running statements, which breaks the connection. The error wraps [step.ErrMisuse] if the handler has
// ended the transaction or left a statement running.
func (c *StepConn) CloseHandler(ctx context.Context) error {
	if c.startClosing() && c.handlerTx != nil {
		c.isStuck = !c.closeWithin(ctx)
	}
	if c.isStuck {
		return fmt.Errorf("%w: a statement of the step is still running", step.ErrMisuse)
	}
	c.stateMutex.Lock()
	defer c.stateMutex.Unlock()
	return c.endErr
}

func (c *StepConn) startClosing() (isFirst bool) {
	c.stateMutex.Lock()
	defer c.stateMutex.Unlock()
	isFirst = !c.isClosing
	c.isClosing = true
	return isFirst
}

// closeWithin closes the sql.Tx of the handler, and reports whether closing has finished before the end of ctx.
func (c *StepConn) closeWithin(ctx context.Context) bool {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = c.handlerTx.Rollback() // waits for running statements
		_ = c.handlerDB.Close()
	}()
	select {
	case <-closed:
		return true
	case <-ctx.Done():
		c.interruptStatements()
		<-closed
		return false
	}
}

// IsStuck reports whether CloseHandler has interrupted a statement of the handler. A stuck connection can only be
// closed.
func (c *StepConn) IsStuck() bool { return c.isStuck }

// withInterrupt returns a context for a statement of the handler, which also ends with interruptContext. Calling end
// frees memory.
func (c *StepConn) withInterrupt(ctx context.Context) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(c.interruptContext, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// ExecContext implements [driver.ExecerContext] for the handler.
func (c *StepConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	ctx, end := c.withInterrupt(ctx)
	defer end()
	return c.driverConn.ExecContext(ctx, query, args)
}

// QueryContext implements [driver.QueryerContext] for the handler. The context stays open, because the driver reads the
// rows under the context.
func (c *StepConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	ctx, _ = c.withInterrupt(ctx)
	return c.driverConn.QueryContext(ctx, query, args)
}

// PrepareContext implements [driver.ConnPrepareContext] for the handler.
func (c *StepConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	ctx, end := c.withInterrupt(ctx)
	defer end()
	prepared, err := c.driverConn.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	own, ok := prepared.(driverStmt)
	if !ok {
		err := fmt.Errorf("the driver's statement, a %T, cannot run in a step: %w", prepared, errors.ErrUnsupported)
		return nil, errors.Join(err, prepared.Close())
	}
	return stepStmt{own, c}, nil
}

// stepStmt is a statement prepared by the handler.
type stepStmt struct {
	driverStmt
	conn *StepConn
}

// ExecContext implements [driver.StmtExecContext].
func (s stepStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	ctx, end := s.conn.withInterrupt(ctx)
	defer end()
	return s.driverStmt.ExecContext(ctx, args)
}

// QueryContext implements [driver.StmtQueryContext]. The context stays open as in [StepConn.QueryContext].
func (s stepStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	ctx, _ = s.conn.withInterrupt(ctx)
	return s.driverStmt.QueryContext(ctx, args)
}

// stepEnd implements [driver.Tx].
type stepEnd struct{ conn *StepConn }

// Commit records that the handler has called Commit.
func (e stepEnd) Commit() error {
	e.conn.noteEnd(ErrStepCommits)
	return ErrStepCommits
}

// Rollback records that the handler has called Rollback. A Rollback by CloseHandler is ignored.
func (e stepEnd) Rollback() error {
	e.conn.noteEnd(errStepRolledBack)
	return nil
}

func (c *StepConn) noteEnd(why error) {
	c.stateMutex.Lock()
	defer c.stateMutex.Unlock()
	if !c.isClosing {
		c.endErr = why
	}
}

// Connect implements [driver.Connector].
func (c *StepConn) Connect(context.Context) (driver.Conn, error) { return c, nil }

// Driver implements [driver.Connector]. The store never calls Driver of the sql.DB.
func (c *StepConn) Driver() driver.Driver { return nil }

// Close implements [driver.Conn]. Close does nothing, because the connection belongs to the sql.DB of the store.
func (c *StepConn) Close() error { return nil }

// Begin implements [driver.Conn].
func (c *StepConn) Begin() (driver.Tx, error) { return stepEnd{c}, nil }

// BeginTx implements [driver.ConnBeginTx].
func (c *StepConn) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) {
	return stepEnd{c}, nil
}

// CheckNamedValue implements [driver.NamedValueChecker] with the method of the driver.
func (c *StepConn) CheckNamedValue(value *driver.NamedValue) error {
	if checker, ok := c.driverConn.(driver.NamedValueChecker); ok {
		return checker.CheckNamedValue(value)
	}
	return driver.ErrSkip
}
