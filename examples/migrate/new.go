package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/migrate/changeover"
	"github.com/idempotency-go/idempotency/pgxstore"
)

// newVersion makes the same payments, with the middleware.
func newVersion(pool *pgxpool.Pool) http.Handler {
	store := pgxstore.NewTx(pool, pgxstore.Options{})
	idem, err := idempotency.New(store, demo.User, idempotency.Options{Required: true})
	demo.Check(err)
	return idem.Handler(changeover.Handler(http.HandlerFunc(createPayment)))
}

func createPayment(w http.ResponseWriter, r *http.Request) {
	tx, ok := pgxstore.Tx(r.Context())
	if !ok {
		http.Error(w, "payments need the middleware", http.StatusInternalServerError)
		return
	}
	amount, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	}
	status, body, err := pay(r.Context(), tx, r.Header.Get("Idempotency-Key"), string(amount))
	if err != nil {
		http.Error(w, "try again", http.StatusServiceUnavailable) // rolled back, not stored
		return
	}
	answer(w, status, body)
}

// pay makes a payment. It is what both versions have in common. The caller rolls back if the status is 400 or more.
func pay(ctx context.Context, tx pgx.Tx, key, text string) (status int, body string, err error) {
	amount, err := strconv.Atoi(text)
	if err != nil {
		return http.StatusBadRequest, `{"error":"no amount"}`, nil
	}
	if _, err := tx.Exec(ctx, "INSERT INTO payments VALUES ($1, $2)", key, amount); err != nil {
		return 0, "", err
	}
	if amount > 100 {
		return http.StatusUnprocessableEntity, `{"error":"too much"}`, nil
	}
	return http.StatusCreated, fmt.Sprintf(`{"charged":%d}`, amount), nil
}
