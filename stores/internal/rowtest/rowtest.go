// Package rowtest has the tests that stores in databases share: of rows that were changed behind the back of the store,
// and of operators who look at them and change them.
package rowtest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// Store is what the stores in databases can do.
type Store interface {
	idempotency.Store
	idempotency.Resolver
}

// Subject is a store on a table of its own.
type Subject struct {
	Store Store

	// Set changes columns of the row of a key, behind the back of the store.
	Set func(t testing.TB, key, set string)

	// Dump returns all that the table has of a key, and "" if it has nothing.
	Dump func(t testing.TB, key string) string

	// Lapse is what Set gets for the lease of a claim to lapse.
	Lapse string
}

// Request, Takeover and Answer are what the tests claim keys with, and complete them with.
var (
	Request  = idempotency.ClaimRequest{Fingerprint: idempotency.Fingerprint{1, 2, 3}, Lease: time.Minute, TTL: time.Hour}
	Takeover = idempotency.ClaimRequest{
		Fingerprint: Request.Fingerprint, Lease: Request.Lease, TTL: Request.TTL, TakeOver: true,
	}
	Answer = idempotency.Response{Status: 201, Header: "Content-Type: text/plain\n", Body: []byte("receipt 1")}
)

// Happened and NotHappened are what operators decide.
var (
	Happened = idempotency.Resolution{
		Response: &idempotency.Response{Status: 201, Body: []byte("found"), Note: "alice: found"}, TTL: time.Hour,
	}
	NotHappened = idempotency.Resolution{Operator: "bob", Reason: "no charge", TTL: time.Hour}
)

// KeyOf returns the key with an ID.
func KeyOf(id string) idempotency.Key {
	return idempotency.Key{User: "user 42", Endpoint: "POST /payments", ID: id}
}

// Begun claims a key.
func Begun(t testing.TB, store idempotency.Store, key string) (idempotency.Record, idempotency.Claim) {
	t.Helper()
	record, claim, err := store.Begin(context.Background(), KeyOf(key), Request)
	require.NoError(t, err)
	require.NotNil(t, claim)
	return record, claim
}

// Completed claims and completes a key.
func Completed(t testing.TB, store idempotency.Store, key string) {
	t.Helper()
	require.NoError(t, Complete(store, key))
}

// Complete claims and completes a key, in any goroutine.
func Complete(store idempotency.Store, key string) error {
	_, claim, err := store.Begin(context.Background(), KeyOf(key), Request)
	switch {
	case err != nil:
		return err
	case claim == nil:
		return fmt.Errorf("%s is held", key)
	default:
		return claim.Complete(context.Background(), Answer, time.Hour)
	}
}

// Stored asks for a key whose answer is stored, and returns that.
func Stored(t testing.TB, store idempotency.Store, key string) idempotency.Response {
	t.Helper()
	record, claim, err := store.Begin(context.Background(), KeyOf(key), Request)
	require.NoError(t, err)
	require.Nil(t, claim)
	require.NotNil(t, record.Response)
	return *record.Response
}

// RequireReplay asks for a key whose answer is stored.
func RequireReplay(t testing.TB, store idempotency.Store, key string) {
	t.Helper()
	require.Equal(t, Answer, Stored(t, store, key))
}

// Inspected returns the entry of a key.
func Inspected(t testing.TB, store idempotency.Inspector, key string) idempotency.Entry {
	t.Helper()
	entry, err := store.Inspect(context.Background(), KeyOf(key))
	require.NoError(t, err)
	return entry
}

// Abandoned claims a key, lets its lease lapse, and returns the entry.
func (s Subject) Abandoned(t testing.TB, key string) idempotency.Entry {
	t.Helper()
	Begun(t, s.Store, key)
	s.Set(t, key, s.Lapse)
	entry := Inspected(t, s.Store, key)
	require.Equal(t, idempotency.StateAbandoned, entry.State)
	return entry
}
