package idempotency_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/idempotency-go/idempotency"
)

// Storable says which answers complete the operation. This service also lets a client try again after 422, which it
// sends while an account is not yet verified.
func ExampleOptions_storable() {
	opts := idempotency.Options{
		Storable: func(resp *idempotency.Response) bool {
			return idempotency.DefaultStorable(resp) && resp.Status != http.StatusUnprocessableEntity
		},
	}
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser, opts)
	if err != nil {
		log.Fatal(err)
	}
	verified := false
	handler := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !verified {
			w.WriteHeader(http.StatusUnprocessableEntity)
		}
	}))
	for range 2 {
		r := httptest.NewRequest("POST", "/transfers", nil)
		r.Header.Set("Idempotency-Key", "1")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Println(w.Code)
		verified = true
	}
	// Output:
	// 422
	// 200
}

// Endpoint names the scope of a key. Two paths that mean the same operation get the same name.
func ExampleOptions_endpoint() {
	opts := idempotency.Options{
		Endpoint: func(r *http.Request) string {
			return strings.Replace(idempotency.DefaultEndpoint(r), " /v1/", " /", 1)
		},
	}
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser, opts)
	if err != nil {
		log.Fatal(err)
	}
	handler := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println("runs for", r.URL.Path)
	}))
	for _, path := range []string{"/payments", "/v1/payments", "/refunds"} {
		r := httptest.NewRequest("POST", path, nil)
		r.Header.Set("Idempotency-Key", "1")
		handler.ServeHTTP(httptest.NewRecorder(), r)
	}
	// Output:
	// runs for /payments
	// runs for /refunds
}

// OmitHeaders keeps fields out of the store. The first client gets them, a replay does not.
func ExampleOptions_omitHeaders() {
	opts := idempotency.Options{OmitHeaders: []string{"Set-Cookie"}}
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser, opts)
	if err != nil {
		log.Fatal(err)
	}
	handler := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Set-Cookie", "session=secret")
		w.Header().Set("Location", "/orders/1")
		w.WriteHeader(http.StatusCreated)
	}))
	for range 2 {
		r := httptest.NewRequest("POST", "/orders", nil)
		r.Header.Set("Idempotency-Key", "1")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Printf("%d %s %q\n", w.Code, w.Header().Get("Location"), w.Header().Get("Set-Cookie"))
	}
	// Output:
	// 201 /orders/1 "session=secret"
	// 201 /orders/1 ""
}

// With Wait, a request that comes while the first one runs is held, and gets the same answer.
func ExampleOptions_wait() {
	opts := idempotency.Options{Wait: time.Minute}
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser, opts)
	if err != nil {
		log.Fatal(err)
	}
	started := make(chan struct{})
	handler := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Println("charging the card")
		close(started)
		fmt.Fprint(w, "paid")
	}))
	answers := make(chan string)
	send := func() {
		r := httptest.NewRequest("POST", "/payments", nil)
		r.Header.Set("Idempotency-Key", "1")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		answers <- fmt.Sprint(w.Code, " ", w.Body)
	}
	go send()
	<-started
	go send()
	fmt.Println(<-answers)
	fmt.Println(<-answers)
	// Output:
	// charging the card
	// 200 paid
	// 200 paid
}
