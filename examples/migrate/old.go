package main

import (
	"errors"
	"io"
	"net/http"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/migrate/changeover"
)

const schema = `
CREATE TABLE payments (key text, amount int);
CREATE TABLE idempotency_keys (
	user_id text, key text, PRIMARY KEY (user_id, key),
	locked_at timestamptz NOT NULL DEFAULT now(),
	response_status int, response_body text -- null while the request runs
)`

// oldVersion is a service with a table of idempotency keys, as many services have. If the process dies between two statements, the
// row stays locked, and does not show whether the payment was made. The service also accepts a key with a different body.
type oldVersion struct{ pool *pgxpool.Pool }

func (s *oldVersion) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	user, _ := demo.User(r)
	key := r.Header.Get("Idempotency-Key")
	const claim = "INSERT INTO idempotency_keys (user_id, key) VALUES ($1, $2) ON CONFLICT DO NOTHING"
	tag, err := s.pool.Exec(ctx, claim, user, key)
	demo.Check(err)
	if tag.RowsAffected() == 0 {
		s.replayAnswer(w, r, user, key)
		return
	}
	amount, err := io.ReadAll(r.Body)
	demo.Check(err)

	var paid changeover.Answer
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		paid, err = makePayment(ctx, tx, key, string(amount))
		if err == nil && paid.Status >= http.StatusBadRequest {
			return errRefused // rolls back
		}
		return err
	})
	if !errors.Is(err, errRefused) {
		demo.Check(err)
	}
	const complete = "UPDATE idempotency_keys SET response_status = $3, response_body = $4 WHERE user_id = $1 AND key = $2"
	_, err = s.pool.Exec(ctx, complete, user, key, paid.Status, paid.Body)
	demo.Check(err)
	writeAnswer(w, paid)
}

var errRefused = errors.New("refused")

func (s *oldVersion) replayAnswer(w http.ResponseWriter, r *http.Request, user, key string) {
	const read = "SELECT response_status, response_body FROM idempotency_keys WHERE user_id = $1 AND key = $2"
	var status *int
	var body *string
	demo.Check(s.pool.QueryRow(r.Context(), read, user, key).Scan(&status, &body))
	if status == nil {
		http.Error(w, "a request with this key is running", http.StatusConflict)
		return
	}
	writeAnswer(w, changeover.Answer{Status: *status, Body: *body})
}

func writeAnswer(w http.ResponseWriter, answer changeover.Answer) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(answer.Status)
	_, _ = io.WriteString(w, answer.Body)
}
