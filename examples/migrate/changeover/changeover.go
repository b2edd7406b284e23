// Package changeover lets two versions of a service run side by side: an old one that keeps keys in a table of its own,
// and a new one with the middleware and a step of [pgxstore.DoTx]. It is a recipe: copy it, and change it to your table.
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

// Answer is what a client gets, from either version.
type Answer struct {
	Status int
	Body   string
}

// ErrRunning says that an old instance works on the key. The answer has the status 409 and the field Retry-After, so the
// middleware does not store it.
var ErrRunning = errors.New("a request with this key is running")

// DoTx is [pgxstore.DoTx] while there are old instances. In the transaction of the step it claims the key in the old table
// too, and writes the answer there. An old instance that gets the key waits for that transaction, and finds the answer. If
// the key has a row of an old instance, fn does not run, and the answer is that of the row. What fn does is rolled back if
// its answer has a status of 400 or more.
//
// The transactions must be read committed, which is the default of PostgreSQL.
func DoTx(r *http.Request, name string, fn func(tx pgx.Tx) (Answer, error)) (Answer, error) {
	ctx := r.Context()
	return pgxstore.DoTx(ctx, name, func(tx pgx.Tx) (answer Answer, err error) {
		k := keyOf(r)
		earlier, claimed, err := k.claim(ctx, tx)
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
		end := savepoint.Commit
		if answer.Status >= http.StatusBadRequest {
			end = savepoint.Rollback
		}
		if err := end(ctx); err != nil {
			return answer, err
		}
		return answer, k.complete(ctx, tx, answer)
	})
}

// key names a row as the old version does.
type key struct{ user, key string }

// keyOf reads the key as it was sent: the middleware has removed the quotes from a quoted one, the old version has not.
func keyOf(r *http.Request) key {
	op, _ := idempotency.FromContext(r.Context())
	return key{user: op.Key.User, key: r.Header.Get("Idempotency-Key")}
}

// claim inserts the row. If there is one, claim returns its answer, or ErrRunning if the row has none. It waits for
// transactions that have inserted the row, and have not ended.
func (k key) claim(ctx context.Context, tx pgx.Tx) (earlier Answer, claimed bool, err error) {
	const insert = "INSERT INTO idempotency_keys (user_id, key) VALUES ($1, $2) ON CONFLICT DO NOTHING"
	tag, err := tx.Exec(ctx, insert, k.user, k.key)
	if err != nil || tag.RowsAffected() == 1 {
		return earlier, err == nil, err
	}
	const read = `SELECT coalesce(response_status, 0), coalesce(response_body, '') FROM idempotency_keys
		WHERE user_id = $1 AND key = $2`
	err = tx.QueryRow(ctx, read, k.user, k.key).Scan(&earlier.Status, &earlier.Body) // fails if the row was deleted
	if err == nil && earlier.Status == 0 {
		err = ErrRunning
	}
	return earlier, false, err
}

// complete writes the answer into the row.
func (k key) complete(ctx context.Context, tx pgx.Tx, answer Answer) error {
	const update = "UPDATE idempotency_keys SET response_status = $3, response_body = $4 WHERE user_id = $1 AND key = $2"
	tag, err := tx.Exec(ctx, update, k.user, k.key, answer.Status, answer.Body)
	if err == nil && tag.RowsAffected() != 1 {
		return errors.New("the row is gone")
	}
	return err
}
