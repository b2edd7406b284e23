package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/idempotency-go/idempotency"
)

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
