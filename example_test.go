package idempotency_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

func Example() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	idem, err := idempotency.New(store, accountFromContext, idempotency.Options{})
	if err != nil {
		log.Fatal(err) // err lists all faults of the options
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

// createPayment must not run twice for the same payment.
func createPayment(w http.ResponseWriter, r *http.Request) {
	paymentCount++
	w.Header().Set("Location", fmt.Sprintf("/payments/%d", paymentCount))
	w.WriteHeader(http.StatusCreated)
}

var paymentCount int

type accountKey struct{}

// authenticate refuses requests without the right password, and puts the name of the account into the context.
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

// accountFromContext returns the account that authenticate has put into the context. The middleware refuses requests with
// an empty name.
func accountFromContext(r *http.Request) (string, error) {
	name, _ := r.Context().Value(accountKey{}).(string)
	return name, nil
}

// New reports all faults of the configuration in one error, so a service with a faulty configuration does not start.
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

// Handler guards a single route. Other routes are not affected, and requests without a key reach their handler as usual.
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

// The order of all handlers in a service, from the innermost to the outermost.
func ExampleMiddleware_Handler_order() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	idem, err := idempotency.New(store, accountFromContext, idempotency.Options{})
	if err != nil {
		panic(err)
	}
	pay := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Println("charging the card")
		w.WriteHeader(http.StatusCreated)
	})

	mux := http.NewServeMux()
	mux.Handle("POST /payments", idem.Handler(pay)) // inside the router, on the routes that need protection

	handler := authenticate(mux)                               // checks each request, replays included
	handler = http.NewCrossOriginProtection().Handler(handler) // reads headers only
	handler = http.TimeoutHandler(handler, 20*time.Second, "Try again.\n")

	server := &http.Server{Handler: handler, ReadTimeout: 10 * time.Second} // the middleware reads the body before the claim

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

// The client uploads a file with PUT, under a name of its choice. PUT needs no guard, because a repeated upload changes
// nothing. The middleware guards the small request that makes a document of the file.
func ExampleMiddleware_Handler_upload() {
	storage := map[string]string{}
	putFile := func(_ http.ResponseWriter, r *http.Request) {
		content, _ := io.ReadAll(r.Body)
		storage[r.PathValue("name")] = string(content) // a repeated upload changes nothing
	}
	createDocument := func(w http.ResponseWriter, r *http.Request) {
		name := r.FormValue("file")
		if _, found := storage[name]; !found {
			http.Error(w, "the file has not arrived", http.StatusConflict)
			idempotency.Decide(r.Context(), idempotency.Free) // a retry with the same key works later
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
	mux.HandleFunc("PUT /files/{name}", putFile) // not guarded, because PUT needs no key
	mux.Handle("POST /documents", idem.Handler(http.HandlerFunc(createDocument)))

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

// A UserFunc returns the account that authentication has found, or an error if the account is unknown. An *Error becomes
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

// tokenClaims are the verified claims of an access token. The authentication puts the claims into the context.
type tokenClaims struct{ Issuer, Subject, Tenant string }

type tokenKey struct{}

// userFromToken names the caller by tenant, issuer and subject, because a renewed token keeps all three.
func userFromToken(r *http.Request) (string, error) {
	claims, ok := r.Context().Value(tokenKey{}).(tokenClaims)
	if !ok {
		return "", nil // refused with 401 user-unknown
	}
	if claims.Tenant == "" {
		return "", &idempotency.Error{Status: http.StatusForbidden, Detail: "The token names no tenant."}
	}
	return fmt.Sprintf("%q %q %q", claims.Tenant, claims.Issuer, claims.Subject), nil
}

// The user consists of tenant, issuer and subject, because two issuers may use the same subject for different people, and
// one person may act for two tenants.
func ExampleUserFunc_token() {
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), userFromToken, idempotency.Options{})
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
	// 401 {"type":"https://idempotency-go.github.io/idempotency/problems#user-unknown","title":"Caller is unknown","status":401,"detail":"This attempt was not executed. Authenticate, then retry with the same key.","retry":"same-key"}
}

// SingleUser is for a service with a single caller, such as another service.
func ExampleSingleUser() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxUserBytes: 256 << 20}) // the single user may fill the store
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
		log.Print(err) // the server settings that weaken the guarantee, each with its risk
	}
	idem, err := idempotency.New(store, accountFromContext, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	_ = idem.Handler
}

// After "not-replayable", the client asks at the address in the refusal what became of its payment, with the same key and
// credentials. The question runs nothing.
func ExampleMiddleware_Status() {
	opts := idempotency.Options{KeyInfo: idempotency.KeyInfo{StatusURL: "/payments/status"}}
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser, opts)
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /payments", idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		idempotency.Decide(r.Context(), idempotency.Tombstone) // the answer has a secret
		w.WriteHeader(http.StatusCreated)
	})))
	mux.Handle("GET /payments/status", idem.Status())

	send := func(method, target string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, target, nil)
		r.Header.Set("Idempotency-Key", "8e03978e-40d5-43e8-bc93-6894a57f9324")
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		return w
	}
	send("POST", "/payments")
	var refusal struct{ StatusURL string }
	if err := json.Unmarshal(send("POST", "/payments").Body.Bytes(), &refusal); err != nil {
		log.Fatal(err)
	}
	fmt.Println(refusal.StatusURL)
	var status struct {
		State  string
		Status int
	}
	if err := json.Unmarshal(send("GET", refusal.StatusURL).Body.Bytes(), &status); err != nil {
		log.Fatal(err)
	}
	fmt.Println(status.State, status.Status)
	// Output:
	// /payments/status?method=POST&path=%2Fpayments
	// not-kept 201
}

// A service stops in this order: its server, then the middleware, then the client of the store.
func ExampleMiddleware_Shutdown() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	idem, err := idempotency.New(store, accountFromContext, idempotency.Options{})
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

// A service tests a guarded handler like this. Each test has its own store, so tests do not share keys.
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

// The mistake: the middleware runs before authentication, and trusts the name in the request. Anybody who knows or guesses
// a key gets the answer to another user's request, without a password. The right way is
// checkPassword(idem.Handler(handler)), with a UserFunc that returns the authenticated account.
func ExampleMiddleware_Handler_incorrectOutsideAuthentication() {
	claimedName := func(r *http.Request) (string, error) {
		name, _, _ := r.BasicAuth() // the password is not checked yet
		return name, nil
	}
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), claimedName, idempotency.Options{})
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

// checkPassword refuses requests without the right password.
func checkPassword(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password != "secret" {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// The mistake: the middleware wraps the router, so the router's own 404 is stored as the answer to the request. The retry
// gets the stored 404, although the next version of the service has the route. The right way is
// mux.Handle("POST /payments", idem.Handler(payments)), because the router then answers 404 itself, and nothing is stored.
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

// The mistake: http.TimeoutHandler is inside the middleware. Its 503 ends the attempt, and a 503 is not stored. The handler
// goes on, because pay ignores its context, so the retry runs a second handler beside the first. The right way is
// http.TimeoutHandler(idem.Handler(pay), ...): the client gets the 503 in time, and the key stays claimed until the handler
// returns.
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
		<-end // stands for a long call
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

// The mistake: outer middleware reads the form, and thereby the body. The idempotency middleware refuses every request,
// because the body cannot be compared with the body of an earlier request. The right way is idem.Handler(checkForm(pay)),
// because a guarded handler gets the body from its start.
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

// The mistake: an answer with a secret is stored like any other answer. All readers of the store can read the secret, and
// each retry gets the secret again, for the duration Options.TTL. There are three right ways: Decide with Tombstone keeps
// the answer out of the store, Options.OmitHeaders keeps single fields out, and package seal encrypts the stored answers.
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

// The mistake: the UserFunc returns the same user for every request, so all callers share their keys, and Bob gets the
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

// The mistake: the UserFunc returns the network address. A phone that changes from Wi-Fi to a mobile network gets another
// address, so its retry is charged again. On the other hand, many people behind the same router have the same address, and
// share their keys. The right way is to return the account ID that authentication has found.
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

// The mistake: the UserFunc returns an e-mail address. The address can pass to a new account, whose owner then gets the
// answers of the old account. The right way is an account ID that is never reassigned.
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
	for _, session := range []string{"session-1", "session-2"} { // the address passes from the first account to the second
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

// A handler sends a key of its operation to another system. If an attempt fails after the call, or crashes during the
// call, the next attempt sends the same key, so the other system does not act twice.
func ExampleFromContext() {
	var previousKey string
	pay := func(w http.ResponseWriter, r *http.Request) {
		op, _ := idempotency.FromContext(r.Context())
		key := op.DownstreamKey("charge") // to send with the call to the payment provider
		fmt.Printf("attempt %d, same key as before: %t\n", op.Attempt, key == previousKey)
		previousKey = key
		w.WriteHeader(http.StatusBadGateway) // the provider gave no answer: 502 is not stored, so a retry runs pay again
	}
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	idem, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{})
	if err != nil {
		panic(err)
	}
	for range 2 {
		r := httptest.NewRequest("POST", "/payments", nil)
		r.Header.Set("Idempotency-Key", "1")
		idem.Handler(http.HandlerFunc(pay)).ServeHTTP(httptest.NewRecorder(), r)
	}
	// Output:
	// attempt 1, same key as before: false
	// attempt 2, same key as before: true
}

// DownstreamKey returns the same key in every attempt at the operation. Give each call to another system its own name,
// because each name has a different key.
func ExampleOperation_DownstreamKey() {
	op := idempotency.Operation{ID: uuid.MustParse("8f0f4d6e-9f3c-4b57-9b8a-0c7b8d0d6c11"), Attempt: 2}
	fmt.Println(op.DownstreamKey("charge"))
	fmt.Println(op.DownstreamKey("mail"))
	// Output:
	// 3d8cefeb-f384-53fe-a710-ac3811c1bede
	// 762c31e5-02ce-52da-9c8f-d53a78b6c910
}

// The handler tells the middleware what a failure means. With Refuse, a retry never charges a card that may have been
// charged already.
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
			idempotency.Decide(r.Context(), idempotency.Free) // the provider got no request
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

// The client gets a secret once. Tombstone completes the operation, so that no retry makes a second API key, but the
// answer is not stored.
func ExampleDecide_tombstone() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	idem, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	handler := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		idempotency.Decide(r.Context(), idempotency.Tombstone)
		fmt.Fprint(w, "sk_live_4711")
	}))
	for range 2 {
		r := httptest.NewRequest("POST", "/keys", nil)
		r.Header.Set("Idempotency-Key", "1")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Body.String() == "sk_live_4711")
	}
	// Output:
	// 200 true
	// 409 false
}

// A consumer processes each message once, although the broker may deliver a message several times.
func ExampleRunner_Do() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{})
	if err != nil {
		log.Fatal(err)
	}
	failures := []error{errors.New("the mail server is down"), nil}
	send := func(ctx context.Context) (idempotency.Response, error) {
		op, _ := idempotency.FromContext(ctx)
		err := failures[op.Attempt-1]
		return idempotency.Response{Body: []byte("sent")}, err // an error is not stored
	}
	for range 3 {
		key := idempotency.Key{User: "mailer", Endpoint: "welcome", ID: "message-1"}
		resp, replayed, err := runner.Do(context.Background(), key, []byte("alice"), send)
		fmt.Printf("%q %t %v\n", resp.Body, replayed, err)
	}
	// Output:
	// "sent" false the mail server is down
	// "sent" false <nil>
	// "sent" true <nil>
}

// DoJSON and Do refuse an operation with an *Error. Error.Retry tells the caller what to do.
func ExampleNewRunner() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	opts := idempotency.RunnerOptions{TTL: 72 * time.Hour, Abandoned: idempotency.Refuse}
	runner, err := idempotency.NewRunner(store, opts)
	if err != nil {
		log.Fatal(err)
	}
	for _, payload := range []string{"4200", "9900"} {
		key := idempotency.Key{User: "billing", Endpoint: "orders", ID: "order-1"}
		_, _, err := idempotency.DoJSON(context.Background(), runner, key, []byte(payload),
			func(context.Context) (string, error) { return "receipt", nil })
		if refusal, ok := errors.AsType[*idempotency.Error](err); ok {
			fmt.Println(errors.Is(err, idempotency.ErrKeyReused), refusal.Code, refusal.Retry)
		}
	}
	// Output: true key-reused new-key
}

// The work for a message runs once, although the broker delivers the message twice. Both deliveries get the same result.
func ExampleDoJSON() {
	runner, err := idempotency.NewRunner(
		idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.RunnerOptions{})
	if err != nil {
		log.Fatal(err)
	}
	type receipt struct{ Amount, Number int }
	number := 0

	for range 2 {
		message := idempotency.Key{User: "billing", Endpoint: "orders", ID: "1700000000000-0"}
		result, replayed, err := idempotency.DoJSON(context.Background(), runner, message, []byte("4200"),
			func(context.Context) (receipt, error) {
				number++
				return receipt{Amount: 4200, Number: number}, nil
			})
		fmt.Println(result, replayed, err)
	}
	// Output:
	// {4200 1} false <nil>
	// {4200 1} true <nil>
}

// An adapter stores a failure if the handler has decided to keep the failure, and returns any other failure as an error.
func ExampleDecided() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{})
	if err != nil {
		log.Fatal(err)
	}
	errNoCredit := errors.New("no credit")
	handler := func(ctx context.Context) error {
		idempotency.Decide(ctx, idempotency.Keep)
		return errNoCredit
	}
	for range 2 {
		key := idempotency.Key{User: "alice", Endpoint: "charge", ID: "1"}
		resp, replayed, err := runner.Do(context.Background(), key, nil,
			func(ctx context.Context) (idempotency.Response, error) {
				err := handler(ctx)
				if v, ok := idempotency.Decided(ctx); ok && v == idempotency.Keep {
					return idempotency.Response{Body: []byte(err.Error())}, nil
				}
				return idempotency.Response{}, err
			})
		fmt.Printf("%s %t %v\n", resp.Body, replayed, err)
	}
	// Output:
	// no credit false <nil>
	// no credit true <nil>
}

// An adapter for another protocol parses keys by the same rules as the middleware.
func ExampleParseKey() {
	for _, header := range [][]string{{`order-1`}, {`"order-1"`}, {`order 1`}, {}} {
		key, err := idempotency.ParseKey(header)
		fmt.Printf("%q %v\n", key, err)
	}
	// Output:
	// "order-1" <nil>
	// "order-1" <nil>
	// "" idempotency: the key is invalid: a key must not contain spaces, control characters or characters outside of ASCII
	// "" idempotency: the request has no key
}

// A worker calls Shutdown after its operations have ended, and before the client of the store is closed.
func ExampleRunner_Shutdown() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	fmt.Println(runner.Shutdown(ctx)) // an error says how many answers are not stored
	// Output: <nil>
}

// With Required, the middleware refuses requests without a key before the handler runs. With ValidateUUID, the middleware
// also refuses keys that are no UUIDs.
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

// ValidateKey refuses keys by a rule of the service. The client sees the text of the error.
func ExampleOptions_validateKey() {
	opts := idempotency.Options{
		ValidateKey: func(id string) error {
			if !strings.HasPrefix(id, "order-") {
				return errors.New("a key begins with order-")
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, e *idempotency.Error) {
			http.Error(w, e.Detail, e.Status)
		},
	}
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser, opts)
	if err != nil {
		log.Fatal(err)
	}
	r := httptest.NewRequest("POST", "/payments", nil)
	r.Header.Set("Idempotency-Key", "1")
	w := httptest.NewRecorder()
	idem.Handler(http.NotFoundHandler()).ServeHTTP(w, r)
	fmt.Println(w.Code, strings.Contains(w.Body.String(), "Reason: a key begins with order-."))
	// Output: 400 true
}

// To require UUIDs as keys, set Options.ValidateKey to ValidateUUID.
func ExampleValidateUUID() {
	fmt.Println(idempotency.ValidateUUID("5f3a1c52-6ed1-4f0c-b7f6-1f8de5f9ca12"))
	fmt.Println(idempotency.ValidateUUID("order-1"))
	// Output:
	// <nil>
	// a UUID has 36 characters, not 7
}

// Endpoint names the scope of a key. Two paths to the same operation get the same name.
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

// Two versions of an API are two endpoints, unless Endpoint gives both versions the same name. With the same name, a client
// that moves to the new version between two attempts makes a single operation.
func ExampleOptions_versions() {
	sameAsV1 := func(r *http.Request) string {
		return strings.Replace(idempotency.DefaultEndpoint(r), " /v2/", " /v1/", 1)
	}
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser,
		idempotency.Options{Endpoint: sameAsV1})
	if err != nil {
		panic(err)
	}
	payments := idem.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		fmt.Println("runs", r.URL.Path)
	}))
	for _, url := range []string{"/v1/payments", "/v2/payments", "/v2/refunds"} {
		r := httptest.NewRequest("POST", url, nil)
		r.Header.Set("Idempotency-Key", "1")
		w := httptest.NewRecorder()
		payments.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Header()["Idempotent-Replayed"])
	}
	// Output:
	// runs /v1/payments
	// 200 []
	// 200 [true]
	// runs /v2/refunds
	// 200 []
}

// A single mux serves several hosts. With withHost, the same key at two hosts names two operations.
func ExampleOptions_hosts() {
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser,
		idempotency.Options{Endpoint: withHost})
	if err != nil {
		panic(err)
	}
	payments := idem.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		op, _ := idempotency.FromContext(r.Context())
		fmt.Println("runs", op.Key.Endpoint)
	}))
	for _, host := range []string{"north.example", "south.example", "NORTH.example"} {
		r := httptest.NewRequest("POST", "http://"+host+"/payments", nil)
		r.Header.Set("Idempotency-Key", "1")
		payments.ServeHTTP(httptest.NewRecorder(), r)
	}
	// Output:
	// runs north.example POST /payments
	// runs south.example POST /payments
}

// withHost puts the host in front of the default endpoint. The router must refuse foreign hosts.
func withHost(r *http.Request) string {
	return strings.ToLower(r.Host) + " " + idempotency.DefaultEndpoint(r)
}

// FingerprintRaw, the default, compares the bytes of the body, the query and the media type. So an additional space makes
// another request.
func ExampleFingerprintRaw() {
	r := httptest.NewRequest("POST", "/payments", nil)
	compact, _ := idempotency.FingerprintRaw(r, []byte(`{"amount":4200}`))
	spaced, _ := idempotency.FingerprintRaw(r, []byte(`{"amount": 4200}`))
	fmt.Println(compact == spaced)
	// Output: false
}

// This client writes the sending time into the body, so the body of each retry differs. The fingerprint leaves the time out.
func ExampleFingerprintFunc() {
	type payment struct {
		Amount int
		SentAt string
	}
	fingerprintAmount := func(_ *http.Request, body []byte) (idempotency.Fingerprint, error) {
		var p payment
		if err := json.Unmarshal(body, &p); err != nil {
			return idempotency.Fingerprint{}, err // the client gets 400, body-invalid
		}
		return sha256.Sum256(fmt.Append(nil, p.Amount)), nil
	}
	opts := idempotency.Options{Fingerprint: fingerprintAmount}
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser, opts)
	if err != nil {
		log.Fatal(err)
	}
	handler := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "paid") }))
	for _, body := range []string{
		`{"Amount": 4200, "SentAt": "10:00"}`,
		`{"Amount": 4200, "SentAt": "10:01"}`,
		`{"Amount": 9900, "SentAt": "10:02"}`,
		`4200`,
	} {
		r := httptest.NewRequest("POST", "/payments", strings.NewReader(body))
		r.Header.Set("Idempotency-Key", "1")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Println(w.Code)
	}
	// Output:
	// 200
	// 200
	// 409
	// 400
}

// The field Stripe-Account selects the account that a request acts for. The middleware refuses the same key for another account.
func ExampleOptions_fingerprintHeaders() {
	opts := idempotency.Options{FingerprintHeaders: []string{"Stripe-Account"}}
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser, opts)
	if err != nil {
		log.Fatal(err)
	}
	handler := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "paid") }))
	for _, account := range []string{"acct_1", "acct_1", "acct_2"} {
		r := httptest.NewRequest("POST", "/payments", nil)
		r.Header.Set("Idempotency-Key", "1")
		r.Header.Set("Stripe-Account", account)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Println(account, w.Code)
	}
	// Output:
	// acct_1 200
	// acct_1 200
	// acct_2 409
}

// With Wait, a request that arrives while the first attempt runs waits for the same answer.
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

// Storable decides which answers complete the operation. This service sends 422 while an account is not yet verified, and
// does not store the 422, so that the client can try again.
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

// OmitHeaders keeps header fields out of the store. The first answer has these fields, a replay does not.
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

// A right may be withdrawn while an answer is in the store. Replay then refuses to send the stored answer, and the handler
// does not run either.
func ExampleOptions_replay() {
	mayReadKeys := map[string]bool{"alice": true}
	user := func(r *http.Request) (string, error) { return r.Header.Get("X-User"), nil }
	opts := idempotency.Options{
		Replay: func(r *http.Request, _ *idempotency.Response) error {
			if !mayReadKeys[r.Header.Get("X-User")] {
				return errors.New("may not read API keys any more")
			}
			return nil
		},
	}
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), user, opts)
	if err != nil {
		panic(err)
	}
	create := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "the new API key")
	}))
	send := func() {
		r := httptest.NewRequest("POST", "/keys", nil)
		r.Header.Set("X-User", "alice")
		r.Header.Set("Idempotency-Key", "1")
		w := httptest.NewRecorder()
		create.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Body.String() == "the new API key")
	}
	send()
	send()
	mayReadKeys["alice"] = false
	send()
	// Output:
	// 200 true
	// 200 true
	// 403 false
}

// With Stream, the first client gets each event as soon as the handler writes the event. A retry gets all events at once.
func ExampleOptions_stream() {
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser,
		idempotency.Options{Stream: true})
	if err != nil {
		panic(err)
	}
	service := httptest.NewServer(idem.Handler(http.HandlerFunc(writeStory)))
	defer service.Close()
	for range 2 {
		r, err := http.NewRequest("POST", service.URL+"/stories", nil)
		if err != nil {
			panic(err)
		}
		r.Header.Set("Idempotency-Key", "1")
		resp, err := service.Client().Do(r)
		if err != nil {
			panic(err)
		}
		events, err := readBody(resp)
		fmt.Printf("%q %v %q\n", events, err, resp.Header.Get("Idempotent-Replayed"))
	}
	// Output:
	// "data: chapter 1\n\ndata: chapter 2\n\ndata: chapter 3\n\n" <nil> ""
	// "data: chapter 1\n\ndata: chapter 2\n\ndata: chapter 3\n\n" <nil> "true"
}

// writeStory sends its answer piece by piece. If the client leaves, writeStory decides Unknown: half a story is no result.
func writeStory(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	rc := http.NewResponseController(w)
	for chapter := 1; chapter <= 3; chapter++ {
		if r.Context().Err() != nil {
			idempotency.Decide(r.Context(), idempotency.Unknown)
			return
		}
		fmt.Fprintf(w, "data: chapter %d\n\n", chapter)
		_ = rc.Flush() // the context ends if the client has left
	}
}

// readBody reads and closes the body of resp.
func readBody(resp *http.Response) (string, error) {
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

// This ErrorHandler answers a reused key in the format that the API has for its errors, and leaves other refusals to
// WriteProblem.
func ExampleOptions_errorHandler() {
	opts := idempotency.Options{
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, e *idempotency.Error) {
			if !errors.Is(e, idempotency.ErrKeyReused) {
				idempotency.WriteProblem(w, r, e)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(e.Status)
			_ = json.NewEncoder(w).Encode(map[string]string{"error": e.Code, "retry": string(e.Retry)})
		},
	}
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser, opts)
	if err != nil {
		log.Fatal(err)
	}
	handler := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "paid") }))
	for _, amount := range []string{"42.00", "99.00"} {
		r := httptest.NewRequest("POST", "/payments", strings.NewReader(amount))
		r.Header.Set("Idempotency-Key", "1")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Print(w.Code, " ", w.Body)
	}
	// Output:
	// 200 paid
	// 409 {"error":"key-reused","retry":"new-key"}
}

// WriteProblem answers with a problem document (RFC 9457).
func ExampleWriteProblem() {
	w := httptest.NewRecorder()
	idempotency.WriteProblem(w, nil, &idempotency.Error{
		Status: http.StatusForbidden,
		Title:  "The account is closed",
		Retry:  idempotency.RetryNever,
	})
	fmt.Println(w.Code, w.Header().Get("Content-Type"))
	fmt.Println(w.Body)
	// Output:
	// 403 application/problem+json
	// {"type":"about:blank","title":"The account is closed","status":403,"retry":"never"}
}

// An Observer counts the outcomes of requests.
func ExampleObserver() {
	outcomes := map[idempotency.Outcome]int{} // a service needs counters for concurrent use
	opts := idempotency.Options{
		Observer: func(_ context.Context, e idempotency.Event) { outcomes[e.Outcome]++ },
	}
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser, opts)
	if err != nil {
		log.Fatal(err)
	}
	handler := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "paid") }))
	for range 3 {
		r := httptest.NewRequest("POST", "/payments", nil)
		r.Header.Set("Idempotency-Key", "1")
		handler.ServeHTTP(httptest.NewRecorder(), r)
	}
	fmt.Println(outcomes)
	// Output: map[executed:1 replayed:2]
}

// A note links the operation to a payment. The Observer gets the same note with a replay. The client never gets the note.
func ExampleAnnotate() {
	opts := idempotency.Options{
		Observer: func(_ context.Context, e idempotency.Event) { fmt.Println(e.Outcome, e.Note) },
	}
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser, opts)
	if err != nil {
		log.Fatal(err)
	}
	handler := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := idempotency.Annotate(r.Context(), "pay_4711"); err != nil {
			log.Print(err) // the request has no key, or the note is not valid
		}
		fmt.Fprint(w, "paid")
	}))
	for range 2 {
		r := httptest.NewRequest("POST", "/payments", nil)
		r.Header.Set("Idempotency-Key", "1")
		handler.ServeHTTP(httptest.NewRecorder(), r)
	}
	// Output:
	// executed pay_4711
	// replayed pay_4711
}

// chargesByKey stands for a payment provider that finds charges by their keys.
type chargesByKey map[string]string

// A crash leaves the outcome of an attempt unknown. With Refuse, a retry does not simply run the handler again. Reconcile
// first asks the provider for a charge with the key that all attempts at the operation send.
func ExampleOptions_reconcile() {
	provider, crashes := chargesByKey{}, true
	opts := idempotency.Options{
		Abandoned: idempotency.Refuse,
		Lease:     100 * time.Millisecond,
		Reconcile: func(ctx context.Context, op idempotency.Operation) (*idempotency.Response, error) {
			charge, ok := provider[op.DownstreamKey("charge")]
			if !ok {
				return nil, nil // the charge has not happened, so the handler runs
			}
			return &idempotency.Response{Status: http.StatusCreated, Body: []byte(charge), Note: charge}, nil
		},
		Logger: slog.New(slog.DiscardHandler),
	}
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser, opts)
	if err != nil {
		log.Fatal(err)
	}
	handler := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		op, _ := idempotency.FromContext(r.Context())
		provider[op.DownstreamKey("charge")] = "ch_17"
		if crashes {
			panic(http.ErrAbortHandler) // like a crash between the charge and the answer
		}
	}))
	pay := func() (answer string) {
		defer func() { _ = recover() }()
		r := httptest.NewRequest("POST", "/payments", nil)
		r.Header.Set("Idempotency-Key", "order-1")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return fmt.Sprint(w.Code, " ", w.Body)
	}
	pay()
	for answer := pay(); ; answer = pay() {
		if !strings.HasPrefix(answer, "409") { // in-progress, until the lease of the first attempt has lapsed
			fmt.Println(answer)
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	// Output: 201 ch_17
}

// MaxUserBytes bounds the records of each user, so that a single user cannot fill the store.
func ExampleNewMemoryStore() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: 64 << 10, MaxUserBytes: 8 << 10})
	user := func(r *http.Request) (string, error) { return r.Header.Get("X-User"), nil }
	idem, err := idempotency.New(store, user, idempotency.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	handler := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, strings.Repeat("x", 1<<10))
	}))
	send := func(user string, key int) int {
		r := httptest.NewRequest("POST", "/payments", nil)
		r.Header.Set("X-User", user)
		r.Header.Set("Idempotency-Key", fmt.Sprint(key))
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Code
	}
	answers := map[int]int{}
	for key := range 50 {
		answers[send("mallory", key)]++
	}
	fmt.Println("mallory refused:", answers[http.StatusTooManyRequests] > 0)
	fmt.Println("alice:", send("alice", 1))
	// Output:
	// mallory refused: true
	// alice: 200
}

// Services that share a Redis server need different prefixes.
func ExampleRedisOptions_prefix() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer client.Close()
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: "staging:payments:idempotency:"})
	_ = store
}

// redisLog sends the messages of go-redis to slog at the level DEBUG, because the middleware logs the effect on a request
// at the level ERROR.
type redisLog struct{}

func (redisLog) Printf(ctx context.Context, format string, values ...any) {
	slog.DebugContext(ctx, "go-redis: "+fmt.Sprintf(format, values...))
}

// go-redis logs to stderr, unless SetLogger sets another logger.
func ExampleNewRedisStore_logger() {
	redis.SetLogger(redisLog{}) // for all clients of the process
}

// A service decides which findings of Check are acceptable. This service may lose its records in a power failure, and stops
// because of any other finding.
func ExampleRedisStore_Check() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer client.Close()
	err := idempotency.NewRedisStore(client, idempotency.RedisOptions{}).Check(context.Background())
	for _, finding := range idempotency.Findings(err) {
		unsafe, ok := errors.AsType[*idempotency.UnsafeSetting](finding)
		if !ok || !strings.HasPrefix(unsafe.Setting, "append") {
			log.Fatal(finding) // another setting, or Redis does not answer
		}
		log.Print(unsafe.Node, unsafe.Setting, unsafe.Value, unsafe.Risk)
	}
}

// A wrapper can count or log the steps of a store, or fail in a test. This store is down, so FailOpen runs the handler
// without protection.
func ExampleStore() {
	store := &switchableStore{Store: idempotency.NewMemoryStore(idempotency.MemoryOptions{}), isDown: true}
	opts := idempotency.Options{FailOpen: true, Logger: slog.New(slog.DiscardHandler)}
	idem, err := idempotency.New(store, idempotency.SingleUser, opts)
	if err != nil {
		log.Fatal(err)
	}
	handler := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		op, _ := idempotency.FromContext(r.Context())
		fmt.Println("attempt", op.Attempt, op.DownstreamKey("charge"))
	}))
	for range 2 {
		r := httptest.NewRequest("POST", "/payments", nil)
		r.Header.Set("Idempotency-Key", "1")
		handler.ServeHTTP(httptest.NewRecorder(), r)
	}
	// Output:
	// attempt 0 440b4723-a384-5f7a-b8f0-c7550dbf7ae3
	// attempt 0 440b4723-a384-5f7a-b8f0-c7550dbf7ae3
}

// If the reply to Begin is lost, the Store returns the claim that may have been granted in a ClaimInDoubtError. The
// middleware releases this claim, so that the key does not stay blocked for a lease.
func ExampleClaimInDoubtError() {
	idem, err := idempotency.New(&replyLosingStore{Store: idempotency.NewMemoryStore(idempotency.MemoryOptions{})},
		idempotency.SingleUser, idempotency.Options{Wait: time.Minute, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	handler := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusCreated) }))
	for range 2 {
		r, w := httptest.NewRequest("POST", "/payments", nil), httptest.NewRecorder()
		r.Header.Set("Idempotency-Key", "1")
		handler.ServeHTTP(w, r)
		fmt.Println(w.Code)
	}
	// Output:
	// 503
	// 201
}

// replyLosingStore is a Store whose first reply to Begin is lost.
type replyLosingStore struct {
	idempotency.Store
	beginCalls int
}

func (s *replyLosingStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	record, claim, err := s.Store.Begin(ctx, key, request)
	if s.beginCalls++; s.beginCalls == 1 && err == nil {
		return idempotency.Record{}, nil, &idempotency.ClaimInDoubtError{Claim: claim, Err: errors.New("connection reset")}
	}
	return record, claim, err
}

// switchableStore is a Store whose Begin fails while isDown is set.
type switchableStore struct {
	idempotency.Store
	isDown bool
}

func (s *switchableStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	if s.isDown {
		return idempotency.Record{}, nil, errors.New("connection refused")
	}
	return s.Store.Begin(ctx, key, request)
}

// countingStore counts the calls to Begin. Because of Unwrap, As finds the interfaces of the inner Store, such as
// Resolver.
type countingStore struct {
	idempotency.Store
	beginCalls atomic.Int64
}

func (s *countingStore) Unwrap() idempotency.Store { return s.Store }

// Immediate returns the answer of the inner Store, because countingStore itself waits for nothing.
func (s *countingStore) Immediate() bool {
	inner, ok := s.Store.(idempotency.Immediate)
	return ok && inner.Immediate()
}

func (s *countingStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	s.beginCalls.Add(1)
	return s.Store.Begin(ctx, key, request)
}

// A printed Key shows no personal data. Stores name the record of a Key by the ID of its operation.
func ExampleKey() {
	key := idempotency.Key{User: "alice@example.com", Endpoint: "POST /payments", ID: "order-1"}
	fmt.Println(strings.Contains(fmt.Sprintf("%+v", key), "alice"))
	other := key
	other.User = "bob@example.com"
	fmt.Println(key.OperationID() == other.OperationID())
	// Output:
	// false
	// false
}

// Stores shorten the long parts of a key. Bounded returns the key in the form that stores keep.
func ExampleKey_Bounded() {
	key := idempotency.Key{User: "alice", Endpoint: "POST /" + strings.Repeat("a", 300), ID: "order-1"}
	bounded := key.Bounded()
	fmt.Println(len(key.Endpoint), len(bounded.Endpoint), bounded.ID)
	// Output: 306 257 order-1
}

// Fields hold a header as text, with one line for each value.
func ExampleNewFields() {
	fields := idempotency.NewFields(http.Header{
		"Content-Type": {"application/json"},
		"Link":         {"</a>", "</b>"},
	})
	fmt.Print(fields)
	fmt.Println(fields.Get("content-type"))
	// Output:
	// Content-Type: application/json
	// Link: </a>
	// Link: </b>
	// application/json
}

// ParseFields reads stored fields, and reports damage.
func ExampleParseFields() {
	fields, err := idempotency.ParseFields("Content-Type: text/plain\n")
	fmt.Println(fields.Header(), err)
	_, err = idempotency.ParseFields("no newline")
	fmt.Println(err)
	// Output:
	// map[Content-Type:[text/plain]] <nil>
	// idempotency: the stored record cannot be read: the stored header has an empty or unfinished line
}

// Your own store can keep an answer as bytes.
func ExampleResponse() {
	answer := idempotency.Response{
		Status: http.StatusCreated,
		Header: idempotency.NewFields(http.Header{"Location": {"/payments/1"}}),
		Body:   []byte("paid"),
	}
	stored, err := answer.MarshalBinary()
	if err != nil {
		log.Fatal(err)
	}
	var read idempotency.Response
	if err := read.UnmarshalBinary(stored); err != nil {
		log.Fatal(err) // wraps ErrRecordInvalid
	}
	fmt.Printf("%d %s %s\n", read.Status, read.Header.Get("Location"), read.Body)
	// Output: 201 /payments/1 paid
}

// Support staff look up the record of a key, and forget the record, so that the operation can run again.
func ExampleInspector() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	idem, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	r := httptest.NewRequest("POST", "/payments", nil)
	r.Header.Set("Idempotency-Key", "order-1")
	idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "card expired", http.StatusPaymentRequired)
	})).ServeHTTP(httptest.NewRecorder(), r)

	ctx := context.Background()
	user, _ := idempotency.SingleUser(nil)
	key := idempotency.Key{User: user, Endpoint: "POST /payments", ID: "order-1"}
	entry, err := store.Inspect(ctx, key.Bounded())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s, attempt %d: %d %s", entry.State, entry.Attempt, entry.Status, entry.Response.Body)

	if err := store.Forget(ctx, entry); err != nil {
		log.Fatal(err)
	}
	_, err = store.Inspect(ctx, key)
	fmt.Println(errors.Is(err, idempotency.ErrNoRecord))
	// Output:
	// completed, attempt 1: 402 card expired
	// true
}

// List returns the largest records, and the number of records in each state.
func ExampleInspector_list() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	for id, answer := range map[string]string{"1": "short", "2": "a longer answer", "3": ""} {
		key := idempotency.Key{User: "billing", Endpoint: "invoices", ID: id}
		_, _, _ = runner.Do(ctx, key, nil, func(context.Context) (idempotency.Response, error) {
			if answer == "" {
				return idempotency.Response{}, errors.New("the printer is out of paper") // releases the record
			}
			return idempotency.Response{Body: []byte(answer)}, nil
		})
	}
	listing, err := store.List(ctx, idempotency.ListRequest{Order: idempotency.LargestFirst, Limit: 1})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("largest:", listing.Entries[0].Key.ID)
	fmt.Println("completed:", listing.Totals[idempotency.StateCompleted].Records)
	fmt.Println("released:", listing.Totals[idempotency.StateReleased].Records)
	// Output:
	// largest: 2
	// completed: 2
	// released: 1
}

// A program checks whether its store supports steps, and steps in transactions.
func ExampleCheckpointer() {
	var store idempotency.Store = idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	_, claim, err := store.Begin(context.Background(), idempotency.Key{User: "alice", ID: "1"},
		idempotency.ClaimRequest{Lease: time.Minute, TTL: time.Hour})
	if err != nil {
		log.Fatal(err)
	}
	_, steps := claim.(idempotency.Checkpointer)
	_, rows := claim.(idempotency.TxCheckpointer)
	fmt.Println("steps:", steps, "in transactions:", rows)
	// Output: steps: true in transactions: false
}

// A tool checks whether operators can resolve abandoned operations in its store. Package resolve is such a tool.
func ExampleResolver() {
	var store idempotency.Inspector = idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	_, ok := store.(idempotency.Resolver)
	fmt.Println(ok)
	// Output: true
}

// countingStore does not implement Resolver, but its inner Store does. As finds the inner Store.
func ExampleAs() {
	store := &countingStore{Store: idempotency.NewMemoryStore(idempotency.MemoryOptions{})}
	_, direct := idempotency.Store(store).(idempotency.Resolver)
	resolver, found := idempotency.As[idempotency.Resolver](store)
	fmt.Println(direct, found)
	_, err := resolver.Inspect(context.Background(), idempotency.Key{ID: "k"})
	fmt.Println(err)
	// Output:
	// false true
	// idempotency: no record of the key
}

// New reports the faults of the store's options together with the faults of Options.
func ExampleValidator() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: -1})
	_, isValidator := idempotency.Store(store).(idempotency.Validator)
	_, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{MaxBody: -1})
	fmt.Println(isValidator)
	fmt.Println(err)
	// Output:
	// true
	// idempotency: MaxBytes -1 is negative
	// idempotency: MaxBody -1 is negative
}

// The access log contains the outcome of each request. logRequests is outside of the middleware.
func ExampleWithReport() {
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser,
		idempotency.Options{Required: true})
	if err != nil {
		log.Fatal(err)
	}
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: removeTime}))
	logRequests := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, report := idempotency.WithReport(r.Context())
			defer func() { logger.InfoContext(ctx, r.Method+" "+r.URL.Path, "idempotency", report) }() // also after a panic
			next.ServeHTTP(w, r.WithContext(ctx))
		})
	}
	service := logRequests(idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "paid")
	})))

	send := func(method, key, body string) {
		r := httptest.NewRequest(method, "/payments", strings.NewReader(body))
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
		service.ServeHTTP(httptest.NewRecorder(), r)
	}
	send("POST", "order-1", "42.00")
	send("POST", "order-1", "42.00")
	send("POST", "order-1", "99.00")
	send("POST", "", "42.00")
	send("GET", "", "")
	// Output:
	// level=INFO msg="POST /payments" idempotency.outcome=executed idempotency.attempt=1 idempotency.operation=ca4e60da-6fb5-864c-b367-900239233779
	// level=INFO msg="POST /payments" idempotency.outcome=replayed idempotency.attempt=1 idempotency.operation=ca4e60da-6fb5-864c-b367-900239233779
	// level=INFO msg="POST /payments" idempotency.outcome=key-reused idempotency.attempt=1 idempotency.operation=ca4e60da-6fb5-864c-b367-900239233779
	// level=INFO msg="POST /payments" idempotency.outcome=rejected idempotency.refusal=key-missing
	// level=INFO msg="GET /payments"
}

// removeTime removes the time from a log line, so that the output of the example stays the same.
func removeTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

// The access log takes attributes by the context of the request. With httplog of chi, the line is
// idempotency.ReportTo(httplog.SetAttrs).
func ExampleReportTo() {
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	report := idempotency.ReportTo(setAttrs)
	service := logAttrs(report(idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "paid")
	}))))
	for range 2 {
		r := httptest.NewRequest("POST", "/payments", nil)
		r.Header.Set("Idempotency-Key", "order-1")
		service.ServeHTTP(httptest.NewRecorder(), r)
	}
	// Output:
	// level=INFO msg=/payments idempotency.outcome=executed idempotency.attempt=1 idempotency.operation=ca4e60da-6fb5-864c-b367-900239233779
	// level=INFO msg=/payments idempotency.outcome=replayed idempotency.attempt=1 idempotency.operation=ca4e60da-6fb5-864c-b367-900239233779
}

type attrsKey struct{}

// logAttrs stands for an access log with attributes of the context.
func logAttrs(next http.Handler) http.Handler {
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: removeTime}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		attrs := new([]slog.Attr)
		ctx := context.WithValue(r.Context(), attrsKey{}, attrs)
		next.ServeHTTP(w, r.WithContext(ctx))
		logger.LogAttrs(ctx, slog.LevelInfo, r.URL.Path, *attrs...)
	})
}

// setAttrs adds attributes to the line of the request.
func setAttrs(ctx context.Context, attrs ...slog.Attr) {
	line := ctx.Value(attrsKey{}).(*[]slog.Attr)
	*line = append(*line, attrs...)
}
