// Refuse is a service whose handler charges a card at a provider that takes no idempotency keys. Its records are in a
// file. The service is killed at each step of an order, and then at random. It refuses to repeat what was interrupted,
// so no card is charged twice. Whether such a card was charged, somebody must ask the provider, who has noted the ID of
// the operation. It needs nothing else to run, and ends with the line
//
//	84 orders, 11 deaths: 0 charged twice, 0 answered 201 and not charged, 0 with another answer
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/internal/orders"
	"github.com/idempotency-go/idempotency/examples/internal/process"
	"github.com/idempotency-go/idempotency/examples/internal/provider"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if process.IsService() {
		serve()
		return
	}
	dir, err := os.MkdirTemp("", "refuse")
	demo.Check(err)
	defer os.RemoveAll(dir)
	demo.Check(os.Setenv("FILE", filepath.Join(dir, "idempotency.db")))
	bank, stop := provider.Start()
	defer stop()

	sent := orders.New()
	defer sent.Stop()
	sent.DieAt(ctx, claimed)
	sent.DieAt(ctx, charged)
	sent.DieAt(ctx, process.Stored)
	bank.LoseAnswer()
	sent.DieAt(ctx) // nobody dies, but the service does not learn of the charge
	for i, want := range []string{"409, charges: 0", "409, charges: 1", "201, charges: 1", "409, charges: 1"} {
		key := sent.Keys[i]
		if is := fmt.Sprintf("%d, charges: %d", sent.Answered[key].Status, bank.ActsFor(reference(key))); is != want {
			log.Fatalf("this is broken: order %d: %s, not %s", i, is, want)
		}
	}
	sent.DieAtRandom(ctx, 8)
	sent.Replayed(ctx)
	verdict := sent.String() + look(sent, bank)
	fmt.Println(verdict)
	if verdict != "84 orders, 11 deaths: 0 charged twice, 0 answered 201 and not charged, 0 with another answer" {
		log.Fatal("this is broken")
	}
}

// look looks all orders up at the provider.
func look(sent *orders.Orders, bank *provider.Provider) string {
	charges := make(map[int]int) // of orders that were interrupted
	twice, unpaid := 0, 0
	for _, key := range sent.Keys {
		n := bank.ActsFor(reference(key))
		if n > 1 {
			twice++
		}
		switch sent.Answered[key].Status {
		case http.StatusConflict:
			charges[n]++
		case http.StatusCreated:
			unpaid += 1 - min(n, 1)
		}
	}
	fmt.Printf("outcome unknown: %d orders, %d of them charged\n", charges[0]+charges[1], charges[1])
	others := len(sent.Keys) - len(sent.With(http.StatusCreated)) - len(sent.With(http.StatusConflict))
	return fmt.Sprintf(": %d charged twice, %d answered 201 and not charged, %d with another answer", twice, unpaid, others)
}

// reference is what the provider has noted for the order with a key: the ID of its operation.
func reference(key string) string {
	return idempotency.Key{User: user, Endpoint: "POST /orders", ID: key}.OperationID().String()
}

// Where the service is killed.
const claimed, charged = "the key is claimed", "the card is charged"

// user stands for the customer.
const user = "alice"

func serve() {
	store, err := sqlitestore.Open(context.Background(), os.Getenv("FILE"), sqlitestore.Options{})
	demo.Check(err)
	idem, err := idempotency.New(store, func(*http.Request) (string, error) { return user, nil }, idempotency.Options{
		Required:  true,
		Abandoned: idempotency.Refuse,
		Lease:     3 * time.Second,  // how long until a retry learns that its order was interrupted; the default is more patient
		Wait:      10 * time.Second, // for that
	})
	demo.Check(err)
	process.Serve(idem.Handler(http.HandlerFunc(order)))
}

func order(w http.ResponseWriter, r *http.Request) {
	process.HaltAt(claimed)
	op, _ := idempotency.FromContext(r.Context())
	charge, err := provider.Call(r.Context(), provider.Request{Reference: op.ID.String()})
	if err != nil {
		idempotency.Decide(r.Context(), idempotency.Unknown) // the card may have been charged: as after a crash
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	process.HaltAt(charged)
	w.WriteHeader(http.StatusCreated)
	fmt.Fprint(w, "paid by charge ", charge)
}
