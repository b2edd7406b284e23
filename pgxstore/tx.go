package pgxstore

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

// Tx returns the transaction in which the handler must make its changes. They are committed together with the record of
// the operation, or not at all. Tx returns false if no [TxStore] protects the call. [SQLTx] returns the same
// transaction for package database/sql. A test gives a transaction to a handler by [WithTx].
//
// The transaction ends with the handler. Its Commit is refused, and so is each string that begins with COMMIT. To undo a
// part of the changes, use a savepoint: tx.Begin, or [pgx.BeginFunc]. Its LargeObjects panics, because what pgx returns
// would outlive the transaction: use the functions lo_from_bytea, lo_put and lo_get in SQL.
//
// What becomes of the changes depends on the status of the answer that is stored. Below 400 they are committed with it.
// They are committed too if the work of an [idempotency.Runner] sets no status. With 400 or more they are rolled back,
// and the answer alone is stored and replayed, unless the handler calls [KeepEffects].
//
// Nothing is committed after a Rollback, after an error that no savepoint has undone, and if a savepoint cannot be
// undone or released. An answer of 400 or more is stored all the same. Instead of an answer below 400, the client is
// told to try again.
//
// In these cases nothing is committed or stored, and the client is told to try again:
//
//   - a statement fails because its context is over;
//   - a statement fails for another reason that may pass (a conflict with another transaction, a timeout, a lack of
//     resources), and no savepoint has undone it;
//   - the handler executes ROLLBACK in SQL;
//   - somebody still uses the transaction when the handler returns. One goroutine at a time can use it.
//
// A COMMIT by way of Conn, or behind another statement in one string, is not refused. It makes permanent what the handler
// did before. Everything after it is refused. The operation counts as carried out, and its answer is not kept: the client
// is told to try again, and the retry gets not-replayable.
func Tx(ctx context.Context) (pgx.Tx, bool) {
	switch tx := ctx.Value(txKey{}).(type) {
	case *transaction:
		return tx, true
	case *given:
		return tx.Tx, true
	}
	return nil, false
}

type txKey struct{}

// ErrCommit is what the Commit of a handler's transaction returns: the transaction is committed with the record, after
// the handler has returned. Leave out the call of Commit, and the Rollback that is deferred before it. To commit a part
// of the work, begin it with tx.Begin, whose Commit and Rollback work.
var ErrCommit = errors.New("pgxstore: the transaction is committed with the answer, after the handler has returned: " +
	"leave Commit out, or commit a part that is begun with tx.Begin or SAVEPOINT")

// transaction implements [pgx.Tx] on a connection that a store has begun a transaction on, or on a savepoint in it. That
// pgx begins and commits its own with a round trip for each is what it saves. It is one user of the connection at a
// time: a goroutine that the handler has left behind must neither meet the commit there nor write into the transaction
// of somebody else.
type transaction struct {
	*attempt
	savepoint string // empty: the whole
	closed    atomic.Bool
}

// enter begins a call that sends statements.
func (t *transaction) enter(ctx context.Context, statements ...string) (use, error) {
	if t.closed.Load() {
		return use{}, pgx.ErrTxClosed
	}
	err := t.Enter()
	switch {
	case errors.Is(err, sqlstore.ErrBusy):
		return use{}, err
	case err != nil:
		return use{}, pgx.ErrTxClosed
	case t.status() == 'I':
		err = errEnded // what it did would be committed at once
	case slices.ContainsFunc(statements, commits):
		err = ErrCommit
	}
	if err != nil {
		t.Leave(sqlstore.Stands, err)
		return use{}, err
	}
	u := use{of: t.attempt, ctx: ctx}
	if t.status() == 'T' && slices.ContainsFunc(statements, areSeveral) { // one that has failed answers nothing
		if err = t.identify(ctx); err != nil {
			u.done(err)
		}
	}
	return u, err
}

// identify asks for the ID of the transaction, before the handler may commit it unseen: the server knows of each
// transaction whether it was committed.
func (t *transaction) identify(ctx context.Context) error {
	if t.id != "" {
		return nil
	}
	return t.conn.QueryRow(ctx, "select pg_current_xact_id()::text").Scan(&t.id)
}

// Commit returns ErrCommit, unless it is that of a savepoint.
func (t *transaction) Commit(ctx context.Context) error {
	if t.savepoint != "" {
		return t.endSavepoint(ctx, "release savepoint ")
	}
	_, err := t.enter(ctx, "commit")
	return err
}

// Rollback has nothing committed even if it fails, unless it is that of a savepoint.
func (t *transaction) Rollback(ctx context.Context) error {
	if t.savepoint != "" {
		return t.endSavepoint(ctx, "rollback to savepoint ")
	}
	err := t.Renounce(ctx)
	if errors.Is(err, sql.ErrTxDone) {
		err = pgx.ErrTxClosed
	}
	return err
}

func (t *transaction) Begin(ctx context.Context) (pgx.Tx, error) {
	name := "idempotency_" + strconv.FormatInt(t.savepoints.Add(1), 10)
	if _, err := t.Exec(ctx, "savepoint "+name); err != nil {
		return nil, err
	}
	return &transaction{attempt: t.attempt, savepoint: name}, nil
}

// endSavepoint releases it or rolls it back. If that fails, the handler believes that a part is undone which is not.
func (t *transaction) endSavepoint(ctx context.Context, how string) error {
	if t.closed.Load() {
		return pgx.ErrTxClosed
	}
	_, err := t.Exec(ctx, how+t.savepoint)
	if err != nil {
		t.Spoil(errEnded)
	}
	t.closed.Store(true)
	return err
}

func (t *transaction) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	u, err := t.enter(ctx, sql)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	tag, err := t.conn.Exec(ctx, sql, args...)
	if err == nil && tag.String() == "DEALLOCATE ALL" {
		err = t.conn.DeallocateAll(ctx) // for pgx to forget it, too
	}
	u.done(err)
	return tag, err
}

func (t *transaction) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	u, err := t.enter(ctx, sql)
	if err != nil {
		return refusedRows{err: err}, err
	}
	rows, err := t.conn.Query(ctx, sql, args...)
	if err != nil {
		u.done(err)
		return rows, err
	}
	return &openRows{rows, u}, nil
}

func (t *transaction) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	u, err := t.enter(ctx, sql)
	if err != nil {
		return refusedRows{err: err}
	}
	return &openRow{t.conn.QueryRow(ctx, sql, args...), u}
}

func (t *transaction) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	texts := make([]string, len(batch.QueuedQueries))
	for i, query := range batch.QueuedQueries {
		texts[i] = query.SQL
	}
	u, err := t.enter(ctx, texts...)
	if err != nil {
		return refusedBatch{err: err}
	}
	return &openBatch{t.conn.SendBatch(ctx, batch), u}
}

func (t *transaction) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, from pgx.CopyFromSource) (int64, error) {
	u, err := t.enter(ctx)
	if err != nil {
		return 0, err
	}
	n, err := t.conn.CopyFrom(ctx, table, columns, from)
	u.done(err)
	return n, err
}

func (t *transaction) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	u, err := t.enter(ctx, sql)
	if err != nil {
		return nil, err
	}
	prepared, err := t.conn.Prepare(ctx, name, sql)
	u.done(err)
	return prepared, err
}

// LargeObjects panics: what pgx would return does not end with the transaction.
func (t *transaction) LargeObjects() pgx.LargeObjects {
	panic("pgxstore: no LargeObjects here: call lo_from_bytea, lo_put and lo_get in SQL")
}

// Conn takes a round trip the first time, to identify the transaction: what the handler does with the connection is not
// seen.
func (t *transaction) Conn() *pgx.Conn {
	t.unwatched.Store(true) // the call waits for a check that is under way
	if u, err := t.enter(t.Handler); err == nil {
		u.done(t.identify(u.ctx))
	}
	return t.conn
}
