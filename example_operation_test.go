package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
)

// A handler passes a key of its operation to another system. If an attempt fails after that call, or dies in it, the
// next attempt sends the same key again, and the other system does not act twice.
func ExampleFromContext() {
	var sent string
	pay := func(w http.ResponseWriter, r *http.Request) {
		op, _ := idempotency.FromContext(r.Context())
		key := op.DownstreamKey("charge") // to send with the call to the payment provider
		fmt.Printf("attempt %d, same key as before: %t\n", op.Attempt, key == sent)
		sent = key
		w.WriteHeader(http.StatusBadGateway) // no answer from there: not stored, may be tried again
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

// Every attempt at the operation sends the same key to another system. Each call that the handler makes has a name.
func ExampleOperation_DownstreamKey() {
	op := idempotency.Operation{ID: uuid.MustParse("8f0f4d6e-9f3c-4b57-9b8a-0c7b8d0d6c11"), Attempt: 2}
	fmt.Println(op.DownstreamKey("charge"))
	fmt.Println(op.DownstreamKey("mail"))
	// Output:
	// 3d8cefeb-f384-53fe-a710-ac3811c1bede
	// 762c31e5-02ce-52da-9c8f-d53a78b6c910
}

// A handler that knows what its failure means says so. With Refuse, a retry does not charge a card that may have been
// charged.
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
			idempotency.Decide(r.Context(), idempotency.Free) // the provider knows nothing of it
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

// A secret is shown once. The operation is completed, so that no retry makes a second API key, but the answer is not
// stored.
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

// A consumer of messages works on each message once, although the broker may deliver it again.
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

// A refusal of Do is an *Error. Its Retry says what the caller is to do.
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

// A message that is delivered twice is worked on once, and has one result.
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

// An adapter stores a failure if the handler has decided to keep it, and otherwise returns it as an error.
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

// An adapter of another protocol reads the key by the rules of the middleware.
func ExampleParseKey() {
	for _, header := range [][]string{{`order-1`}, {`"order-1"`}, {`order 1`}, {}} {
		key, err := idempotency.ParseKey(header)
		fmt.Printf("%q %v\n", key, err)
	}
	// Output:
	// "order-1" <nil>
	// "order-1" <nil>
	// "" idempotency: key invalid: a key must not contain spaces, control characters or characters outside of ASCII
	// "" idempotency: key missing
}

// A worker stops when its operations have ended, and before it closes the client of the store.
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
