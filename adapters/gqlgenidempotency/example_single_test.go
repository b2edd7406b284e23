package gqlgenidempotency_test

import (
	"log"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/gqlgenidempotency"
)

// A service with one caller uses SingleUser as its user function.
func ExampleSingleUser() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{})
	if err != nil {
		log.Fatal(err)
	}
	guard, err := gqlgenidempotency.New(runner, gqlgenidempotency.SingleUser, gqlgenidempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	_ = guard // pass guard to Use of the server
	// Output:
}
