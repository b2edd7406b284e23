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

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/step"
)

// TxLeases is a [Leases] that runs steps in transactions.
//
// A transaction locks the record of the claim before the step writes anything. So no other attempt can claim the key while the
// transaction is open, whatever its isolation level is. Renewals rest while the step runs, because they would wait for the lock,
// and because a renewal between the snapshot of the transaction and its lock would make the transaction fail.
type TxLeases interface {
	RowLeases

	// BeginStep begins a transaction on a connection of its own, and calls enter with it. If another transaction is in the way,
	// or the connection breaks, BeginStep begins again, until ctx ends. If BeginStep returns an error, it has ended the transaction.
	BeginStep(ctx context.Context, enter func(ctx context.Context, tx StepTx) error) (StepTx, error)

	// JoinStep returns the statements of the store in a transaction that the handler has begun.
	JoinStep(tx Querier) StepStatements

	// ReadSettled returns the record of a key as soon as no transaction has it locked. It waits until ctx ends.
	ReadSettled(ctx context.Context, digest []byte) (Settled, error)
}

// Settled is what ReadSettled of [TxLeases] returns of a record. It is the zero value if there is no record.
type Settled struct {
	Token   []byte
	Lease   int64
	Entries []byte // checkpoints
}

// Querier is a transaction of package database/sql, or of a library on top of it: a *sql.Tx or *sqlx.Tx, the Tx of ent, or the
// Statement.ConnPool of a transaction of GORM.
type Querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// StepStatements are the statements of the store in the transaction of a step.
type StepStatements interface {
	// Enter renews the lease, which locks the record, and marks the transaction, so that Leave notices if another transaction is
	// open by then. Enter returns when the new lease lapses, or 0 if the claim does not hold the record.
	Enter(ctx context.Context, digest, token []byte, lease time.Duration) (lapses int64, err error)

	// Leave returns an error if the transaction is not the one that Enter has marked. The error wraps [step.ErrMisuse] if the step
	// has ended the marked transaction, but not if the server has rolled it back because of cause, the error of the step.
	Leave(ctx context.Context, cause error) error

	// Keep stores checkpoints as Checkpoint of [Steps] does, and renews the lease.
	Keep(ctx context.Context, digest, token, entries []byte, before int, lease time.Duration) (kept bool, err error)

	// Checkpoints returns the checkpoints of the record, as the transaction sees them, or sql.ErrNoRows.
	Checkpoints(ctx context.Context, digest []byte) (entries []byte, err error)

	// HasRoom is that of [Steps].
	HasRoom(n int) bool
}

// StepTx is a transaction that the store begins for a step.
type StepTx interface {
	StepStatements

	// Open returns the transaction as the handler has it.
	Open(ctx context.Context) (*sql.Tx, error)

	// CloseHandler takes the transaction from the handler. The error wraps [step.ErrMisuse] if the handler has ended it.
	CloseHandler(ctx context.Context) error

	// Commit commits, and gives the connection back. If isRefused is true, the transaction can still be rolled back. Any other
	// error leaves it open whether the transaction is committed.
	Commit(ctx context.Context) (isRefused bool, err error)

	// Rollback rolls back, and gives the connection back.
	Rollback(ctx context.Context)
}

// Errors of steps in transactions.
var (
	// ErrTxEnded says that a step has ended its transaction by itself.
	ErrTxEnded = fmt.Errorf("%w: it has ended its transaction", step.ErrMisuse)

	// ErrStepCommits is what Commit of the transaction of a step returns when it has rolled back.
	ErrStepCommits = fmt.Errorf("%w: rolled back, because only DoTx commits, when the function has returned", step.ErrMisuse)

	// ErrStepChanged says that a checkpoint could not be stored although the claim holds its record.
	ErrStepChanged = errors.New("the record was changed at the same time")
)

const beginStep = "begin the transaction of a step"

var _ idempotency.TxCheckpointer = (*lease)(nil)

// CheckpointTx implements [idempotency.TxCheckpointer].
func (l *lease) CheckpointTx(ctx context.Context, s *idempotency.TxStep) ([]byte, error) {
	run := &txRun{lease: l, step: s}
	var ok bool
	if run.store, ok = l.store.(TxLeases); ok {
		if variable, isSQL := s.Var.(**sql.Tx); isSQL {
			return run.begin(ctx, variable)
		}
		_, isPool := s.Tx.(*sql.DB) // each statement of a pool commits by itself
		if tx, isSQL := s.Tx.(Querier); isSQL && !isPool {
			return run.join(ctx, run.store.JoinStep(tx))
		}
	}
	tx := s.Tx
	if tx == nil {
		tx = s.Var
	}
	return nil, l.store.Failure(beginStep, fmt.Errorf("a %T is no transaction of this store: %w", tx, errors.ErrUnsupported))
}

// txRun is a step in a transaction.
type txRun struct {
	*lease
	store    TxLeases
	step     *idempotency.TxStep
	lapses   int64  // end of the lease that Enter has written; no other statement writes this value
	cause    error  // of the step, if it has failed
	hasLeft  bool   // Leave was called
	leaveErr error  // of Leave
	entries  []byte // checkpoints in the transaction, with the result of this run; nil: the result is not stored
	stored   []byte // result of the step that was stored before
}

// settling returns the context in which a transaction ends. It goes on when ctx ends, until Timeout of the step.
func (r *txRun) settling(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), r.step.Timeout)
}

// enter locks the record in the transaction. From then on renewals rest.
func (r *txRun) enter(ctx context.Context, tx StepStatements) error {
	r.renewals.Lock() // no renewal is under way
	defer r.renewals.Unlock()
	lapses, err := tx.Enter(ctx, r.digest, r.token, r.record.LeaseLeft)
	switch {
	case err != nil:
		return err
	case lapses == 0:
		return idempotency.ErrClaimLost
	}
	r.lapses, r.renewals.rest = lapses, true
	return nil
}

// wake lets renewals go on.
func (r *txRun) wake() {
	r.renewals.Lock()
	defer r.renewals.Unlock()
	r.renewals.rest = false
}

// leave calls Leave once, because a second call would not find the mark of the first one.
func (r *txRun) leave(ctx context.Context, tx StepStatements) error {
	if !r.hasLeft {
		r.hasLeft, r.leaveErr = true, tx.Leave(ctx, r.cause)
	}
	return r.leaveErr
}

// hasEnded reports whether an error of Leave says that the step has ended its transaction by itself. Package database/sql, which
// rolls back when a context ends, is not the step.
func hasEnded(ctx context.Context, err error) bool {
	return errors.Is(err, step.ErrMisuse) || errors.Is(err, sql.ErrTxDone) && ctx.Err() == nil
}

// keep stores the result in the transaction, unless a result was stored before. The checkpoints that the claim knows may differ
// from the stored ones, because the claim does not hear whether the handler has committed a transaction of its own.
func (r *txRun) keep(ctx context.Context, tx StepStatements, data []byte) error {
	if err := r.leave(ctx, tx); err != nil {
		return r.kept(err)
	}
	if !tx.HasRoom(len(r.step.Name) + len(data)) {
		return r.kept(idempotency.ErrStoreFull)
	}
	if kept, err := r.add(ctx, tx, r.checkpoints.known(), data); kept || err != nil {
		return r.kept(err)
	}
	entries, err := tx.Checkpoints(ctx, r.digest)
	if errors.Is(err, sql.ErrNoRows) {
		err = idempotency.ErrClaimLost
	}
	if err != nil {
		return r.kept(err)
	}
	found, err := decode(entries)
	if err != nil {
		return r.kept(err)
	}
	if stored, ok := found[r.step.Name]; ok {
		r.stored = stored
		return nil
	}
	kept, err := r.add(ctx, tx, entries, data)
	if !kept && err == nil {
		err = ErrStepChanged
	}
	return r.kept(err)
}

// add appends the result to the known checkpoints, if exactly these are stored and the step has no result among them.
func (r *txRun) add(ctx context.Context, tx StepStatements, known, data []byte) (kept bool, err error) {
	if has(known, r.step.Name) {
		return false, nil
	}
	entries := encode(known, r.step.Name, data)
	kept, err = tx.Keep(ctx, r.digest, r.token, entries, len(known), r.record.LeaseLeft)
	if kept {
		r.entries = entries
	}
	return kept, err
}

func (r *txRun) kept(err error) error { return r.store.Failure("store the result of a step", err) }

// hasEscaped reports whether the step has ended its transaction by itself, and may have committed. If it has committed, the lease
// is that of the transaction. If this is unknown, because the store does not answer or another attempt has claimed the key since,
// hasEscaped reports true for a step that has certainly ended its transaction.
func (r *txRun) hasEscaped(ctx context.Context, tx StepStatements) bool {
	settling, cancel := r.settling(ctx)
	defer cancel()
	left := r.leave(settling, tx)
	if left == nil {
		return false
	}
	settled, err := r.store.ReadSettled(settling, r.digest)
	if err != nil || !bytes.Equal(settled.Token, r.token) {
		return hasEnded(ctx, left)
	}
	return settled.Lease == r.lapses
}

// begin runs the step in a transaction that the store begins and commits.
func (r *txRun) begin(ctx context.Context, variable **sql.Tx) (stored []byte, err error) {
	begun, cancel := context.WithTimeout(ctx, r.step.Timeout)
	defer cancel()
	tx, err := r.store.BeginStep(begun, func(ctx context.Context, tx StepTx) error { return r.enter(ctx, tx) })
	if err != nil {
		return nil, r.store.Failure(beginStep, err)
	}
	isOver := false
	defer func() { // also when the step panics
		if isOver {
			r.wake()
		} else {
			r.rollback(ctx, tx)
		}
	}()
	if *variable, err = tx.Open(ctx); err != nil {
		return nil, r.store.Failure(beginStep, err)
	}
	data, err := r.step.Run()
	if err != nil {
		r.cause = err
		return nil, err
	}
	stored, isOver, err = r.commit(ctx, tx, data)
	return stored, err
}

// commit stores the result of the step, and commits. IsOver says that the transaction may have been committed.
func (r *txRun) commit(ctx context.Context, tx StepTx, data []byte) (stored []byte, isOver bool, err error) {
	settled, cancel := r.settling(ctx)
	defer cancel()
	if err := tx.CloseHandler(settled); err != nil {
		return nil, false, err
	}
	if err := r.keep(settled, tx, data); err != nil {
		return nil, false, err
	}
	if r.entries == nil {
		return r.stored, false, nil
	}
	isRefused, err := tx.Commit(settled)
	switch {
	case err == nil:
		r.checkpoints.rely(r.entries)
		return data, true, nil
	case isRefused:
		return nil, false, r.store.Failure("commit", err)
	}
	stored, err = r.resolveCommit(ctx, err)
	return stored, true, err
}

// resolveCommit finds out what became of a commit whose reply was lost.
func (r *txRun) resolveCommit(ctx context.Context, cause error) ([]byte, error) {
	ctx, cancel := r.settling(ctx)
	defer cancel()
	settled, err := r.store.ReadSettled(ctx, r.digest)
	switch {
	case err != nil:
		return nil, r.store.Failure("commit, in doubt", fmt.Errorf("%w; %w", cause, err))
	case !bytes.Equal(settled.Token, r.token):
		return nil, r.store.Failure("commit", fmt.Errorf("%w: %w", idempotency.ErrClaimLost, cause))
	}
	found, err := decode(settled.Entries)
	if err != nil {
		return nil, r.kept(err)
	}
	stored, ok := found[r.step.Name]
	if !ok {
		return nil, r.store.Failure("commit", cause)
	}
	r.checkpoints.rely(settled.Entries)
	return stored, nil
}

// rollback undoes the transaction, and finds out whether the step has committed by itself. The end of the lease tells that, and a
// renewal would change it, so renewals rest until then.
func (r *txRun) rollback(ctx context.Context, tx StepTx) {
	settled, cancel := r.settling(ctx)
	defer cancel()
	_ = tx.CloseHandler(settled)
	_ = r.leave(settled, tx)
	tx.Rollback(settled)
	r.step.Escaped = r.hasEscaped(ctx, tx)
	r.wake()
	renewed, cancel := r.settling(ctx)
	defer cancel()
	_ = r.Extend(renewed, r.record.LeaseLeft) // the lease may have lapsed while renewals rested
}

// join runs the step between statements in a transaction of the handler. If it returns an error, the handler rolls back.
func (r *txRun) join(ctx context.Context, tx StepStatements) ([]byte, error) {
	bounded, cancel := context.WithTimeout(ctx, r.step.Timeout)
	defer cancel()
	if err := r.enter(bounded, tx); err != nil {
		return nil, r.store.Failure(beginStep, err)
	}
	defer r.wake()
	isKept := false
	defer func() { // also when the step panics
		if !isKept {
			r.step.Escaped = r.hasEscaped(ctx, tx)
		}
	}()
	data, err := r.step.Run()
	if err != nil {
		r.cause = err
		return nil, err
	}
	settled, cancel := context.WithTimeout(ctx, r.step.Timeout)
	defer cancel()
	err = r.keep(settled, tx, data)
	isKept = err == nil
	switch {
	case hasEnded(ctx, err):
		return nil, ErrTxEnded
	case err != nil:
		return nil, err
	case r.entries == nil:
		return nil, r.kept(ErrStepChanged)
	}
	r.checkpoints.joinRows()
	return data, nil
}

// StepConn is the connection of a driver on which the store has opened a transaction for a step. The handler uses the transaction
// as a [sql.Tx], which neither begins nor ends it: BeginTx, Commit and Rollback send nothing.
type StepConn struct {
	driverConn

	db *sql.DB
	tx *sql.Tx // nil: the handler has no transaction yet

	interrupted context.Context // ends the statements of the handler that still run when CloseHandler has waited long enough
	interrupt   context.CancelFunc
	isStuck     bool // a statement had to be interrupted

	mu        sync.Mutex
	isClosing bool  // CloseHandler was called
	ended     error // why the transaction must be rolled back: the handler has called Commit or Rollback
}

// driverConn is what the drivers of MySQL and SQLite have.
type driverConn interface {
	driver.Conn
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
}

// driverStmt is a prepared statement of these drivers.
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

// errStepRolledBack says that a step has called Rollback.
var errStepRolledBack = fmt.Errorf("%w: it has rolled back its transaction", step.ErrMisuse)

// NewStepConn returns the connection below conn, which nobody else uses until Close.
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

// Open returns the transaction for the handler. It lasts until CloseHandler, even if ctx, the handler's context, ends before.
func (c *StepConn) Open(ctx context.Context) (*sql.Tx, error) {
	ctx = context.WithoutCancel(ctx)
	c.interrupted, c.interrupt = context.WithCancel(ctx)
	c.db = sql.OpenDB(c)
	var err error
	c.tx, err = c.db.BeginTx(ctx, nil)
	return c.tx, err
}

// Send sends a statement of the store.
func (c *StepConn) Send(ctx context.Context, statement string) (driver.Result, error) {
	return c.driverConn.ExecContext(ctx, statement, nil)
}

// ReadBytes sends a query of the store, and returns the one value of its one row.
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
	return bytes.Clone(value), nil // the driver may use its memory again
}

// ScanRow sends a query in a transaction of the handler, and scans its one row. Without a row, the error is sql.ErrNoRows.
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

// CloseHandler ends the transaction for the handler, and for goroutines that the handler has left behind. It closes their
// prepared statements, and waits until none of their statements runs. When ctx ends, CloseHandler interrupts the statements,
// which breaks the connection. The error says that the handler has ended the transaction, or has left a statement running.
func (c *StepConn) CloseHandler(ctx context.Context) error {
	if c.startClosing() && c.tx != nil {
		c.isStuck = !c.closeWithin(ctx)
	}
	if c.isStuck {
		return fmt.Errorf("%w: a statement of it still runs", step.ErrMisuse)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

func (c *StepConn) startClosing() (isFirst bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	isFirst = !c.isClosing
	c.isClosing = true
	return isFirst
}

// closeWithin closes the transaction of package database/sql, and reports whether that was done before ctx ended.
func (c *StepConn) closeWithin(ctx context.Context) bool {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = c.tx.Rollback() // waits for statements that run
		_ = c.db.Close()
	}()
	select {
	case <-closed:
		return true
	case <-ctx.Done():
		c.interrupt()
		<-closed
		return false
	}
}

// IsStuck reports whether CloseHandler has interrupted a statement of the handler. The connection can only be closed then.
func (c *StepConn) IsStuck() bool { return c.isStuck }

// interruptible returns a context for a statement of the handler, which ends with interrupted, too. Calling end saves memory.
func (c *StepConn) interruptible(ctx context.Context) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(c.interrupted, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// ExecContext implements [driver.ExecerContext] for the handler.
func (c *StepConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	ctx, end := c.interruptible(ctx)
	defer end()
	return c.driverConn.ExecContext(ctx, query, args)
}

// QueryContext implements [driver.QueryerContext] for the handler. The context lasts, because the driver reads the rows in it.
func (c *StepConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	ctx, _ = c.interruptible(ctx)
	return c.driverConn.QueryContext(ctx, query, args)
}

// PrepareContext implements [driver.ConnPrepareContext] for the handler.
func (c *StepConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	ctx, end := c.interruptible(ctx)
	defer end()
	prepared, err := c.driverConn.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	own, ok := prepared.(driverStmt)
	if !ok {
		return nil, errors.Join(fmt.Errorf("the driver's statement, a %T: %w", prepared, errors.ErrUnsupported), prepared.Close())
	}
	return stepStmt{own, c}, nil
}

// stepStmt is a statement that the handler has prepared.
type stepStmt struct {
	driverStmt
	conn *StepConn
}

// ExecContext implements [driver.StmtExecContext].
func (s stepStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	ctx, end := s.conn.interruptible(ctx)
	defer end()
	return s.driverStmt.ExecContext(ctx, args)
}

// QueryContext implements [driver.StmtQueryContext]. The context lasts as that of [StepConn.QueryContext].
func (s stepStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	ctx, _ = s.conn.interruptible(ctx)
	return s.driverStmt.QueryContext(ctx, args)
}

// stepEnd implements [driver.Tx].
type stepEnd struct{ conn *StepConn }

// Commit notes that the handler has called Commit.
func (e stepEnd) Commit() error {
	e.conn.end(ErrStepCommits)
	return ErrStepCommits
}

// Rollback notes that the handler has called Rollback, unless CloseHandler does so.
func (e stepEnd) Rollback() error {
	e.conn.end(errStepRolledBack)
	return nil
}

func (c *StepConn) end(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.isClosing {
		c.ended = why
	}
}

// Connect implements [driver.Connector].
func (c *StepConn) Connect(context.Context) (driver.Conn, error) { return c, nil }

// Driver implements [driver.Connector]. Nobody asks the sql.DB for it.
func (c *StepConn) Driver() driver.Driver { return nil }

// Close implements [driver.Conn]. The connection belongs to another sql.DB.
func (c *StepConn) Close() error { return nil }

// Begin implements [driver.Conn].
func (c *StepConn) Begin() (driver.Tx, error) { return stepEnd{c}, nil }

// BeginTx implements [driver.ConnBeginTx].
func (c *StepConn) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) {
	return stepEnd{c}, nil
}

// CheckNamedValue implements [driver.NamedValueChecker], as the driver does.
func (c *StepConn) CheckNamedValue(value *driver.NamedValue) error {
	if checker, ok := c.driverConn.(driver.NamedValueChecker); ok {
		return checker.CheckNamedValue(value)
	}
	return driver.ErrSkip
}
