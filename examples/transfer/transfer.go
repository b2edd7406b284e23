package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// transferOrder is the body of a request. The sender of the money is the authenticated user.
type transferOrder struct {
	To     string `json:"to"`
	Amount int64  `json:"amount"`
	Note   string `json:"note"`
}

// transferMoney is the guarded handler. It moves the money in one step.
func transferMoney(w http.ResponseWriter, r *http.Request) {
	from, _ := demo.User(r)
	var order transferOrder
	err := json.NewDecoder(r.Body).Decode(&order)
	if err != nil || order.Amount <= 0 || order.To == from {
		http.Error(w, "not a transfer", http.StatusBadRequest) // stored and replayed
		return
	}
	ctx := r.Context()
	moved, err := pgxstore.DoTx(ctx, "move", func(tx pgx.Tx) (receipt, error) { return moveMoney(ctx, tx, from, order) })
	switch {
	case errors.Is(err, errNoAccount), errors.Is(err, errTooLittle):
		http.Error(w, err.Error(), http.StatusUnprocessableEntity) // rolled back, stored and replayed
	case err != nil:
		http.Error(w, "try again", http.StatusServiceUnavailable) // not stored
	default:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated) // committed, stored and replayed
		_ = json.NewEncoder(w).Encode(moved)
	}
}

// receipt is the result of the step, and the body of the answer.
type receipt struct {
	ID   int64 `json:"id"`
	Left int64 `json:"left"`
}

var (
	errNoAccount = errors.New("no such account")
	errTooLittle = errors.New("not enough money")
)

// moveMoney updates both balances, and inserts the transfer.
func moveMoney(ctx context.Context, tx pgx.Tx, from string, order transferOrder) (moved receipt, err error) {
	// The accounts are locked in the order of their names, so that two transfers in opposite directions cannot deadlock.
	locked, err := tx.Exec(ctx, "SELECT FROM accounts WHERE name IN ($1, $2) ORDER BY name FOR UPDATE", from, order.To)
	if err != nil {
		return moved, err
	}
	if locked.RowsAffected() != 2 {
		return moved, errNoAccount
	}
	const debit = "UPDATE accounts SET balance = balance - $2 WHERE name = $1 RETURNING balance"
	if err := tx.QueryRow(ctx, debit, from, order.Amount).Scan(&moved.Left); err != nil {
		return moved, err
	}
	if moved.Left < 0 {
		return moved, errTooLittle
	}
	if _, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance + $2 WHERE name = $1", order.To, order.Amount); err != nil {
		return moved, err
	}
	const book = "INSERT INTO transfers (sender, recipient, amount, note) VALUES ($1, $2, $3, $4) RETURNING id"
	err = tx.QueryRow(ctx, book, from, order.To, order.Amount, order.Note).Scan(&moved.ID)
	return moved, err
}

// balanceHandler answers with the balance of the authenticated user.
func balanceHandler(pool *pgxpool.Pool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		account, _ := demo.User(r)
		var balance int64
		err := pool.QueryRow(r.Context(), "SELECT balance FROM accounts WHERE name = $1", account).Scan(&balance)
		if err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, balance)
	})
}
