// Downstream is a service whose handler charges a card at a payment provider, and writes nothing. Its records are in the
// Redis at REDIS_URL or else in a private one. The service is killed at each step of an order, and then at random, and
// the clients try again. All attempts at an order send the provider one key. It ends with the line
//
//	81 orders, 11 deaths: 81 charges, 81 answers replayed
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
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if process.IsService() {
		serve()
		return
	}
	_, drop := database.CreateRedis(ctx)
	defer drop()
	bank, stop := provider.Start()
	defer stop()
	// What does the promise rest on? A payment service might refuse to start on some of the findings.
	fmt.Println("Check:", database.ConnectRedis().Check(ctx))

	sent := orders.New()
	sent.DieAt(ctx, claimed, charged, process.Stored)
	sent.DieAtRandom(ctx, 8)
	defer sent.Stop()
	replayed := sent.Replayed(ctx)
	verdict := fmt.Sprintf("%v: %d charges, %d answers replayed", sent, bank.Acts(), replayed)
	fmt.Println(verdict)
	if verdict != "81 orders, 11 deaths: 81 charges, 81 answers replayed" || len(sent.With(http.StatusCreated)) != 81 {
		log.Fatal("this is broken")
	}
}

// Where the service is killed.
const claimed, charged = "the key is claimed", "the card is charged"

func serve() {
	idem, err := idempotency.New(database.ConnectRedis(), idempotency.SingleUser,
		process.WithShortLease(idempotency.Options{Required: true}))
	demo.Check(err)
	process.Serve(idem.Handler(http.HandlerFunc(order)))
}

func order(w http.ResponseWriter, r *http.Request) {
	process.HaltAt(claimed)
	op, _ := idempotency.FromContext(r.Context())
	charge, err := provider.Call(r.Context(), provider.Request{Key: op.DownstreamKey("charge")})
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway) // not stored: a retry asks the provider again
		return
	}
	process.HaltAt(charged)
	w.WriteHeader(http.StatusCreated)
	fmt.Fprint(w, "paid by charge ", charge)
}
