package idempotency_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/idempotency-go/idempotency"
)

// An Observer counts what became of requests.
func ExampleObserver() {
	outcomes := map[idempotency.Outcome]int{} // a service has a counter for each, which is safe for concurrent use
	opts := idempotency.Options{
		Observer: func(_ context.Context, e idempotency.Event) { outcomes[e.Outcome]++ },
	}
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser, opts)
	if err != nil {
		log.Fatal(err)
	}
	handler := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "paid") }))
	for range 3 {
		r := httptest.NewRequest("POST", "/payments", nil)
		r.Header.Set("Idempotency-Key", "1")
		handler.ServeHTTP(httptest.NewRecorder(), r)
	}
	fmt.Println(outcomes)
	// Output: map[executed:1 replayed:2]
}

// A note links the operation to a payment. A replay tells the Observer the same note, and never tells the client.
func ExampleAnnotate() {
	opts := idempotency.Options{
		Observer: func(_ context.Context, e idempotency.Event) { fmt.Println(e.Outcome, e.Note) },
	}
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser, opts)
	if err != nil {
		log.Fatal(err)
	}
	handler := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := idempotency.Annotate(r.Context(), "pay_4711"); err != nil {
			log.Print(err) // the request has no key, or the note is not valid
		}
		fmt.Fprint(w, "paid")
	}))
	for range 2 {
		r := httptest.NewRequest("POST", "/payments", nil)
		r.Header.Set("Idempotency-Key", "1")
		handler.ServeHTTP(httptest.NewRecorder(), r)
	}
	// Output:
	// executed pay_4711
	// replayed pay_4711
}
