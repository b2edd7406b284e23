package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/idempotency-go/idempotency"
)

// A handler that knows what its failure means says so. With Refuse, a retry does not charge a card that may have been
// charged.
func ExampleDecide() {
	errNotSent := errors.New("no connection")
	failures := []error{errNotSent, errors.New("connection lost")}
	charge := func(context.Context, string) error { // calls a payment provider
		err := failures[0]
		failures = failures[1:]
		return err
	}
	pay := func(w http.ResponseWriter, r *http.Request) {
		op, _ := idempotency.FromContext(r.Context())
		key := op.DownstreamKey("charge")
		err := charge(r.Context(), key)
		switch {
		case errors.Is(err, errNotSent):
			idempotency.Decide(r.Context(), idempotency.Release) // the provider knows nothing of it
		case err != nil:
			idempotency.Decide(r.Context(), idempotency.Unknown) // the card may have been charged
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
		}
	}

	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser,
		idempotency.Options{Abandoned: idempotency.Refuse})
	if err != nil {
		panic(err)
	}
	for range 3 {
		r := httptest.NewRequest("POST", "/payments", nil)
		r.Header.Set("Idempotency-Key", "1")
		w := httptest.NewRecorder()
		idem.Handler(http.HandlerFunc(pay)).ServeHTTP(w, r)
		fmt.Println(w.Code)
	}
	// Output:
	// 502
	// 502
	// 409
}
