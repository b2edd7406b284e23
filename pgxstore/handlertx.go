package pgxstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

// handlerTx is the transaction of a step as the handler has it, or a savepoint in it. When DoTx has ended the transaction,
// handlerTx is closed, because a goroutine that the handler has left behind could otherwise use the connection while the connection
// serves another request.
type handlerTx struct {
	tx          pgx.Tx
	isClosed    *atomic.Bool
	isSavepoint bool
}

// closedTx returns ErrTxClosed from all methods, and has no connection.
var closedTx = func() pgx.Tx {
	var batch pgx.Batch
	batch.BeginTx(pgx.TxOptions{})
	return pgx.FailedBatchResults(&batch, pgx.ErrTxClosed).Tx()
}()

func (t *handlerTx) open() pgx.Tx {
	if t.isClosed.Load() {
		return closedTx
	}
	return t.tx
}

func (t *handlerTx) Begin(ctx context.Context) (pgx.Tx, error) {
	savepoint, err := t.open().Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &handlerTx{savepoint, t.isClosed, true}, nil
}

func (t *handlerTx) Commit(ctx context.Context) error {
	if t.isSavepoint {
		return t.open().Commit(ctx)
	}
	return rollbackInstead(t.Rollback(ctx))
}

// rollbackInstead returns the error of a Commit that has rolled back.
func rollbackInstead(err error) error {
	if err != nil { // the transaction was closed, or the connection is broken
		return err
	}
	return sqlstore.ErrStepCommits
}

func (t *handlerTx) Rollback(ctx context.Context) error { return t.open().Rollback(ctx) }

func (t *handlerTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	return t.open().CopyFrom(ctx, table, columns, rows)
}

func (t *handlerTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	return t.open().SendBatch(ctx, b)
}

func (t *handlerTx) LargeObjects() pgx.LargeObjects { return t.open().LargeObjects() }

func (t *handlerTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	return t.open().Prepare(ctx, name, sql)
}

func (t *handlerTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return t.open().Exec(ctx, sql, args...)
}

func (t *handlerTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return t.open().Query(ctx, sql, args...)
}

func (t *handlerTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return t.open().QueryRow(ctx, sql, args...)
}

func (t *handlerTx) Conn() *pgx.Conn { return t.tx.Conn() }

// sqlConn is the connection of a step for package database/sql, and the transaction that is open on it.
type sqlConn struct {
	*stdlib.Conn
	ctx context.Context // of the handler
	tx  *handlerTx
}

// openSQL returns the transaction for package database/sql. It lasts until the store ends it, whatever becomes of ctx.
func openSQL(ctx context.Context, conn *stdlib.Conn, tx *handlerTx) *sql.Tx {
	ctx = context.WithoutCancel(ctx)
	db := sql.OpenDB(&sqlConn{conn, ctx, tx})
	opened, _ := db.BeginTx(ctx, nil) // sends nothing, and fails only if its context has ended
	_ = db.Close()                    // the transaction goes on
	return opened
}

var (
	_ driver.Connector   = (*sqlConn)(nil)
	_ driver.ConnBeginTx = (*sqlConn)(nil)
	_ driver.Tx          = (*sqlConn)(nil)
)

func (c *sqlConn) Connect(context.Context) (driver.Conn, error)                 { return c, nil }
func (c *sqlConn) Driver() driver.Driver                                        { return stdlib.GetDefaultDriver() }
func (c *sqlConn) Close() error                                                 { return nil } // the store gives it back
func (c *sqlConn) Begin() (driver.Tx, error)                                    { return c, nil }
func (c *sqlConn) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return c, nil }
func (c *sqlConn) ResetSession(context.Context) error                           { return nil }

// Commit implements [driver.Tx].
func (c *sqlConn) Commit() error { return c.tx.Commit(c.ctx) }

// Rollback implements [driver.Tx]. When the store has ended the transaction, it calls Rollback for database/sql to close what the
// handler has prepared.
func (c *sqlConn) Rollback() error {
	if err := c.tx.Rollback(c.ctx); !errors.Is(err, pgx.ErrTxClosed) {
		return err
	}
	return nil
}
