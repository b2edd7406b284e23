package pgxstore

import (
	"context"
	"errors"
	"regexp"
	"strconv"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Tx returns the transaction that the handler must make its changes in: they are committed together with the record
// of the operation, or not at all. It returns false where no [TxStore] protects the call.
//
// The transaction ends with the handler. Its Commit is refused, in SQL too, and after a Rollback the client is told to
// try again. To undo a part of the changes, use a savepoint: tx.Begin, or [pgx.BeginFunc].
//
// A COMMIT that is hidden, behind other statements in one string, in a batch, or sent by way of Conn, cannot be
// refused. It makes permanent what the handler did before; but everything after it is refused, no answer is stored, and
// the client is told to try again.
func Tx(ctx context.Context) (pgx.Tx, bool) {
	tx, ok := ctx.Value(txKey{}).(*transaction)
	return tx, ok
}

type txKey struct{}

// ErrCommit is what the Commit of a handler's transaction returns: it is committed with the record, after the handler
// has returned.
var ErrCommit = errors.New("pgxstore: the transaction is committed when the handler has returned")

// transaction implements [pgx.Tx] on a connection that a store has begun a transaction on. That pgx begins and commits
// its own with a round trip for each is what it saves; and once ended it refuses everything, for goroutines that
// a handler has left behind not to write into the transaction of somebody else.
type transaction struct {
	conn       *pgx.Conn
	ended      atomic.Bool
	savepoints atomic.Int64
}

// check says why the handler cannot use the transaction any more. What it did then would be committed at once.
func (t *transaction) check() error {
	if t.ended.Load() {
		return pgx.ErrTxClosed
	}
	if conn := t.conn.PgConn(); !conn.IsBusy() && conn.TxStatus() == 'I' {
		return errEnded
	}
	return nil
}

// commits matches a statement that would commit the transaction.
var commits = regexp.MustCompile(`(?i)^\s*(?:commit|end|prepare\s+transaction)\b`)

// permit is check for a statement in SQL.
func (t *transaction) permit(sql string) error {
	if err := t.check(); err != nil {
		return err
	}
	if commits.MatchString(sql) {
		return ErrCommit
	}
	return nil
}

// Commit returns ErrCommit.
func (t *transaction) Commit(context.Context) error {
	if err := t.check(); err != nil {
		return err
	}
	return ErrCommit
}

func (t *transaction) Rollback(ctx context.Context) error {
	if t.ended.Swap(true) {
		return pgx.ErrTxClosed
	}
	return rollback(ctx, t.conn)
}

func rollback(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, "rollback")
	return err
}

func (t *transaction) Begin(ctx context.Context) (pgx.Tx, error) {
	name := "idempotency_" + strconv.FormatInt(t.savepoints.Add(1), 10)
	if _, err := t.Exec(ctx, "savepoint "+name); err != nil {
		return nil, err
	}
	return &savepoint{transaction: t, name: name}, nil
}

func (t *transaction) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := t.permit(sql); err != nil {
		return pgconn.CommandTag{}, err
	}
	return t.conn.Exec(ctx, sql, args...)
}

func (t *transaction) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := t.permit(sql); err != nil {
		return refusedRows{err: err}, err
	}
	return t.conn.Query(ctx, sql, args...)
}

func (t *transaction) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := t.permit(sql); err != nil {
		return refusedRows{err: err}
	}
	return t.conn.QueryRow(ctx, sql, args...)
}

func (t *transaction) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	if err := t.check(); err != nil {
		return refusedBatch{err: err}
	}
	return t.conn.SendBatch(ctx, batch)
}

func (t *transaction) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, from pgx.CopyFromSource) (int64, error) {
	if err := t.check(); err != nil {
		return 0, err
	}
	return t.conn.CopyFrom(ctx, table, columns, from)
}

func (t *transaction) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	return t.conn.Prepare(ctx, name, sql)
}

// LargeObjects takes a round trip, for only a transaction of pgx can make what it returns. If the transaction has
// ended, or the connection fails, its large objects panic.
func (t *transaction) LargeObjects() pgx.LargeObjects {
	if t.check() != nil {
		return pgx.LargeObjects{}
	}
	tx, err := t.conn.BeginTx(context.Background(), pgx.TxOptions{BeginQuery: "/* in a transaction already */"})
	if err != nil {
		return pgx.LargeObjects{}
	}
	return tx.LargeObjects()
}

func (t *transaction) Conn() *pgx.Conn { return t.conn }

// savepoint is a transaction within a transaction.
type savepoint struct {
	*transaction
	name   string
	closed bool
}

func (s *savepoint) Commit(ctx context.Context) error { return s.end(ctx, "release savepoint ") }

func (s *savepoint) Rollback(ctx context.Context) error { return s.end(ctx, "rollback to savepoint ") }

func (s *savepoint) end(ctx context.Context, how string) error {
	if s.closed {
		return pgx.ErrTxClosed
	}
	s.closed = true
	_, err := s.Exec(ctx, how+s.name)
	return err
}

// refusedRows are the rows of a query that was not asked.
type refusedRows struct {
	pgx.Rows
	err error
}

func (r refusedRows) Err() error        { return r.err }
func (r refusedRows) Close()            {}
func (r refusedRows) Next() bool        { return false }
func (r refusedRows) Scan(...any) error { return r.err }

func (r refusedRows) CommandTag() pgconn.CommandTag { return pgconn.CommandTag{} }

// refusedBatch are the results of a batch that was not sent.
type refusedBatch struct {
	pgx.BatchResults
	err error
}

func (b refusedBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, b.err }
func (b refusedBatch) Query() (pgx.Rows, error)         { return refusedRows{err: b.err}, b.err }
func (b refusedBatch) QueryRow() pgx.Row                { return refusedRows{err: b.err} }
func (b refusedBatch) Close() error                     { return b.err }
