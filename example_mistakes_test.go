package idempotency_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"time"

	"github.com/idempotency-go/idempotency"
)

// The mistake: the middleware stands outside of authentication, and believes the name that a request claims. Somebody
// who knows or guesses a key then gets the answer to another user's request, without a password. The right way is
// checkPassword(idem.Handler(handler)), with a UserFunc that returns the account that authentication has let in.
func ExampleMiddleware_Handler_incorrectOutsideAuthentication() {
	claimed := func(r *http.Request) (string, error) {
		name, _, _ := r.BasicAuth() // nobody has checked the password
		return name, nil
	}
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), claimed, idempotency.Options{})
	if err != nil {
		panic(err)
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "card 4242, balance 1000")
	})
	incorrect := idem.Handler(checkPassword(handler))

	for _, password := range []string{"secret", "no idea"} {
		r := httptest.NewRequest("POST", "/cards", nil)
		r.SetBasicAuth("alice", password)
		r.Header.Set("Idempotency-Key", "1")
		w := httptest.NewRecorder()
		incorrect.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Body)
	}
	// Output:
	// 200 card 4242, balance 1000
	// 200 card 4242, balance 1000
}

// checkPassword lets requests with the right password in.
func checkPassword(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password != "secret" {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

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

// The mistake: an answer with a secret is stored like any other. Whoever reads the store reads the secret, and each
// retry gets it again, for as long as Options.TTL says. There are three right ways: Decide with Tombstone keeps the
// answer out of the store, Options.OmitHeaders keeps single fields out, and package seal encrypts the answers in the store.
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

// The mistake: the function returns the same user for every request. All callers share their keys, and Bob gets the
// answer to Alice. The right way is to return the account ID that authentication has found.
func ExampleUserFunc_incorrectConstant() {
	constant := func(*http.Request) (string, error) { return "user", nil }
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), constant, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	incorrect := checkPassword(idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, _, _ := r.BasicAuth()
		fmt.Fprint(w, "the card of ", name)
	})))
	for _, name := range []string{"alice", "bob"} {
		r := httptest.NewRequest("POST", "/cards", nil)
		r.SetBasicAuth(name, "secret")
		r.Header.Set("Idempotency-Key", "1")
		w := httptest.NewRecorder()
		incorrect.ServeHTTP(w, r)
		fmt.Printf("%s gets %s\n", name, w.Body)
	}
	// Output:
	// alice gets the card of alice
	// bob gets the card of alice
}

// The mistake: the function returns the address of the network. A phone that changes from Wi-Fi to a mobile network has
// another address, and its retry is charged again. Behind one router, on the other hand, many people have the same
// address, and share their keys. The right way is to return the account ID that authentication has found.
func ExampleUserFunc_incorrectIPAddress() {
	address := func(r *http.Request) (string, error) {
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		return host, err
	}
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), address, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	charges := 0
	incorrect := checkPassword(idem.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { charges++ })))
	for _, remote := range []string{"192.0.2.1:1234", "198.51.100.7:1234"} {
		r := httptest.NewRequest("POST", "/payments", nil)
		r.RemoteAddr = remote
		r.SetBasicAuth("alice", "secret")
		r.Header.Set("Idempotency-Key", "1")
		incorrect.ServeHTTP(httptest.NewRecorder(), r)
	}
	fmt.Println("charges:", charges)
	// Output: charges: 2
}

// The mistake: the function returns an e-mail address. An address can pass to another account, whose owner then gets
// the answers of the account before. The right way is an account ID that is never given to somebody else.
func ExampleUserFunc_incorrectEmail() {
	accounts := map[string]string{"session-1": "info@example.com", "session-2": "info@example.com"}
	email := func(r *http.Request) (string, error) { return accounts[r.Header.Get("X-Session")], nil }
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), email, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	incorrect := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "the statement for ", r.Header.Get("X-Session"))
	}))
	for _, session := range []string{"session-1", "session-2"} { // of two accounts, one after the other
		r := httptest.NewRequest("POST", "/statements", nil)
		r.Header.Set("X-Session", session)
		r.Header.Set("Idempotency-Key", "1")
		w := httptest.NewRecorder()
		incorrect.ServeHTTP(w, r)
		fmt.Printf("%s gets %s\n", session, w.Body)
	}
	// Output:
	// session-1 gets the statement for session-1
	// session-2 gets the statement for session-1
}
