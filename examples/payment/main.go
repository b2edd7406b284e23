// Payment is a service whose handler does both: it charges a card at a payment provider, and then writes a row, in the
// transaction of a transactional store. The database is the PostgreSQL at DATABASE_URL or else a private one. The service
// is killed at each step of an order, and then at random, and the clients try again. No transaction reaches the provider.
// But an attempt that is rolled back has sent the provider the same key as the next one. It ends with the line
//
//	201 orders, 24 deaths: 201 charges, 201 rows with 201 charges, 201 answers replayed
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/database"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/internal/orders"
	"github.com/idempotency-go/idempotency/examples/internal/process"
	"github.com/idempotency-go/idempotency/examples/internal/provider"
	"github.com/idempotency-go/idempotency/pgxstore"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if process.IsService() {
		serve(ctx)
		return
	}
	pool, drop := database.Create(ctx)
	defer drop()
	demo.Check(pgxstore.Migrate(ctx, pool, pgxstore.Options{}))
	// There is no unique constraint: it would hide what the store does.
	_, err := pool.Exec(ctx, "CREATE TABLE payments (id bigint GENERATED ALWAYS AS IDENTITY, pieces int, charge text)")
	demo.Check(err)
	bank, stop := provider.Start()
	defer stop()

	sent := orders.New()
	sent.DieAt(ctx, claimed, charged, written, process.Stored)
	sent.DieAtRandom(ctx, 20)
	defer sent.Stop()
	replayed := sent.Replayed(ctx)
	var rows, distinct int
	demo.Check(pool.QueryRow(ctx, "SELECT count(*), count(DISTINCT charge) FROM payments").Scan(&rows, &distinct))
	verdict := fmt.Sprintf("%v: %d charges, %d rows with %d charges, %d answers replayed",
		sent, bank.Acts(), rows, distinct, replayed)
	fmt.Println(verdict)
	if verdict != "201 orders, 24 deaths: 201 charges, 201 rows with 201 charges, 201 answers replayed" {
		log.Fatal("this is broken")
	}
}

// Where the service is killed.
const claimed, charged, written = "the key is claimed", "the card is charged", "the row is written, and not committed"

func serve(ctx context.Context) {
	store := pgxstore.NewTx(database.Connect(ctx), pgxstore.Options{})
	idem, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{
		Required: true,
		Wait:     10 * time.Second, // for PostgreSQL to notice that an owner has died, and for other attempts to end
	})
	demo.Check(err)
	process.Serve(idem.Handler(http.HandlerFunc(order)))
}

func order(w http.ResponseWriter, r *http.Request) {
	process.HaltAt(claimed)
	pieces, err := demo.Pieces(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest) // what may be refused is looked at before the charge
		return
	}
	op, _ := idempotency.FromContext(r.Context())
	charge, err := provider.Call(r.Context(), provider.Request{Key: op.DownstreamKey("charge")})
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway) // not stored: a retry asks the provider again
		return
	}
	process.HaltAt(charged)
	id, err := write(r.Context(), pieces, charge)
	if err != nil {
		http.Error(w, "try again", http.StatusServiceUnavailable) // not stored: a retry gets the same charge
		return
	}
	process.HaltAt(written)
	w.WriteHeader(http.StatusCreated) // stored, and committed together with the row
	fmt.Fprintf(w, "payment %d, paid by charge %s", id, charge)
}

func write(ctx context.Context, pieces int, charge string) (id int64, err error) {
	tx, _ := pgxstore.Tx(ctx) // there is one: keys are required
	err = tx.QueryRow(ctx, "INSERT INTO payments (pieces, charge) VALUES ($1, $2) RETURNING id", pieces, charge).Scan(&id)
	return id, err
}
