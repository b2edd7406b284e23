package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/migrate/changeover"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// newVersion is the service with the middleware. It makes the same payments as the old version.
func newVersion(pool *pgxpool.Pool) http.Handler {
	store := pgxstore.New(pool, pgxstore.Options{})
	idem, err := idempotency.New(store, demo.User, idempotency.Options{Required: true})
	demo.Check(err)
	return idem.Handler(http.HandlerFunc(createPayment))
}

func createPayment(w http.ResponseWriter, r *http.Request) {
	amount, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	}
	paid, err := changeover.DoTx(r, "pay", func(tx pgx.Tx) (changeover.Answer, error) {
		return makePayment(r.Context(), tx, r.Header.Get("Idempotency-Key"), string(amount))
	})
	switch {
	case errors.Is(err, changeover.ErrRunning):
		w.Header().Set("Retry-After", "1") // not stored
		http.Error(w, err.Error(), http.StatusConflict)
	case err != nil:
		http.Error(w, "try again", http.StatusServiceUnavailable) // not stored
	default:
		writeAnswer(w, paid)
	}
}

// makePayment makes a payment, for both versions. If the status of the answer is 400 or more, the caller rolls tx back.
func makePayment(ctx context.Context, tx pgx.Tx, key, text string) (changeover.Answer, error) {
	amount, err := strconv.Atoi(text)
	if err != nil {
		return changeover.Answer{Status: http.StatusBadRequest, Body: `{"error":"no amount"}`}, nil
	}
	if _, err := tx.Exec(ctx, "INSERT INTO payments VALUES ($1, $2)", key, amount); err != nil {
		return changeover.Answer{}, err
	}
	if amount > 100 {
		return changeover.Answer{Status: http.StatusUnprocessableEntity, Body: `{"error":"too much"}`}, nil
	}
	return changeover.Answer{Status: http.StatusCreated, Body: fmt.Sprintf(`{"charged":%d}`, amount)}, nil
}
