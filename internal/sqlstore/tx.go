package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"sync/atomic"

	"github.com/idempotency-go/idempotency"
)

// SQLAttempt is an attempt whose handler has its transaction by package database/sql alone.
type SQLAttempt interface {
	Attempt

	// Conn returns the connection that a statement of the handler runs on. The transaction may begin with the first
	// call. An error that wraps idempotency.ErrClaimLost says that the key is somebody else's by now.
	Conn(ctx context.Context) (*sql.Conn, error)
}

// Dialect is what the transaction of a handler must know of a database.
type Dialect struct {
	// Key is the key of the transaction in a context.
	Key any

	// ErrCommit is what the handler's Commit returns.
	ErrCommit error

	// Exclusive is that of [Session].
	Exclusive bool

	// Refuse returns an error for a statement that would end the transaction. That statement is not sent.
	Refuse func(query string) error

	// Judge says what the error of a statement means for the transaction.
	Judge func(err error) Outcome
}

// Tx returns the transaction in a context, and whether there is one.
func (d *Dialect) Tx(ctx context.Context) (*sql.Tx, bool) {
	switch tx := ctx.Value(d.Key).(type) {
	case *sqlTx:
		return tx.Bridge.Open(tx.Handler, tx), true
	case *sql.Tx:
		return tx, true
	}
	return nil, false
}

// WithTx returns a context with a transaction that no store has begun.
func (d *Dialect) WithTx(ctx context.Context, tx *sql.Tx) context.Context {
	return context.WithValue(ctx, d.Key, tx)
}

// KeepEffects has the transaction in a context committed whatever the status of the answer is. It returns false if the
// context has no transaction of a store.
func (d *Dialect) KeepEffects(ctx context.Context) bool {
	tx, ok := ctx.Value(d.Key).(*sqlTx)
	if ok {
		tx.Keep()
	}
	return ok
}

// sqlTx is a claim and its transaction. Nothing begins before there is a statement.
type sqlTx struct {
	TxClaim
	dialect *Dialect
	of      SQLAttempt
}

var _ Bridged = (*sqlTx)(nil)

// NewTxClaim returns the claim of an attempt that has the key.
func NewTxClaim(dialect *Dialect, attempt SQLAttempt) idempotency.Claim {
	tx := &sqlTx{dialect: dialect, of: attempt}
	tx.Exclusive = dialect.Exclusive
	tx.Init(attempt, dialect.Key, tx)
	return tx
}

// use is one statement of the handler. It lasts until its rows are closed, which may be after the call that begins it.
type use struct {
	of    *sqlTx
	asked context.Context // that the handler has given
	ctx   context.Context // ends with asked, with the use, and with the transaction
	end   context.CancelFunc
	over  atomic.Bool
}

// enter begins a statement, and returns the connection that it is to run on.
func (tx *sqlTx) enter(ctx context.Context, query string) (*sql.Conn, *use, error) {
	if err := tx.dialect.Refuse(query); err != nil {
		return nil, nil, err
	}
	if err := tx.Enter(); err != nil {
		return nil, nil, err
	}
	u := &use{of: tx, asked: ctx}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(tx.Bridge.ctx, cancel)
	u.ctx, u.end = ctx, func() { stop(); cancel() }
	conn, err := tx.of.Conn(u.ctx)
	if err != nil {
		tx.fail(err)
		u.done(err)
		return nil, nil, err
	}
	return conn, u, nil
}

// done ends a statement. If it has failed and its context is over, the transaction is undone: the handler may believe
// that the statement was executed, or that the database has refused it.
func (u *use) done(err error) {
	if u.over.Swap(true) {
		return
	}
	late := u.asked.Err() != nil
	u.end()
	switch {
	case err == nil:
		u.of.Leave(Stands, nil)
	case late:
		u.of.Leave(Ended, err)
	default:
		u.of.Leave(u.of.dialect.Judge(err), err)
	}
}

// Commit implements [Bridged].
func (tx *sqlTx) Commit(context.Context) error { return tx.dialect.ErrCommit }

// Rollback implements [Bridged].
func (tx *sqlTx) Rollback(ctx context.Context) error { return tx.Renounce(ctx) }

// Prepare implements [Bridged].
func (tx *sqlTx) Prepare(ctx context.Context, query string) (*sql.Stmt, error) {
	conn, use, err := tx.enter(ctx, query)
	if err != nil {
		return nil, err
	}
	stmt, err := conn.PrepareContext(use.ctx, query)
	use.done(err)
	return stmt, err
}

// Exec implements [Bridged].
func (tx *sqlTx) Exec(
	ctx context.Context, query string, prepared *sql.Stmt, args []driver.NamedValue,
) (result driver.Result, err error) {
	conn, use, err := tx.enter(ctx, query)
	if err != nil {
		return nil, err
	}
	if prepared != nil {
		result, err = prepared.ExecContext(use.ctx, values(args)...)
	} else {
		result, err = conn.ExecContext(use.ctx, query, values(args)...)
	}
	use.done(err)
	return result, err
}

// Query implements [Bridged].
func (tx *sqlTx) Query(
	ctx context.Context, query string, prepared *sql.Stmt, args []driver.NamedValue,
) (driver.Rows, error) {
	conn, use, err := tx.enter(ctx, query)
	if err != nil {
		return nil, err
	}
	var rows *sql.Rows
	if prepared != nil {
		rows, err = prepared.QueryContext(use.ctx, values(args)...)
	} else {
		rows, err = conn.QueryContext(use.ctx, query, values(args)...)
	}
	return bridged(rows, use, err)
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
