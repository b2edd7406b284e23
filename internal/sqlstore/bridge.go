package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"io"
	"reflect"
	"sync"
)

// bridge is the way from a [sql.Tx] to a session: a transaction of package database/sql with a driver of its own, which
// passes statements on. So nobody but the store can commit, and nothing begins before there is a statement.
type bridge struct {
	mu     sync.Mutex
	tx     *sql.Tx // nil: nobody has asked for it
	cancel context.CancelFunc
	closed bool
}

// open returns the transaction. It lasts until close, whatever becomes of the context of the handler.
func (b *bridge) open(s *session) *sql.Tx {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.tx == nil {
		var ctx context.Context
		ctx, b.cancel = context.WithCancel(context.WithoutCancel(s.handler))
		db := sql.OpenDB(&bridgeConn{ctx, s})
		b.tx, _ = db.BeginTx(ctx, nil) // sends nothing, and fails only if its context has ended
		_ = db.Close()                 // the transaction goes on; nobody else needs it
		if b.closed {
			b.end(true)
		}
	}
	return b.tx
}

// isOpen reports whether somebody has asked for the transaction.
func (b *bridge) isOpen() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.tx != nil
}

// close ends the transaction for database/sql. If nobody is using it, it also closes the statements that are prepared.
func (b *bridge) close(free bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	if b.tx != nil {
		b.end(free)
	}
}

func (b *bridge) end(free bool) {
	if free {
		_ = b.tx.Rollback() // means nothing to the session by now
	}
	b.cancel()
}

// bridgeConn is the one connection of a [sql.DB], which connects and begins without a word to the database.
type bridgeConn struct {
	ctx     context.Context // ends with the transaction
	session *session
}

var (
	_ driver.Connector          = (*bridgeConn)(nil)
	_ driver.ConnBeginTx        = (*bridgeConn)(nil)
	_ driver.ConnPrepareContext = (*bridgeConn)(nil)
	_ driver.ExecerContext      = (*bridgeConn)(nil)
	_ driver.QueryerContext     = (*bridgeConn)(nil)
	_ driver.NamedValueChecker  = (*bridgeConn)(nil)
	_ driver.Tx                 = (*bridgeConn)(nil)
)

func (c *bridgeConn) Connect(context.Context) (driver.Conn, error) { return c, nil }
func (c *bridgeConn) Driver() driver.Driver                        { return nil } // the sql.DB is nobody's
func (c *bridgeConn) Close() error                                 { return nil }
func (c *bridgeConn) Begin() (driver.Tx, error)                    { return c, nil }

func (c *bridgeConn) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return c, nil }

func (c *bridgeConn) Commit() error { return c.session.dialect.ErrCommit }

// Rollback is also what database/sql does when the transaction is in other hands.
func (c *bridgeConn) Rollback() error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	return c.session.rollback(c.ctx)
}

// CheckNamedValue leaves arguments as they are, for the driver of the database to check.
func (c *bridgeConn) CheckNamedValue(*driver.NamedValue) error { return nil }

func (c *bridgeConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	conn, use, err := c.session.enter(ctx, c.ctx, query)
	if err != nil {
		return nil, err
	}
	result, err := conn.ExecContext(use.ctx, query, values(args)...)
	use.done(err)
	return result, err
}

func (c *bridgeConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	conn, use, err := c.session.enter(ctx, c.ctx, query)
	if err != nil {
		return nil, err
	}
	rows, err := conn.QueryContext(use.ctx, query, values(args)...)
	return bridged(rows, use, err)
}

func (c *bridgeConn) Prepare(query string) (driver.Stmt, error) {
	return c.PrepareContext(c.ctx, query)
}

func (c *bridgeConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	conn, use, err := c.session.enter(ctx, c.ctx, query)
	if err != nil {
		return nil, err
	}
	stmt, err := conn.PrepareContext(use.ctx, query)
	use.done(err)
	if err != nil {
		return nil, err
	}
	return bridgeStmt{c, query, stmt}, nil
}

// values returns arguments as package database/sql has them.
func values(args []driver.NamedValue) []any {
	values := make([]any, len(args))
	for i, arg := range args {
		values[i] = arg.Value
		if arg.Name != "" {
			values[i] = sql.Named(arg.Name, arg.Value)
		}
	}
	return values
}

// bridgeStmt is a statement that is prepared on the connection of the transaction.
type bridgeStmt struct {
	conn  *bridgeConn
	query string
	stmt  *sql.Stmt
}

var (
	_ driver.StmtExecContext  = bridgeStmt{}
	_ driver.StmtQueryContext = bridgeStmt{}
)

func (s bridgeStmt) Close() error  { return s.stmt.Close() }
func (s bridgeStmt) NumInput() int { return -1 } // the driver of the database counts

func (s bridgeStmt) Exec([]driver.Value) (driver.Result, error) { return nil, driver.ErrSkip } // database/sql calls those
func (s bridgeStmt) Query([]driver.Value) (driver.Rows, error)  { return nil, driver.ErrSkip } // with a context instead

func (s bridgeStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	_, use, err := s.conn.session.enter(ctx, s.conn.ctx, s.query)
	if err != nil {
		return nil, err
	}
	result, err := s.stmt.ExecContext(use.ctx, values(args)...)
	use.done(err)
	return result, err
}

func (s bridgeStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	_, use, err := s.conn.session.enter(ctx, s.conn.ctx, s.query)
	if err != nil {
		return nil, err
	}
	rows, err := s.stmt.QueryContext(use.ctx, values(args)...)
	return bridged(rows, use, err)
}

// bridgeRows are rows that end their statement when they are closed.
type bridgeRows struct {
	rows    *sql.Rows
	use     *use
	columns []*sql.ColumnType
	row     []any // pointers to values
	values  []any
}

var (
	_ driver.RowsColumnTypeDatabaseTypeName = (*bridgeRows)(nil)
	_ driver.RowsColumnTypeLength           = (*bridgeRows)(nil)
	_ driver.RowsColumnTypeNullable         = (*bridgeRows)(nil)
	_ driver.RowsColumnTypeScanType         = (*bridgeRows)(nil)
	_ driver.RowsColumnTypePrecisionScale   = (*bridgeRows)(nil)
)

func bridged(rows *sql.Rows, use *use, err error) (driver.Rows, error) {
	var columns []*sql.ColumnType
	if err == nil {
		columns, err = rows.ColumnTypes()
	}
	if err != nil {
		use.done(err)
		return nil, err
	}
	r := &bridgeRows{rows, use, columns, make([]any, len(columns)), make([]any, len(columns))}
	for i := range r.row {
		r.row[i] = &r.values[i]
	}
	return r, nil
}

func (r *bridgeRows) Columns() []string {
	names := make([]string, len(r.columns))
	for i, column := range r.columns {
		names[i] = column.Name()
	}
	return names
}

func (r *bridgeRows) Close() error {
	closed := r.rows.Close()
	err := r.rows.Err()
	if err == nil {
		err = closed
	}
	r.use.done(err)
	return err
}

func (r *bridgeRows) Next(dest []driver.Value) error {
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return io.EOF
	}
	if err := r.rows.Scan(r.row...); err != nil {
		return err
	}
	for i, value := range r.values {
		dest[i] = value
	}
	return nil
}

func (r *bridgeRows) ColumnTypeDatabaseTypeName(i int) string { return r.columns[i].DatabaseTypeName() }

func (r *bridgeRows) ColumnTypeScanType(i int) reflect.Type { return r.columns[i].ScanType() }

func (r *bridgeRows) ColumnTypeLength(i int) (int64, bool) { return r.columns[i].Length() }

func (r *bridgeRows) ColumnTypeNullable(i int) (nullable, ok bool) { return r.columns[i].Nullable() }

func (r *bridgeRows) ColumnTypePrecisionScale(i int) (precision, scale int64, ok bool) {
	return r.columns[i].DecimalSize()
}
