package idempotency_test

import (
	"fmt"
	"log"
	"net"
	"net/http"
	"net/http/httptest"

	"github.com/idempotency-go/idempotency"
)

// The mistake: the function returns the same user for every request. All callers share their keys, and Bob gets the
// answer to Alice. The right way is to return the account ID that authentication has found.
func ExampleUserFunc_incorrectConstant() {
	constant := func(*http.Request) (string, error) { return "user", nil }
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), constant, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	incorrect := authenticate(idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, _ := account(r)
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
	incorrect := authenticate(idem.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { charges++ })))
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
