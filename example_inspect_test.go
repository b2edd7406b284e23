package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/idempotency-go/idempotency"
)

// The support asks what became of a key, and lets the operation run again.
func ExampleInspector() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	idem, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	r := httptest.NewRequest("POST", "/payments", nil)
	r.Header.Set("Idempotency-Key", "order-1")
	idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "card expired", http.StatusPaymentRequired)
	})).ServeHTTP(httptest.NewRecorder(), r)

	ctx := context.Background()
	user, _ := idempotency.SingleUser(nil)
	key := idempotency.Key{User: user, Endpoint: "POST /payments", ID: "order-1"}
	entry, err := store.Inspect(ctx, key.Bounded())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s, attempt %d: %d %s", entry.State, entry.Attempt, entry.Status, entry.Response.Body)

	if err := store.Forget(ctx, entry); err != nil {
		log.Fatal(err)
	}
	_, err = store.Inspect(ctx, key)
	fmt.Println(errors.Is(err, idempotency.ErrNoRecord))
	// Output:
	// completed, attempt 1: 402 card expired
	// true
}

// List shows the largest records, and how many there are of each state.
func ExampleInspector_list() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	for id, answer := range map[string]string{"1": "short", "2": "a longer answer", "3": ""} {
		key := idempotency.Key{User: "billing", Endpoint: "invoices", ID: id}
		_, _, _ = runner.Do(ctx, key, nil, func(context.Context) (idempotency.Response, error) {
			if answer == "" {
				return idempotency.Response{}, errors.New("the printer is out of paper") // may be tried again
			}
			return idempotency.Response{Body: []byte(answer)}, nil
		})
	}
	listing, err := store.List(ctx, idempotency.ListRequest{Largest: true, Limit: 1})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("largest:", listing.Entries[0].Key.ID)
	fmt.Println("completed:", listing.Totals[idempotency.StateCompleted].Records)
	fmt.Println("released:", listing.Totals[idempotency.StateReleased].Records)
	// Output:
	// largest: 2
	// completed: 2
	// released: 1
}
