package resolve_test

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/resolve"
)

// A customer has asked for the erasure of personal data.
func ExampleEraseUser() {
	ctx := context.Background()
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	for _, id := range []string{"8e03978e", "a57f9324"} {
		key := idempotency.Key{User: "acct_1", Endpoint: "POST /payments", ID: id}
		_, claim, _ := store.Begin(ctx, key, idempotency.ClaimRequest{Lease: time.Minute, TTL: time.Hour})
		_ = claim.Complete(ctx, idempotency.Response{Status: 201}, time.Hour)
	}
	erasure, err := resolve.EraseUser(ctx, store, "acct_1", resolve.EraseOptions{})
	if err != nil {
		panic(err)
	}
	fmt.Println(erasure.Erased, "erased,", erasure.Running, "still running")
	// Output:
	// 2 erased, 0 still running
}

// A process has died while it charged a card. The provider has the charge, so its customer is to get a receipt.
func Example() {
	ctx := context.Background()
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	key := idempotency.Key{User: "acct_1", Endpoint: "POST /payments", ID: "8e03978e"}
	_, _, _ = store.Begin(ctx, key, idempotency.ClaimRequest{Lease: time.Millisecond, TTL: time.Hour})
	time.Sleep(10 * time.Millisecond)

	resolver, err := resolve.New(store, resolve.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err)
	}
	listing, err := store.List(ctx, idempotency.ListRequest{States: []idempotency.State{idempotency.StateAbandoned}})
	if err != nil {
		panic(err)
	}
	for _, listed := range listing.Entries {
		entry, err := store.InspectOperation(ctx, listed.Operation)
		if err != nil {
			panic(err)
		}
		receipt := idempotency.Response{Status: 201, Body: []byte(`{"charge":"ch_17"}`)}
		err = resolver.Happened(ctx, entry, receipt, resolve.By{Operator: "alice", Reason: "the provider has ch_17"})
		fmt.Println(err)
	}
	record, _, _ := store.Begin(ctx, key, idempotency.ClaimRequest{Lease: time.Minute, TTL: time.Hour})
	fmt.Println(record.Response.Status, string(record.Response.Body))
	entry, err := store.Inspect(ctx, key)
	if err != nil {
		panic(err)
	}
	fmt.Println(entry.Resolved.Operator, entry.Resolved.Reason)
	// Output:
	// <nil>
	// 201 {"charge":"ch_17"}
	// alice the provider has ch_17
}
