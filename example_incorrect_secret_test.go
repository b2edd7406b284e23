package idempotency_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/idempotency-go/idempotency"
)

// The mistake: an answer with a secret is stored like any other. Whoever reads the store reads the secret, and each
// retry gets it again, for as long as Options.TTL says. There are three right ways: Decide with Tombstone keeps the
// answer out of the store, Options.OmitHeaders keeps single fields out, and Seal encrypts the answers in the store.
func ExampleMiddleware_Handler_incorrectSecretStored() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	idem, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	incorrect := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "sk_live_4711") // the new API key
	}))
	for range 2 {
		r := httptest.NewRequest("POST", "/keys", nil)
		r.Header.Set("Idempotency-Key", "1")
		w := httptest.NewRecorder()
		incorrect.ServeHTTP(w, r)
		fmt.Println("sent:", w.Body)
	}
	ctx := context.Background()
	listing, err := store.List(ctx, idempotency.ListRequest{})
	if err != nil {
		log.Fatal(err)
	}
	entry, err := store.Inspect(ctx, listing.Entries[0].Key)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("stored: %s\n", entry.Response.Body)
	// Output:
	// sent: sk_live_4711
	// sent: sk_live_4711
	// stored: sk_live_4711
}

// A secret is shown once. The operation is completed, so that no retry makes a second API key, but the answer is not
// stored.
func ExampleDecide_tombstone() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	idem, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	handler := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		idempotency.Decide(r.Context(), idempotency.Tombstone)
		fmt.Fprint(w, "sk_live_4711")
	}))
	for range 2 {
		r := httptest.NewRequest("POST", "/keys", nil)
		r.Header.Set("Idempotency-Key", "1")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Body.String() == "sk_live_4711")
	}
	// Output:
	// 200 true
	// 409 false
}
