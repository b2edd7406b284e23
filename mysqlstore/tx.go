package mysqlstore

import (
	"context"
	"database/sql"
	"errors"

	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

// Tx returns the transaction in which the handler must make its changes. They are committed together with the record of
// the operation, or not at all. Tx returns false if no [TxStore] protects the call. GORM, sqlx, ent, bun and the code
// that sqlc generates take it. A test gives a transaction to a handler by [WithTx].
//
// The transaction ends with the handler. Its Commit returns [ErrCommit]. To undo a part of the changes, use SAVEPOINT
// and ROLLBACK TO SAVEPOINT in SQL. Use it in one goroutine at a time. No statement can run while the rows of another
// one are open.
//
// What becomes of the changes depends on the status of the answer. Below 400 they are committed with it. They are
// committed too if the work of an [idempotency.Runner] sets no status. With 400 or more they are rolled back, and the
// answer alone is stored and replayed, unless the handler calls [KeepEffects]. If the answer is not stored, as with a
// 5xx by default, they are rolled back in any case.
//
// Nothing is committed after a Rollback. An answer of 400 or more is stored all the same. Instead of an answer below
// 400, the client is told to try again.
//
// In these cases nothing is committed or stored, and the client is told to try again:
//
//   - a statement fails because its context is over;
//   - the database has rolled the transaction back, as it does with one of the two in a deadlock;
//   - a statement fails for another reason that may pass (it has waited too long for a lock, lacks resources, or was
//     interrupted), and the answer is 400 or more, without KeepEffects;
//   - somebody still uses the transaction when the handler returns.
//
// Package database/sql does not send a statement whose context had ended before. If that was the context of the
// handler, nothing is committed or stored, as above. If it was a context that the handler had derived, the store does
// not know of the statement. The handler must not answer then as if the statement had been executed, or refused by the
// database.
//
// COMMIT is refused before it is sent if it is the first statement in its string. So is each statement that commits by
// itself, such as BEGIN and CREATE TABLE, a ROLLBACK that names no savepoint, and USE.
//
// A statement that commits cannot be refused if it is hidden: in a stored procedure or a block (BEGIN NOT ATOMIC), in
// an EXECUTE, in an executable comment (/*! */), or behind another statement or SET STATEMENT in one string. It makes
// permanent what the handler did before. From then on the operation counts as carried out, even if the process dies. It
// does not run again. If the handler goes on to answer below 400, that answer is stored. If not, no answer is stored,
// and retries are told that it was not kept.
//
// Tables must be of an engine with transactions, such as InnoDB. The session goes back to the pool: a handler that
// changes it, by a SET, a temporary table or a lock of its own, has to undo that itself.
func Tx(ctx context.Context) (*sql.Tx, bool) { return dialect.Tx(ctx) }

// WithTx returns a context from which [Tx] returns tx. It is for tests of a handler without the middleware. No store
// has a part in it: tx is as its driver has made it, its Commit commits, and [KeepEffects] returns false.
func WithTx(ctx context.Context, tx *sql.Tx) context.Context { return dialect.WithTx(ctx, tx) }

// KeepEffects commits the changes of the handler together with its answer, even if the status of the answer is 400 or
// more. Without it, such an answer is stored and the changes are rolled back. An answer that is not stored, such as a 503,
// always rolls them back.
//
// The handler calls it with its context, at any time before it returns. If the transaction cannot be committed, for
// instance after a Rollback, nothing is stored, and the client is told to try again. KeepEffects returns false, and
// does nothing, if no [TxStore] protects the call. It is safe for concurrent use.
func KeepEffects(ctx context.Context) bool { return dialect.KeepEffects(ctx) }

// ErrCommit is what the Commit of a handler's transaction returns: the transaction is committed with the record, after
// the handler has returned. Leave out the call of Commit, and a deferred Rollback too, which would undo the changes.
// COMMIT, BEGIN, START TRANSACTION and XA in SQL return errors that wrap it.
var ErrCommit = errors.New("mysqlstore: the transaction is committed with the answer, after the handler has " +
	"returned: leave Commit out, or commit a part that is begun with SAVEPOINT")

type txKey struct{}

var dialect = &sqlstore.Dialect{
	Key: txKey{}, ErrCommit: ErrCommit, Exclusive: true, Refuse: refuse, Judge: judge,
}
