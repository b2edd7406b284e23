package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/database"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/internal/process"
	"github.com/idempotency-go/idempotency/pgxstore"
)

// Where the service is killed.
const claimed, between, after = "the key is claimed", "between the two bookings", "after both bookings"

// serve is the service.
func serve(ctx context.Context) {
	store := pgxstore.NewTx(database.Connect(ctx), pgxstore.Options{})
	idem, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{
		Required: true,
		Wait:     10 * time.Second, // for PostgreSQL to notice that an owner has died, and for other attempts to end
	})
	demo.Check(err)
	process.Serve(idem.Handler(http.HandlerFunc(transfer)))
}

func transfer(w http.ResponseWriter, r *http.Request) {
	process.HaltAt(claimed)
	amount, err := demo.Pieces(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	left, err := book(r.Context(), amount)
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError) // not stored, and what was booked is rolled back
		return
	case left < -limit:
		w.WriteHeader(http.StatusUnprocessableEntity) // stored, and what was booked is rolled back
	default:
		w.WriteHeader(http.StatusCreated) // stored, and what was booked is committed
	}
	fmt.Fprintf(w, "transfer %s: %d", rand.Text(), amount) // no two executions give the same answer
}

// limit is how far the account may be overdrawn.
const limit = 1_000_000

// book books a transfer in the transaction that its record will be committed in, and returns what alice has left.
func book(ctx context.Context, amount int) (left int, err error) {
	op, _ := idempotency.FromContext(ctx)
	tx, _ := pgxstore.Tx(ctx)
	const insert = "INSERT INTO bookings (transfer, account, amount) VALUES ($1, $2, $3)"
	if _, err := tx.Exec(ctx, insert, op.Key.ID, "alice", -amount); err != nil {
		return 0, err
	}
	process.HaltAt(between)
	if _, err := tx.Exec(ctx, insert, op.Key.ID, "bob", amount); err != nil {
		return 0, err
	}
	process.HaltAt(after)
	err = tx.QueryRow(ctx, "SELECT sum(amount) FROM bookings WHERE account = 'alice'").Scan(&left)
	return left, err
}
