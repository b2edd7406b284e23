package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"slices"

	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

// Tx returns the transaction in which the handler must make its changes. They are committed together with the record of
// the operation, or not at all. Tx returns false if no [TxStore] protects the call. A test gives a transaction to a
// handler by [WithTx].
//
// It is lazy. Nothing begins before the first statement, which waits for its turn. From then on until the handler has
// returned, nobody else writes to the file. So a handler calls other systems first, and uses the transaction last. It
// passes [idempotency.Operation.DownstreamKey] on to them: if nothing is committed, the next attempt calls them with the
// same key. Use the transaction in one goroutine at a time. A statement may run while the rows of another one are open.
//
// The transaction ends with the handler. Its Commit returns [ErrCommit]. BEGIN, COMMIT and ROLLBACK in SQL are refused.
// To undo a part of the changes, use SAVEPOINT, ROLLBACK TO and RELEASE.
//
// What becomes of the changes depends on the status of the answer. Below 400 they are committed with it. They are
// committed too if the work of an [idempotency.Runner] sets no status. With 400 or more they are rolled back, and the
// answer alone is stored and replayed, unless the handler calls [KeepEffects]. If the answer is not stored, as with a
// 5xx by default, they are rolled back in any case.
//
// Nothing is committed after a Rollback, nor after an error for which SQLite rolls back, as with ON CONFLICT ROLLBACK.
// An answer of 400 or more is stored all the same. Instead of an answer below 400, the client is told to try again.
//
// In these cases nothing is committed or stored, and the client is told to try again:
//
//   - a statement fails because its context is over;
//   - a statement fails for another reason that may pass, such as a full disk, and the answer is 400 or more, without
//     KeepEffects;
//   - somebody still uses the transaction when the handler returns: a statement runs, or rows are open.
//
// If the commit violates a foreign key, the client is told not to try again.
//
// Package database/sql does not send a statement whose context had ended before. If that was the context of the
// handler, nothing is committed or stored, as above. If it was a context that the handler had derived, the store does
// not know of the statement. The handler must not answer then as if the statement had been executed, or refused by the
// database.
//
// ATTACH, DETACH and a PRAGMA that would outlast the transaction are refused. A PRAGMA that ends with the transaction,
// such as defer_foreign_keys, is not. A statement that would change the table of the records is refused, too.
func Tx(ctx context.Context) (*sql.Tx, bool) { return dialect.Tx(ctx) }

// KeepEffects commits the changes of the handler together with its answer, even if the status of the answer is 400 or
// more. Without it, such an answer is stored and the changes are rolled back. An answer that is not stored, such as a 503,
// always rolls them back.
//
// The handler calls it with its context, at any time before it returns. If the transaction cannot be committed, for
// instance after a Rollback, nothing is stored, and the client is told to try again. KeepEffects returns false, and
// does nothing, if no [TxStore] protects the call. It is safe for concurrent use.
func KeepEffects(ctx context.Context) bool { return dialect.KeepEffects(ctx) }

// WithTx returns a context from which [Tx] returns tx. It is for tests of a handler without the middleware. No store
// has a part in it: tx is as its driver has made it, its Commit commits, and [KeepEffects] returns false.
func WithTx(ctx context.Context, tx *sql.Tx) context.Context { return dialect.WithTx(ctx, tx) }

// ErrCommit is what the Commit of a handler's transaction returns: the transaction is committed with the record, after
// the handler has returned. Leave out the call of Commit, and a deferred Rollback too, which would undo the changes.
// Code that must end a part of its work can do so by SAVEPOINT and RELEASE.
var ErrCommit = errors.New("sqlitestore: the transaction is committed with the answer, after the handler has " +
	"returned: leave Commit out, or commit a part by SAVEPOINT and RELEASE")

// errRefused is what a statement returns that would begin or end a transaction.
var errRefused = errors.New("sqlitestore: the transaction is begun and ended by the store: " +
	"use Rollback of the sql.Tx to undo it, and SAVEPOINT and ROLLBACK TO to undo a part")

type txKey struct{}

var dialect = &sqlstore.Dialect{Key: txKey{}, ErrCommit: ErrCommit, Refuse: refuse, Judge: judge}

// refuse returns an error for what the guard would refuse as well. This one says what to do instead.
func refuse(query string) error {
	switch words := sqlstore.Words(query, 4); {
	case len(words) == 0:
		return nil
	case words[0] == "commit", words[0] == "end":
		return ErrCommit
	case words[0] == "begin":
		return errRefused
	case words[0] == "rollback" && !slices.Contains(words, "to"):
		return errRefused
	}
	return nil
}

// judge says what the error of a statement means. It never says that SQLite has rolled back: the guard knows that.
func judge(err error) sqlstore.Outcome {
	if mayPass(err) {
		return sqlstore.MayPass
	}
	return sqlstore.Stands
}
