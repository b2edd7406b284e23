// Package changeover lets two versions of a service run side by side: an old one that keeps keys in a table of its own,
// and a new one with the middleware and [pgxstore.NewTx]. It is a recipe: copy it, and change it to your table.
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
	"bytes"
	"context"
	"errors"
	"net/http"

	"github.com/jackc/pgx/v5"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/pgxstore"
)

// Handler goes between the middleware and next. It claims each key in the old table too, in the transaction of the
// request, and writes the answer there. An old instance that gets the key waits for that transaction, and finds the
// answer. A key that has a row of an old instance is answered from it; next does not run.
//
// The transactions must be read committed, which is the default of PostgreSQL.
func Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tx, ok := pgxstore.Tx(r.Context())
		if !ok { // a request without a key
			next.ServeHTTP(w, r)
			return
		}
		k := keyOf(r)
		earlier, err := k.claim(r.Context(), tx)
		switch {
		case err != nil:
			http.Error(w, "try again", http.StatusServiceUnavailable)
		case earlier == nil:
			execute(w, r, next, tx, k)
		case earlier.status == 0:
			w.Header().Set("Retry-After", "1") // so the middleware does not store this answer
			http.Error(w, "a request with this key is running", http.StatusConflict)
		default:
			w.Header().Set("Content-Type", "application/json")
			earlier.send(w)
		}
	})
}

// key names a row as the old version does.
type key struct{ user, key string }

// keyOf reads the key as it was sent: the middleware has removed the quotes from a quoted one, the old version has not.
func keyOf(r *http.Request) key {
	op, _ := idempotency.FromContext(r.Context())
	return key{user: op.Key.User, key: r.Header.Get("Idempotency-Key")}
}

// claim inserts the row. If there is one, claim returns its answer, which has no status while the request runs. It waits
// for transactions that have inserted the row, and have not ended.
func (k key) claim(ctx context.Context, tx pgx.Tx) (*answer, error) {
	const insert = "INSERT INTO idempotency_keys (user_id, key) VALUES ($1, $2) ON CONFLICT DO NOTHING"
	tag, err := tx.Exec(ctx, insert, k.user, k.key)
	if err != nil || tag.RowsAffected() == 1 {
		return nil, err
	}
	const read = `SELECT coalesce(response_status, 0), coalesce(response_body, '') FROM idempotency_keys
		WHERE user_id = $1 AND key = $2`
	var status int
	var body string
	if err := tx.QueryRow(ctx, read, k.user, k.key).Scan(&status, &body); err != nil {
		return nil, err // also if the row was deleted in the meantime
	}
	return &answer{status: status, body: *bytes.NewBufferString(body)}, nil
}

// execute runs next in a savepoint. The row stays with an answer of 400 or more, and what next did does not.
func execute(w http.ResponseWriter, r *http.Request, next http.Handler, tx pgx.Tx, k key) {
	savepoint, err := tx.Begin(r.Context())
	if err != nil {
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	}
	resp := answer{header: w.Header()}
	next.ServeHTTP(&resp, r)
	if resp.status == 0 {
		resp.status = http.StatusOK
	}
	if err := k.keep(r.Context(), tx, savepoint, &resp); err != nil {
		http.Error(w, "try again", http.StatusServiceUnavailable) // everything is rolled back
		return
	}
	resp.send(w)
}

// keep writes an answer into the row. If the middleware does not store the answer, the row is rolled back with all else.
func (k key) keep(ctx context.Context, tx, savepoint pgx.Tx, resp *answer) error {
	end := savepoint.Commit
	if resp.status >= http.StatusBadRequest {
		end = savepoint.Rollback
		pgxstore.KeepEffects(ctx) // the row, which is all that is left
	}
	if err := end(ctx); err != nil {
		return err
	}
	const update = "UPDATE idempotency_keys SET response_status = $3, response_body = $4 WHERE user_id = $1 AND key = $2"
	tag, err := tx.Exec(ctx, update, k.user, k.key, resp.status, resp.body.String())
	if err == nil && tag.RowsAffected() != 1 {
		return errors.New("the row is gone")
	}
	return err
}

// answer is an [http.ResponseWriter] that keeps what is written.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) {
	if a.status == 0 && status >= http.StatusOK {
		a.status = status
	}
}

func (a *answer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(b)
}

func (a *answer) send(w http.ResponseWriter) {
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body.Bytes())
}
