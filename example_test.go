package idempotency_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/idempotency-go/idempotency"
)

func Example() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	idem, err := idempotency.New(store, account, idempotency.Options{})
	if err != nil {
		log.Fatal(err) // every fault of the options at once
	}
	mux := http.NewServeMux()
	mux.Handle("POST /payments", idem.Handler(http.HandlerFunc(createPayment)))
	handler := authenticate(mux)

	for _, amount := range []string{"42.00", "42.00", "99.00"} {
		r := httptest.NewRequest("POST", "/payments", strings.NewReader(amount))
		r.SetBasicAuth("alice", "secret")
		r.Header.Set("Idempotency-Key", "5f3a1c52-6ed1-4f0c-b7f6-1f8de5f9ca12")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Header().Get("Idempotent-Replayed"), w.Header().Get("Location"))
	}
	// Output:
	// 201  /payments/1
	// 201 true /payments/1
	// 409
}

// createPayment is the handler that must not run twice for one payment.
func createPayment(w http.ResponseWriter, r *http.Request) {
	payments++
	w.Header().Set("Location", fmt.Sprintf("/payments/%d", payments))
	w.WriteHeader(http.StatusCreated)
}

var payments int

type accountKey struct{}

// authenticate lets only known accounts in, and puts the account into the context.
func authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, password, _ := r.BasicAuth()
		if password != "secret" {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), accountKey{}, name)))
	})
}

// account returns the account that authenticate has let in. Without one, it returns the empty name, which refuses the
// request.
func account(r *http.Request) (string, error) {
	name, _ := r.Context().Value(accountKey{}).(string)
	return name, nil
}
