package idempotency_test

import (
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/idempotency-go/idempotency"
)

// A UserFunc returns the account that authentication has found. If it cannot tell, it returns an error. An *Error is
// the answer to the client.
func ExampleUserFunc() {
	user := func(r *http.Request) (string, error) {
		name, ok := r.Context().Value(accountKey{}).(string)
		if !ok {
			return "", &idempotency.Error{
				Status: http.StatusServiceUnavailable,
				Title:  "Authentication is down",
				Err:    errors.New("no account in the context"),
			}
		}
		return name, nil
	}
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), user, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	r := httptest.NewRequest("POST", "/payments", nil)
	r.Header.Set("Idempotency-Key", "1")
	w := httptest.NewRecorder()
	idem.Handler(http.HandlerFunc(createPayment)).ServeHTTP(w, r)
	fmt.Println(w.Code, w.Body)
	// Output: 503 {"type":"about:blank","title":"Authentication is down","status":503}
}

// A service that only one other service calls has no users to tell apart.
func ExampleSingleUser() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxUserBytes: 256 << 20}) // all of it for the one user
	idem, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	handler := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "paid") }))
	r := httptest.NewRequest("POST", "/payments", nil)
	r.Header.Set("Idempotency-Key", "1")
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	fmt.Println(w.Code, w.Body)
	// Output: 200 paid
}
