package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

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

// The file goes to an object storage, under a name that the client chose. What is guarded is the small request that
// makes a document of it.
func ExampleMiddleware_Handler_upload() {
	storage := map[string]string{}
	put := func(_ http.ResponseWriter, r *http.Request) {
		content, _ := io.ReadAll(r.Body)
		storage[r.PathValue("name")] = string(content) // the same name and content again: nothing changes
	}
	commit := func(w http.ResponseWriter, r *http.Request) {
		name := r.FormValue("file")
		if _, found := storage[name]; !found {
			http.Error(w, "the file has not arrived", http.StatusConflict)
			idempotency.Decide(r.Context(), idempotency.Free) // the same key works when it has
			return
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, "document of ", storage[name])
	}
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser,
		idempotency.Options{Required: true})
	if err != nil {
		panic(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /files/{name}", put) // PUT is not guarded: it needs no key
	mux.Handle("POST /documents", idem.Handler(http.HandlerFunc(commit)))

	send := func(method, path, body string) {
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Idempotency-Key", "1")
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		fmt.Printf("%s %d %q\n", method, w.Code, strings.TrimSpace(w.Body.String()))
	}
	send("POST", "/documents", "file=scan-1")
	send("PUT", "/files/scan-1", "a page")
	send("PUT", "/files/scan-1", "a page")
	send("POST", "/documents", "file=scan-1")
	send("POST", "/documents", "file=scan-1")
	// Output:
	// POST 409 "the file has not arrived"
	// PUT 200 ""
	// PUT 200 ""
	// POST 201 "document of a page"
	// POST 201 "document of a page"
}

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

// tokenClaims are the verified claims of an access token. The authentication puts them into the context.
type tokenClaims struct{ Issuer, Subject, Tenant string }

type tokenKey struct{}

// tokenUser names the caller by tenant, issuer and subject. They stay the same when the token is renewed.
func tokenUser(r *http.Request) (string, error) {
	claims, ok := r.Context().Value(tokenKey{}).(tokenClaims)
	if !ok {
		return "", nil // refused with 401 user-unknown
	}
	if claims.Tenant == "" {
		return "", &idempotency.Error{Status: http.StatusForbidden, Detail: "The token names no tenant."}
	}
	return fmt.Sprintf("%q %q %q", claims.Tenant, claims.Issuer, claims.Subject), nil
}

// Two issuers may give out the same subject, and one person may act for two tenants: these are different users.
func ExampleUserFunc_token() {
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), tokenUser, idempotency.Options{})
	if err != nil {
		panic(err)
	}
	payments := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		op, _ := idempotency.FromContext(r.Context())
		fmt.Fprintln(w, "charged for", op.Key.User)
	}))
	for _, claims := range []any{
		tokenClaims{"https://id.example", "17", "north"},
		tokenClaims{"https://id.example", "17", "south"},
		tokenClaims{"https://other.example", "17", "north"},
		tokenClaims{Issuer: "https://id.example", Subject: "17"},
		nil,
	} {
		r := httptest.NewRequest("POST", "/payments", nil)
		r.Header.Set("Idempotency-Key", "1")
		w := httptest.NewRecorder()
		payments.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), tokenKey{}, claims)))
		fmt.Println(w.Code, w.Body)
	}
	// Output:
	// 200 charged for "north" "https://id.example" "17"
	//
	// 200 charged for "south" "https://id.example" "17"
	//
	// 200 charged for "north" "https://other.example" "17"
	//
	// 403 {"type":"about:blank","title":"Forbidden","status":403,"detail":"The token names no tenant."}
	// 401 {"type":"https://github.com/idempotency-go/idempotency#user-unknown","title":"Caller is unknown","status":401,"detail":"This attempt was not executed. Authenticate, then retry with the same key.","retry":"same-key"}
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

func ExampleNewRedisStore() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer client.Close()
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	if err := store.Check(context.Background()); err != nil {
		log.Print(err) // settings of the server that weaken the promise, each with its risk
	}
	idem, err := idempotency.New(store, account, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	_ = idem.Handler
}

// A service stops in this order: its server, then the middleware, then the client of the store.
func ExampleMiddleware_Shutdown() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	idem, err := idempotency.New(store, account, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Handler: authenticate(idem.Handler(http.HandlerFunc(createPayment)))}

	stop := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		return errors.Join(
			server.Shutdown(ctx), // waits for the handlers
			idem.Shutdown(ctx),   // waits for the answers that are not stored yet
			client.Close(),
		)
	}
	fmt.Println(stop())
	// Output: <nil>
}

// How a service tests that a handler is guarded. Each test has a store of its own, so no test sees keys of another.
func TestPaymentIsChargedOnce(t *testing.T) {
	t.Parallel()
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	idem, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{Required: true})
	require.NoError(t, err)
	charges := 0
	payments := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		charges++
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "a receipt")
	}))
	send := func(key, body string) *httptest.ResponseRecorder {
		r := httptest.NewRequest("POST", "/payments", strings.NewReader(body))
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
		w := httptest.NewRecorder()
		payments.ServeHTTP(w, r)
		return w
	}

	first, again := send("k1", "amount=4200"), send("k1", "amount=4200")
	require.Equal(t, http.StatusCreated, first.Code)
	require.Equal(t, first.Body.String(), again.Body.String())
	require.Equal(t, "true", again.Header().Get("Idempotent-Replayed"))
	require.Equal(t, 1, charges)

	require.Equal(t, http.StatusConflict, send("k1", "amount=9900").Code, "the key of another payment")
	require.Equal(t, http.StatusBadRequest, send("", "amount=4200").Code, "no key")
	require.Equal(t, 1, charges)
}

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
