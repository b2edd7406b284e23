package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/database"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/internal/process"
	"github.com/idempotency-go/idempotency/pgxstore"
)

// Where the service is killed.
const (
	claimed   = "the key is claimed"
	between   = "between the two bookings"
	booked    = "after both bookings"
	committed = "the bookings are committed"
)

// serve is the service.
func serve(ctx context.Context) {
	store := pgxstore.New(database.Connect(ctx), pgxstore.Options{})
	idem, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{
		Required:     true,
		Lease:        time.Second,      // how long a transfer is blocked if its process dies; the default is more patient
		StoreTimeout: time.Second,      // so that a slow disk is none of the failures that are shown here
		Wait:         10 * time.Second, // for the lease of a process that has died
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
	ctx := r.Context()
	id, err := pgxstore.DoTx(ctx, "book", func(tx pgx.Tx) (int64, error) { return book(ctx, tx, amount) })
	switch {
	case errors.Is(err, errTooMuch):
		http.Error(w, err.Error(), http.StatusUnprocessableEntity) // stored, and what was booked is rolled back
		return
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable) // not stored: a retry finds what was booked, or books it
		return
	}
	process.HaltAt(committed)
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "transfer %d: %d", id, amount) // made from the result, which all attempts get
}

// limit is how far the account may be overdrawn.
const limit = 1_000_000

var errTooMuch = errors.New("alice has not so much")

// book books a transfer, and returns the ID of its last booking.
func book(ctx context.Context, tx pgx.Tx, amount int) (id int64, err error) {
	op, _ := idempotency.FromContext(ctx)
	const insert = "INSERT INTO bookings (transfer, account, amount) VALUES ($1, $2, $3) RETURNING id"
	if _, err := tx.Exec(ctx, insert, op.Key.ID, "alice", -amount); err != nil {
		return 0, err
	}
	process.HaltAt(between)
	if err := tx.QueryRow(ctx, insert, op.Key.ID, "bob", amount).Scan(&id); err != nil {
		return 0, err
	}
	process.HaltAt(booked)
	var left int
	err = tx.QueryRow(ctx, "SELECT sum(amount) FROM bookings WHERE account = 'alice'").Scan(&left)
	if err == nil && left < -limit {
		err = errTooMuch
	}
	return id, err
}
