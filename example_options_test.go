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
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/idempotency-go/idempotency"
)

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

// ValidateKey refuses keys that the service does not want. The client sees the text of the error.
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

// A service that wants UUIDs as keys sets ValidateUUID as Options.ValidateKey.
func ExampleValidateUUID() {
	fmt.Println(idempotency.ValidateUUID("5f3a1c52-6ed1-4f0c-b7f6-1f8de5f9ca12"))
	fmt.Println(idempotency.ValidateUUID("order-1"))
	// Output:
	// <nil>
	// a UUID has 36 characters, not 7
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

// Two versions of an API are two endpoints, unless Endpoint gives them one name. A client that moves to the new
// version between two attempts then makes one operation.
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

// One mux answers for several hosts. The same key at two of them names two operations.
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
	for _, url := range []string{"http://north.example/payments", "http://south.example/payments", "http://NORTH.example/payments"} {
		r := httptest.NewRequest("POST", url, nil)
		r.Header.Set("Idempotency-Key", "1")
		payments.ServeHTTP(httptest.NewRecorder(), r)
	}
	// Output:
	// runs north.example POST /payments
	// runs south.example POST /payments
}

// withHost binds keys to the host as well. The router must refuse hosts that are not the service's own.
func withHost(r *http.Request) string {
	return strings.ToLower(r.Host) + " " + idempotency.DefaultEndpoint(r)
}

// The default compares the bytes of the body, the query and the media type.
func ExampleFingerprintRaw() {
	r := httptest.NewRequest("POST", "/payments", nil)
	compact, _ := idempotency.FingerprintRaw(r, []byte(`{"amount":4200}`))
	spaced, _ := idempotency.FingerprintRaw(r, []byte(`{"amount": 4200}`))
	fmt.Println(compact == spaced)
	// Output: false
}

// A client that writes the time of sending into its body sends another body each time. The fingerprint leaves it out.
func ExampleFingerprintFunc() {
	type payment struct {
		Amount int
		SentAt string
	}
	withoutTime := func(_ *http.Request, body []byte) (idempotency.Fingerprint, error) {
		var p payment
		if err := json.Unmarshal(body, &p); err != nil {
			return idempotency.Fingerprint{}, err // the client gets 400, body-invalid
		}
		return sha256.Sum256(fmt.Append(nil, p.Amount)), nil
	}
	opts := idempotency.Options{Fingerprint: withoutTime}
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

// The field Stripe-Account selects for whom a request acts. A key that comes back for another account is refused.
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

// Rights may change while an answer is in the store. A user whose right was withdrawn does not get the answer again,
// and the handler does not run either.
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

// The first client sees each event when it is written. A retry gets all of them at once.
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
		events, err := readAllOf(resp)
		fmt.Printf("%q %v %q\n", events, err, resp.Header.Get("Idempotent-Replayed"))
	}
	// Output:
	// "data: chapter 1\n\ndata: chapter 2\n\ndata: chapter 3\n\n" <nil> ""
	// "data: chapter 1\n\ndata: chapter 2\n\ndata: chapter 3\n\n" <nil> "true"
}

// writeStory sends its answer piece by piece. If the client leaves, it says that the half is no result.
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

func readAllOf(resp *http.Response) (string, error) {
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

// An ErrorHandler writes refusals in the form that the API has for its errors. It leaves the others to WriteProblem.
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

// A client sees a refusal as a problem document (RFC 9457).
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

// An Observer counts what became of requests.
func ExampleObserver() {
	outcomes := map[idempotency.Outcome]int{} // a service has a counter for each, which is safe for concurrent use
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

// A note links the operation to a payment. A replay tells the Observer the same note, and never tells the client.
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

// charges is a payment provider that can be asked for a charge by its key.
type charges map[string]string

// Nobody knows what an attempt has done whose process died. With Refuse it does not run again, and Reconcile asks the
// provider, by the key that each attempt at the operation sends there.
func ExampleOptions_reconcile() {
	provider, dies := charges{}, true
	opts := idempotency.Options{
		Abandoned: idempotency.Refuse,
		Lease:     100 * time.Millisecond,
		Reconcile: func(ctx context.Context, op idempotency.Operation) (*idempotency.Response, error) {
			charge, ok := provider[op.DownstreamKey("charge")]
			if !ok {
				return nil, nil // it has not happened, so the handler runs
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
		if dies {
			panic(http.ErrAbortHandler) // as if the process died: the charge is made, and nobody says so
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
		if !strings.HasPrefix(answer, "409") { // in-progress, as long as the lease of the first attempt runs
			fmt.Println(answer)
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	// Output: 201 ch_17
}
