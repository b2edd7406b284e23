package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"sync"
)

// Bridged is a transaction that the handler has by package database/sql.
type Bridged interface {
	// Prepare prepares a statement. It may return nil instead.
	Prepare(ctx context.Context, query string) (*sql.Stmt, error)

	// Exec runs a statement: the one that Prepare has returned for the query, unless that is nil.
	Exec(ctx context.Context, query string, prepared *sql.Stmt, args []driver.NamedValue) (driver.Result, error)

	// Query is Exec for a statement with rows.
	Query(ctx context.Context, query string, prepared *sql.Stmt, args []driver.NamedValue) (driver.Rows, error)

	// Commit and Rollback are what the handler calls.
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
}

// Bridge is the way from a [sql.Tx] to a transaction: a transaction of package database/sql with a driver of its own, which
// passes statements on. So nobody but the store can commit.
type Bridge struct {
	mu     sync.Mutex
	tx     *sql.Tx // nil: nobody has asked for it
	ctx    context.Context
	cancel context.CancelFunc
	closed bool
}

// Open returns the transaction. It lasts until Close, whatever becomes of the context of the handler.
func (b *Bridge) Open(handler context.Context, to Bridged) *sql.Tx {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.tx == nil {
		b.ctx, b.cancel = context.WithCancel(context.WithoutCancel(handler))
		db := sql.OpenDB(&bridgeConn{b.ctx, to})
		b.tx, _ = db.BeginTx(b.ctx, nil) // sends nothing, and fails only if its context has ended
		_ = db.Close()                   // the transaction goes on; nobody else needs it
		if b.closed {
			b.cancel()
			_ = b.tx.Rollback() // of package database/sql alone, because its context has ended
		}
	}
	return b.tx
}

// isOpen reports whether somebody has asked for the transaction.
func (b *Bridge) isOpen() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.tx != nil
}

// Close ends the transaction for database/sql. If nobody is using it, it also closes the statements that are prepared.
func (b *Bridge) Close(free bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	if b.tx == nil {
		return
	}
	if free {
		_ = b.tx.Rollback() // means nothing to the session by now
	}
	b.cancel()
}

// bridgeConn is the one connection of a [sql.DB], which connects and begins without a word to the database.
type bridgeConn struct {
	ctx context.Context // ends with the transaction
	to  Bridged
}

var (
	_ driver.Connector          = (*bridgeConn)(nil)
	_ driver.ConnBeginTx        = (*bridgeConn)(nil)
	_ driver.ConnPrepareContext = (*bridgeConn)(nil)
	_ driver.ExecerContext      = (*bridgeConn)(nil)
	_ driver.QueryerContext     = (*bridgeConn)(nil)
	_ driver.NamedValueChecker  = (*bridgeConn)(nil)
	_ driver.Tx                 = (*bridgeConn)(nil)
	_ driver.StmtExecContext    = bridgeStmt{}
	_ driver.StmtQueryContext   = bridgeStmt{}
)

func (c *bridgeConn) Connect(context.Context) (driver.Conn, error) { return c, nil }
func (c *bridgeConn) Driver() driver.Driver                        { return nil } // the sql.DB is nobody's
func (c *bridgeConn) Close() error                                 { return nil }
func (c *bridgeConn) Begin() (driver.Tx, error)                    { return c, nil }

func (c *bridgeConn) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return c, nil }

func (c *bridgeConn) Commit() error { return c.to.Commit(c.ctx) }

// Rollback is also what database/sql does when the transaction is in other hands.
func (c *bridgeConn) Rollback() error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	return c.to.Rollback(c.ctx)
}

// CheckNamedValue leaves arguments as they are, for the driver of the database to check.
func (c *bridgeConn) CheckNamedValue(*driver.NamedValue) error { return nil }

func (c *bridgeConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return c.to.Exec(ctx, query, nil, args)
}

func (c *bridgeConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return c.to.Query(ctx, query, nil, args)
}

func (c *bridgeConn) Prepare(query string) (driver.Stmt, error) {
	return c.PrepareContext(c.ctx, query)
}

func (c *bridgeConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	prepared, err := c.to.Prepare(ctx, query)
	if err != nil {
		return nil, err
	}
	return bridgeStmt{c.to, query, prepared}, nil
}

// bridgeStmt is a statement that the handler has prepared.
type bridgeStmt struct {
	to       Bridged
	query    string
	prepared *sql.Stmt
}

func (s bridgeStmt) NumInput() int { return -1 } // the driver of the database counts

func (s bridgeStmt) Close() error {
	if s.prepared == nil {
		return nil
	}
	return s.prepared.Close()
}

func (s bridgeStmt) Exec([]driver.Value) (driver.Result, error) { return nil, driver.ErrSkip } // database/sql calls those
func (s bridgeStmt) Query([]driver.Value) (driver.Rows, error)  { return nil, driver.ErrSkip } // with a context instead

func (s bridgeStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return s.to.Exec(ctx, s.query, s.prepared, args)
}

func (s bridgeStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return s.to.Query(ctx, s.query, s.prepared, args)
}
