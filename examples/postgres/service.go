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
	var amount int
	if _, err := fmt.Fscan(r.Body, &amount); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err := book(r.Context(), amount); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError) // not stored, and what was booked is rolled back
		return
	}
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "transfer %s: %d", rand.Text(), amount) // no two executions give the same answer
}

// book books a transfer in the transaction that its record will be committed in.
func book(ctx context.Context, amount int) error {
	op, _ := idempotency.FromContext(ctx)
	tx, _ := pgxstore.Tx(ctx)
	const insert = "INSERT INTO bookings (transfer, account, amount) VALUES ($1, $2, $3)"
	if _, err := tx.Exec(ctx, insert, op.Key.ID, "alice", -amount); err != nil {
		return err
	}
	process.HaltAt("between the two bookings")
	if _, err := tx.Exec(ctx, insert, op.Key.ID, "bob", amount); err != nil {
		return err
	}
	process.HaltAt("after both bookings")
	return nil
}
