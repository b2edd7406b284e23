package idempotency_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/idempotency-go/idempotency"
)

// The order of a whole service, from the inside to the outside.
func ExampleMiddleware_Handler_order() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	idem, err := idempotency.New(store, account, idempotency.Options{})
	if err != nil {
		panic(err)
	}
	pay := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Println("charging the card")
		w.WriteHeader(http.StatusCreated)
	})

	mux := http.NewServeMux()
	mux.Handle("POST /payments", idem.Handler(pay)) // inside the router, on the routes that need it

	handler := authenticate(mux)                               // checks each request, replays included
	handler = http.NewCrossOriginProtection().Handler(handler) // reads headers only
	handler = http.TimeoutHandler(handler, 20*time.Second, "Try again.\n")

	server := &http.Server{Handler: handler, ReadTimeout: 10 * time.Second} // the body is read before the key is claimed

	for _, password := range []string{"secret", "secret", "no idea"} {
		r := httptest.NewRequest("POST", "/payments", nil)
		r.SetBasicAuth("alice", password)
		r.Header.Set("Idempotency-Key", "1")
		w := httptest.NewRecorder()
		server.Handler.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Header()["Idempotent-Replayed"])
	}
	// Output:
	// charging the card
	// 201 []
	// 201 [true]
	// 401 []
}
