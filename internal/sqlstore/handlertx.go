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

	"github.com/idempotency-go/idempotency/step"
)

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
