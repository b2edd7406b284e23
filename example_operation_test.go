package idempotency_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/idempotency-go/idempotency"
)

// A handler passes a key of its operation to another system. If an attempt fails after that call, or dies in it, the
// next attempt sends the same key again, and the other system does not act twice.
func ExampleFromContext() {
	var sent string
	pay := func(w http.ResponseWriter, r *http.Request) {
		op, _ := idempotency.FromContext(r.Context())
		key := op.DownstreamKey("charge") // to send with the call to the payment provider
		fmt.Printf("attempt %d, same key as before: %t\n", op.Attempt, key == sent)
		sent = key
		w.WriteHeader(http.StatusBadGateway) // no answer from there: not stored, may be tried again
	}
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	idem, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{})
	if err != nil {
		panic(err)
	}
	for range 2 {
		r := httptest.NewRequest("POST", "/payments", nil)
		r.Header.Set("Idempotency-Key", "1")
		idem.Handler(http.HandlerFunc(pay)).ServeHTTP(httptest.NewRecorder(), r)
	}
	// Output:
	// attempt 1, same key as before: false
	// attempt 2, same key as before: true
}
