package idempotency_test

import (
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"time"

	"github.com/idempotency-go/idempotency"
)

// The mistake: the middleware stands outside of the router. The router's own 404 is stored as the answer to the
// request. The retry gets it too, although the next version of the service has the route. The right way is
// mux.Handle("POST /payments", idem.Handler(payments)): then the router answers by itself, and nothing is stored.
func ExampleMiddleware_Handler_incorrectOutsideRouter() {
	idem, err := idempotency.New(
		idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	payments := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "paid") })
	version1, version2 := http.NewServeMux(), http.NewServeMux()
	version2.Handle("POST /payments", payments)

	for _, mux := range []*http.ServeMux{version1, version2} {
		incorrect := idem.Handler(mux)
		r := httptest.NewRequest("POST", "/payments", nil)
		r.Header.Set("Idempotency-Key", "1")
		w := httptest.NewRecorder()
		incorrect.ServeHTTP(w, r)
		fmt.Print(w.Code, " ", w.Body)
	}
	// Output:
	// 404 404 page not found
	// 404 404 page not found
}

// The mistake: http.TimeoutHandler stands inside of the middleware. Its 503 ends the attempt, and a 503 is not stored.
// But the handler goes on, because it does not look at its context. So the retry runs a second handler beside the
// first. The right way is http.TimeoutHandler(idem.Handler(pay), ...): the client gets its 503 in time, and the key
// stays claimed until the handler has returned.
func ExampleMiddleware_Handler_incorrectTimeoutInside() {
	idem, err := idempotency.New(
		idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	var running atomic.Int64
	started, end, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	pay := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		running.Add(1)
		started <- struct{}{}
		<-end // stands for a call that takes long
		ended <- struct{}{}
	})
	incorrect := idem.Handler(http.TimeoutHandler(pay, time.Millisecond, ""))

	for range 2 {
		r := httptest.NewRequest("POST", "/payments", nil)
		r.Header.Set("Idempotency-Key", "1")
		w := httptest.NewRecorder()
		incorrect.ServeHTTP(w, r)
		<-started
		fmt.Println(w.Code, "payments under way:", running.Load())
	}
	close(end)
	<-ended
	<-ended
	// Output:
	// 503 payments under way: 1
	// 503 payments under way: 2
}

// The mistake: outer middleware reads the form, and with it the body. The middleware cannot compare the body with that
// of an earlier request, so it refuses every request. The right way is idem.Handler(checkForm(pay)): a handler gets the
// body from its start.
func ExampleMiddleware_Handler_incorrectBodyReadOutside() {
	opts := idempotency.Options{Logger: slog.New(slog.DiscardHandler)}
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser, opts)
	if err != nil {
		log.Fatal(err)
	}
	checkForm := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.FormValue("csrf") != "token" {
				http.Error(w, "wrong token", http.StatusForbidden)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
	pay := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "paid ", r.FormValue("amount")) })

	for _, handler := range []http.Handler{checkForm(idem.Handler(pay)), idem.Handler(checkForm(pay))} {
		r := httptest.NewRequest("POST", "/payments", strings.NewReader("csrf=token&amount=4200"))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Idempotency-Key", "1")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Println(w.Code, strings.Contains(w.Body.String(), "body-consumed"))
	}
	// Output:
	// 500 true
	// 200 false
}
