// Order is a service whose handler has three steps: it reserves the goods in a table, charges a card, and ships. The
// database is the PostgreSQL at DATABASE_URL or else a private one. The service is killed between any two steps, and then at
// random. The next attempt goes on where the one before has stopped. It ends with the line
//
//	41 orders, 9 deaths: 41 reservations, 41 charges and 41 parcels, 41 answers replayed
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
	_, err := pool.Exec(ctx, "CREATE TABLE reservations (id bigint GENERATED ALWAYS AS IDENTITY, pieces int)")
	demo.Check(err)
	partner, stop := provider.Start()
	defer stop()

	sent := orders.New()
	defer sent.Stop()
	sent.DieAt(ctx, "claimed", "reserved", "charged", "shipped", process.Stored)
	if calls := partner.Calls(); calls != 2 {
		log.Fatalf("this is broken: a charge and a parcel took %d calls", calls)
	}
	sent.DieAtRandom(ctx, 4)
	replayed := sent.Replayed(ctx)
	var reservations int
	demo.Check(pool.QueryRow(ctx, "SELECT count(*) FROM reservations").Scan(&reservations))
	verdict := fmt.Sprintf("%v: %d reservations, %d charges and %d parcels, %d answers replayed", sent, reservations,
		partner.ActsFor("charge"), partner.ActsFor("ship"), replayed)
	fmt.Println(verdict)
	if verdict != "41 orders, 9 deaths: 41 reservations, 41 charges and 41 parcels, 41 answers replayed" {
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
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answer, err := carryOut(step.WithTracer(r.Context(), tell), pieces)
	if err != nil {
		http.Error(w, "try again", http.StatusServiceUnavailable) // not stored: a retry finds the steps that are done
		return
	}
	w.WriteHeader(http.StatusCreated)
	fmt.Fprint(w, answer)
}

func carryOut(ctx context.Context, pieces int) (answer string, err error) {
	reservation, err := reserve(ctx, pieces)
	if err != nil {
		return "", err
	}
	process.HaltAt("reserved")
	charge, err := call(ctx, "charge")
	if err != nil {
		return "", err
	}
	process.HaltAt("charged")
	parcel, err := call(ctx, "ship")
	if err != nil {
		return "", err
	}
	process.HaltAt("shipped")
	return fmt.Sprintf("reservation %d, charge %s, parcel %s", reservation, charge, parcel), nil
}

// reserve writes a row, in a step that commits it together with its ID.
func reserve(ctx context.Context, pieces int) (id int64, err error) {
	return pgxstore.DoTx(ctx, "reserve", func(tx pgx.Tx) (id int64, err error) {
		err = tx.QueryRow(ctx, "INSERT INTO reservations (pieces) VALUES ($1) RETURNING id", pieces).Scan(&id)
		return id, err
	})
}

// call has the provider act, in a step of that name.
func call(ctx context.Context, name string) (number string, err error) {
	return step.Do(ctx, name, func(ctx context.Context) (string, error) {
		op, _ := idempotency.FromContext(ctx)
		return provider.Call(ctx, provider.Request{Key: op.DownstreamKey(name), Reference: name})
	})
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
