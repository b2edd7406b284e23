package mysqlstore

import (
	"context"
	"database/sql"
	"errors"

	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

// Tx returns the transaction that the handler must make its changes in: they are committed together with the record
// of the operation, or not at all. It returns false where no [TxStore] protects the call. GORM, sqlx, ent, bun and
// the code that sqlc generates take it. A test gives one to a handler by [WithTx].
//
// The transaction ends with the handler. Its Commit returns [ErrCommit]. To undo a part of the changes, use SAVEPOINT
// and ROLLBACK TO SAVEPOINT in SQL. Like any other, it can be used by one goroutine at a time, and by no statement
// while the rows of another one are open.
//
// What becomes of the changes depends on the status of the answer that is stored. Below 400 they are committed with
// it; so they are if the work of an [idempotency.Runner] sets no status. With 400 or more they are rolled back, and
// the answer is stored and replayed; [KeepEffects] commits them even so.
//
// Nothing is committed after a Rollback. An answer of 400 or more is stored then, too; in place of any other the
// client is told to try again.
//
// Nothing is committed or stored, and the client is told to try again, if a statement fails because its context is
// over; if the database has rolled the transaction back, as it does with one of the two in a deadlock; if a statement
// fails for another reason that may pass (a wait for a lock that took too long, a lack of resources, an intervention)
// and the answer is 400 or more; and if somebody still uses the transaction when the handler returns.
//
// Package database/sql does not pass on a statement whose context has ended before. If that is the context of the
// handler, nothing is committed or stored, as above. If it is one that the handler has made, the store does not know of
// the statement: the handler must not answer as if it had been made, or refused by the database.
//
// A statement that commits by itself is refused before it is sent, if its text begins with it: COMMIT, BEGIN, CREATE
// TABLE and the like. One that is hidden, in a stored procedure, in an executable comment (/*! */), or behind another
// statement or SET STATEMENT in one string, makes permanent what the handler did before. The operation counts as carried out from then on, also if the process dies:
// it does not run again, and retries are told that its answer was not kept, unless the handler goes on to answer
// below 400. An answer of 400 or more is not stored then.
//
// Tables must be of an engine with transactions, such as InnoDB.
func Tx(ctx context.Context) (*sql.Tx, bool) { return dialect.Tx(ctx) }

// WithTx returns a context from which [Tx] returns tx. It is for tests of a handler without the middleware. There is
// no store: Commit is that of tx, and so is all else.
func WithTx(ctx context.Context, tx *sql.Tx) context.Context { return dialect.WithTx(ctx, tx) }

// KeepEffects commits what the handler does in its transaction together with its answer, also if the status of the
// answer is 400 or more. Without it, such an answer is stored and what the handler did is rolled back.
//
// The handler calls it with its context at any time before it returns. If the transaction cannot be committed then,
// also after a Rollback, nothing is stored, and the client is told to try again. KeepEffects returns false where no
// [TxStore] protects the call.
func KeepEffects(ctx context.Context) bool { return dialect.KeepEffects(ctx) }

// ErrCommit is what the Commit of a handler's transaction returns: it is committed with the record, after the handler
// has returned. Leave the Commit out, and the Rollback that is deferred in front of it.
var ErrCommit = errors.New("mysqlstore: the transaction is committed with the answer, after the handler has " +
	"returned: leave Commit out, or commit a part that is begun with SAVEPOINT")

type txKey struct{}

var dialect = &sqlstore.Dialect{
	Key: txKey{}, ErrCommit: ErrCommit, Exclusive: true, Refuse: refuse, Judge: judge,
}
