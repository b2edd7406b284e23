// Payment is a service whose handler charges a card at a payment provider, and then writes a row. Both are steps: the
// provider gets the same key from all attempts, and the row is committed together with its result. The database is the
// PostgreSQL at DATABASE_URL or else a private one. The service is killed at each point of an order, and then at random,
// and the clients try again: the next attempt goes on where the one before has stopped. It ends with the line
//
//	81 orders, 13 deaths: 81 charges, 81 rows with 81 charges, 81 answers replayed
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/database"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/internal/orders"
	"github.com/idempotency-go/idempotency/examples/internal/process"
	"github.com/idempotency-go/idempotency/examples/internal/provider"
	"github.com/idempotency-go/idempotency/step"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
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
	defer sent.Stop()
	sent.DieAt(ctx, "claimed", "charged", "written, not committed", "committed", process.Stored)
	if calls := bank.Calls(); calls != 1 {
		log.Fatalf("this is broken: a charge took %d calls", calls)
	}
	sent.DieAtRandom(ctx, 8)
	replayed := sent.Replayed(ctx)
	var rows, distinct int
	demo.Check(pool.QueryRow(ctx, "SELECT count(*), count(DISTINCT charge) FROM payments").Scan(&rows, &distinct))
	verdict := fmt.Sprintf("%v: %d charges, %d rows with %d charges, %d answers replayed",
		sent, bank.Acts(), rows, distinct, replayed)
	fmt.Println(verdict)
	if verdict != "81 orders, 13 deaths: 81 charges, 81 rows with 81 charges, 81 answers replayed" {
		log.Fatal("this is broken")
	}
}

func serve(ctx context.Context) {
	store := pgxstore.New(database.Connect(ctx), pgxstore.Options{})
	idem, err := idempotency.New(store, idempotency.SingleUser, process.WithShortLease(idempotency.Options{Required: true}))
	demo.Check(err)
	process.Serve(idem.Handler(http.HandlerFunc(order)))
}

func order(w http.ResponseWriter, r *http.Request) {
	process.HaltAt("claimed")
	pieces, err := demo.Pieces(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest) // what may be refused is looked at before the charge
		return
	}
	ctx := step.WithTracer(r.Context(), tell)
	op, _ := idempotency.FromContext(ctx)
	charge, err := step.Do(ctx, "charge", func(ctx context.Context) (string, error) {
		return provider.Call(ctx, provider.Request{Key: op.DownstreamKey("charge")})
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway) // not stored: a retry asks the provider again
		return
	}
	process.HaltAt("charged")
	id, err := pgxstore.DoTx(ctx, "book", func(tx pgx.Tx) (id int64, err error) {
		const insert = "INSERT INTO payments (pieces, charge) VALUES ($1, $2) RETURNING id"
		err = tx.QueryRow(ctx, insert, pieces, charge).Scan(&id)
		process.HaltAt("written, not committed")
		return id, err
	})
	if err != nil {
		http.Error(w, "try again", http.StatusServiceUnavailable) // not stored: a retry goes on with the row
		return
	}
	process.HaltAt("committed")
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "payment %d, paid by charge %s", id, charge)
}

// tell prints what becomes of a step.
func tell(ctx context.Context, name string) (context.Context, func(found bool, err error)) {
	return ctx, func(found bool, err error) {
		switch {
		case err != nil:
			process.Tell(name + " has failed: " + err.Error())
		case found:
			process.Tell(name + " is done already")
		default:
			process.Tell(name + " is done now")
		}
	}
}
