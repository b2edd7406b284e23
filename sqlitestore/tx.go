package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"slices"

	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

// Tx returns the transaction that the handler must make its changes in: they are committed together with the record of
// the operation, or not at all. It returns false where no [TxStore] protects the call. A test gives one to a handler by
// [WithTx].
//
// It is lazy. Nothing begins before the first statement, which waits for its turn: from then on until the handler has
// returned, nobody else writes to the file. So a handler calls other systems first, and uses the transaction last.
//
// The transaction ends with the handler. Its Commit is refused, in SQL too. To undo a part of the changes, use
// SAVEPOINT, ROLLBACK TO and RELEASE.
//
// What becomes of the changes depends on the status of the answer that is stored. Below 400 they are committed with it;
// so they are if the work of an [idempotency.Runner] sets no status. With 400 or more they are rolled back, and the
// answer is stored and replayed; [KeepEffects] commits them even so.
//
// Nothing is committed after a Rollback, and after an error for which SQLite rolls back, as with ON CONFLICT ROLLBACK.
// An answer of 400 or more is stored then, too; in place of any other the client is told to try again.
//
// Nothing is committed or stored, and the client is told to try again, if a statement fails because its context is
// over; if one fails for another reason that may pass, and the answer is 400 or more; and if somebody still uses the
// transaction when the handler returns: a statement runs, or rows are open. If the commit violates a foreign key, the
// client is told not to try again.
//
// Package database/sql does not pass on a statement whose context has ended before. If that is the context of the
// handler, nothing is committed or stored, as above. If it is one that the handler has made, the store does not know of
// the statement: the handler must not answer as if it had been made, or refused by the database.
//
// PRAGMA settings, ATTACH and DETACH are refused, unless they are a part of the transaction, as defer_foreign_keys is.
// So is what would change the table of the records.
func Tx(ctx context.Context) (*sql.Tx, bool) { return dialect.Tx(ctx) }

// KeepEffects commits what the handler does in its transaction together with its answer, also if the status of the
// answer is 400 or more. Without it, such an answer is stored and what the handler did is rolled back.
//
// The handler calls it with its context at any time before it returns. If the transaction cannot be committed then,
// also after a Rollback, nothing is stored, and the client is told to try again. KeepEffects returns false where no
// [TxStore] protects the call.
func KeepEffects(ctx context.Context) bool { return dialect.KeepEffects(ctx) }

// WithTx returns a context from which [Tx] returns tx. It is for tests of a handler without the middleware. There is no
// store: Commit is that of tx, and so is all else.
func WithTx(ctx context.Context, tx *sql.Tx) context.Context { return dialect.WithTx(ctx, tx) }

// ErrCommit is what the Commit of a handler's transaction returns: it is committed with the record, after the handler
// has returned. Leave the Commit out, and the Rollback that is deferred in front of it; or commit a part by SAVEPOINT
// and RELEASE.
var ErrCommit = errors.New("sqlitestore: the transaction is committed with the answer, after the handler has " +
	"returned: leave Commit out, or commit a part by SAVEPOINT and RELEASE")

// errRefused is what a statement returns that would begin or end a transaction.
var errRefused = errors.New("sqlitestore: the transaction is begun and ended by the store: " +
	"use Rollback of the sql.Tx to undo it, and SAVEPOINT and ROLLBACK TO to undo a part")

type txKey struct{}

var dialect = &sqlstore.Dialect{Key: txKey{}, ErrCommit: ErrCommit, Refuse: refuse, Judge: judge}

// refuse returns an error for what the guard would refuse, too, with fewer words.
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

// judge says what the error of a statement means. That SQLite has rolled back is known to the guard.
func judge(err error) sqlstore.Outcome {
	if mayPass(err) {
		return sqlstore.MayPass
	}
	return sqlstore.Stands
}
