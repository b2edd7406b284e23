// Package changeover lets two versions of a service run side by side: an old version with its own table of keys, and a new version
// with the middleware and a step of [pgxstore.DoTx]. The package is a recipe: copy the code, and adapt it to your table.
//
// The table is
//
//	CREATE TABLE idempotency_keys (
//		user_id text, key text, PRIMARY KEY (user_id, key),
//		locked_at timestamptz NOT NULL DEFAULT now(),
//		response_status int, response_body text -- null while the request runs
//	)
package changeover

import (
	"context"
	"errors"
	"net/http"

	"github.com/jackc/pgx/v5"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// Answer is the answer to a client. Both versions give the same answer.
type Answer struct {
	Status int
	Body   string
}

// ErrRunning means that an old instance is working on the key. The handler should answer 409 with the field Retry-After, because
// the middleware does not store such an answer.
var ErrRunning = errors.New("a request with this key is running")

// DoTx replaces [pgxstore.DoTx] while old instances exist. In the transaction of the step, DoTx also claims the key in the old
// table, and writes the answer there. An old instance that gets the same key waits for the end of this transaction, and then finds
// the answer. If an old instance has already inserted a row for the key, DoTx returns the answer of the row without a call of fn.
// If the answer of fn has a status of 400 or more, DoTx rolls back the statements of fn, and keeps the answer.
//
// The transactions must have the isolation level READ COMMITTED, the default of PostgreSQL.
func DoTx(r *http.Request, name string, fn func(tx pgx.Tx) (Answer, error)) (Answer, error) {
	ctx := r.Context()
	return pgxstore.DoTx(ctx, name, func(tx pgx.Tx) (answer Answer, err error) {
		key := rowKeyOf(r)
		earlier, claimed, err := key.claimRow(ctx, tx)
		if err != nil || !claimed {
			return earlier, err
		}
		savepoint, err := tx.Begin(ctx)
		if err != nil {
			return answer, err
		}
		if answer, err = fn(savepoint); err != nil {
			return answer, err
		}
		endSavepoint := savepoint.Commit
		if answer.Status >= http.StatusBadRequest {
			endSavepoint = savepoint.Rollback
		}
		if err := endSavepoint(ctx); err != nil {
			return answer, err
		}
		return answer, key.storeAnswer(ctx, tx, answer)
	})
}

// rowKey is the primary key of a row in the old table.
type rowKey struct{ userID, key string }

// rowKeyOf returns the user and the key of r. The key is read from the header, because the middleware removes the quotes around a
// quoted key, and the old version keeps them.
func rowKeyOf(r *http.Request) rowKey {
	op, _ := idempotency.FromContext(r.Context())
	return rowKey{userID: op.Key.User, key: r.Header.Get("Idempotency-Key")}
}

// claimRow inserts the row of the key. If the row exists, claimRow returns the row's answer, or ErrRunning if the answer is null.
// If a running transaction has inserted the row, claimRow first waits for the end of this transaction.
func (k rowKey) claimRow(ctx context.Context, tx pgx.Tx) (earlier Answer, claimed bool, err error) {
	const insert = "INSERT INTO idempotency_keys (user_id, key) VALUES ($1, $2) ON CONFLICT DO NOTHING"
	tag, err := tx.Exec(ctx, insert, k.userID, k.key)
	if err != nil || tag.RowsAffected() == 1 {
		return earlier, err == nil, err
	}
	const read = `SELECT coalesce(response_status, 0), coalesce(response_body, '') FROM idempotency_keys
		WHERE user_id = $1 AND key = $2`
	err = tx.QueryRow(ctx, read, k.userID, k.key).Scan(&earlier.Status, &earlier.Body) // fails if the row was deleted
	if err == nil && earlier.Status == 0 {
		err = ErrRunning
	}
	return earlier, false, err
}

// storeAnswer writes the answer into the row.
func (k rowKey) storeAnswer(ctx context.Context, tx pgx.Tx, answer Answer) error {
	const update = "UPDATE idempotency_keys SET response_status = $3, response_body = $4 WHERE user_id = $1 AND key = $2"
	tag, err := tx.Exec(ctx, update, k.userID, k.key, answer.Status, answer.Body)
	if err == nil && tag.RowsAffected() != 1 {
		return errors.New("the row is gone")
	}
	return err
}
