// Refuse is a service whose handler charges a card at a provider without idempotency keys. The service refuses to repeat an
// interrupted order, because a second attempt might charge the card twice. An operator asks the provider whether an interrupted
// order was charged: the provider has recorded the ID of the operation. The records of the service are in a file. The program
// kills the service at each step of an order, and afterwards at random. The program needs nothing else to run, and ends with the
// line
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
		runService()
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
	sent.DieAt(ctx) // kills nothing: the card is charged, and the provider's answer is lost
	for i, want := range []string{"409, charges: 0", "409, charges: 1", "201, charges: 1", "409, charges: 1"} {
		key := sent.Keys[i]
		if got := fmt.Sprintf("%d, charges: %d", sent.Answered[key].Status, bank.ActsFor(referenceOf(key))); got != want {
			log.Fatalf("this is broken: order %d: %s, not %s", i, got, want)
		}
	}
	sent.DieAtRandom(ctx, 8)
	sent.Replayed(ctx)
	verdict := sent.String() + countCharges(sent, bank)
	fmt.Println(verdict)
	if verdict != "84 orders, 11 deaths: 0 charged twice, 0 answered 201 and not charged, 0 with another answer" {
		log.Fatal("this is broken")
	}
}

// countCharges compares the charges of the provider with the answers to all orders, and returns the end of the verdict.
func countCharges(sent *orders.Orders, bank *provider.Provider) string {
	interrupted := make(map[int]int) // interrupted orders by their number of charges
	twice, unpaid := 0, 0
	for _, key := range sent.Keys {
		n := bank.ActsFor(referenceOf(key))
		if n > 1 {
			twice++
		}
		switch sent.Answered[key].Status {
		case http.StatusConflict:
			interrupted[n]++
		case http.StatusCreated:
			unpaid += 1 - min(n, 1)
		}
	}
	fmt.Printf("outcome unknown: %d orders, %d of them charged\n", interrupted[0]+interrupted[1], interrupted[1])
	others := len(sent.Keys) - len(sent.With(http.StatusCreated)) - len(sent.With(http.StatusConflict))
	return fmt.Sprintf(": %d charged twice, %d answered 201 and not charged, %d with another answer", twice, unpaid, others)
}

// referenceOf returns the ID of the operation of key, which the provider has recorded for the order.
func referenceOf(key string) string {
	return idempotency.Key{User: user, Endpoint: "POST /orders", ID: key}.OperationID().String()
}

// Places where the program kills the service.
const claimed, charged = "the key is claimed", "the card is charged"

// user is the customer of all orders.
const user = "alice"

func runService() {
	store, err := sqlitestore.Open(context.Background(), os.Getenv("FILE"), sqlitestore.Options{})
	demo.Check(err)
	idem, err := idempotency.New(store, func(*http.Request) (string, error) { return user, nil }, idempotency.Options{
		Required:  true,
		Abandoned: idempotency.Refuse,
		Lease:     3 * time.Second,  // after the lease, a retry learns of the interruption; the default is longer
		Wait:      10 * time.Second, // longer than Lease, because the retry waits for the end of the lease
	})
	demo.Check(err)
	process.Serve(idem.Handler(http.HandlerFunc(placeOrder)))
}

func placeOrder(w http.ResponseWriter, r *http.Request) {
	process.HaltAt(claimed)
	op, _ := idempotency.FromContext(r.Context())
	charge, err := provider.Call(r.Context(), provider.Request{Reference: op.ID.String()})
	if err != nil {
		idempotency.Decide(r.Context(), idempotency.Unknown) // the card may have been charged, so treat the order as after a crash
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	process.HaltAt(charged)
	w.WriteHeader(http.StatusCreated)
	fmt.Fprint(w, "paid by charge ", charge)
}
