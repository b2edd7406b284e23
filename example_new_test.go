package idempotency_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/idempotency-go/idempotency"
)

// New reports every fault of the configuration at once, so that a service does not start with a wrong one.
func ExampleNew() {
	_, err := idempotency.New(nil, nil, idempotency.Options{
		MaxBody: -1,
		Wait:    -time.Second,
	})
	fmt.Println(err)
	// Output:
	// idempotency: Store is nil
	// idempotency: Wait -1s is negative
	// idempotency: MaxBody -1 is negative
	// idempotency: UserFunc is nil: use SingleUser if there is one caller only
}

// A router mounts the middleware on the routes that need it. Other routes, and requests without a key, reach their
// handlers untouched.
func ExampleMiddleware_Handler() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	idem, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	payments := 0
	mux := http.NewServeMux()
	mux.Handle("POST /payments", idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		payments++
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "payment %d", payments)
	})))

	for _, key := range []string{"order-1", "order-1", "order-2", "", ""} {
		r := httptest.NewRequest("POST", "/payments", nil)
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		replayed := w.Header().Get("Idempotent-Replayed") == "true"
		fmt.Printf("%q: %d %s, replayed: %t\n", key, w.Code, w.Body, replayed)
	}
	// Output:
	// "order-1": 201 payment 1, replayed: false
	// "order-1": 201 payment 1, replayed: true
	// "order-2": 201 payment 2, replayed: false
	// "": 201 payment 3, replayed: false
	// "": 201 payment 4, replayed: false
}

// With Required, a request without a key is refused before it reaches the handler. With ValidateUUID, so is one whose
// key is no UUID.
func ExampleOptions_required() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	opts := idempotency.Options{
		Required:    true,
		ValidateKey: idempotency.ValidateUUID,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, e *idempotency.Error) {
			w.WriteHeader(e.Status)
			fmt.Fprint(w, e.Code)
		},
	}
	idem, err := idempotency.New(store, idempotency.SingleUser, opts)
	if err != nil {
		log.Fatal(err)
	}
	handler := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "paid") }))
	for _, key := range []string{"", "order-1", "5f3a1c52-6ed1-4f0c-b7f6-1f8de5f9ca12"} {
		r := httptest.NewRequest("POST", "/payments", nil)
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Body)
	}
	// Output:
	// 400 key-missing
	// 400 key-invalid
	// 200 paid
}
