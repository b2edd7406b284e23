// Package rowtest has tests that stores in databases share. The tests change rows without the store, and inspect and resolve
// records as operators do.
package rowtest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// Store is the interface of stores in databases.
type Store interface {
	idempotency.Store
	idempotency.Resolver
}

// Subject is a store under test with its own table.
type Subject struct {
	Store Store

	// Set changes columns of the row of a key without the store. The text set has the assignments of an UPDATE.
	Set func(t testing.TB, key, set string)

	// Dump returns all columns of the row of a key as text, or "" without a row.
	Dump func(t testing.TB, key string) string

	// Lapse is the argument of Set that makes the lease of a claim lapse.
	Lapse string
}

// Request and Takeover are the claim requests of the tests, and Answer is their response.
var (
	Request  = idempotency.ClaimRequest{Fingerprint: idempotency.Fingerprint{1, 2, 3}, Lease: time.Minute, TTL: time.Hour}
	Takeover = idempotency.ClaimRequest{
		Fingerprint: Request.Fingerprint, Lease: Request.Lease, TTL: Request.TTL, TakeOver: true,
	}
	Answer = idempotency.Response{Status: 201, Header: "Content-Type: text/plain\n", Body: []byte("receipt 1")}
)

// Happened and NotHappened are the resolutions of the tests.
var (
	Happened = idempotency.Resolution{
		Response: &idempotency.Response{Status: 201, Body: []byte("found"), Note: "alice: found"}, TTL: time.Hour,
	}
	NotHappened = idempotency.Resolution{Operator: "bob", Reason: "no charge", TTL: time.Hour}
)

// KeyOf returns the key with the ID id.
func KeyOf(id string) idempotency.Key {
	return idempotency.Key{User: "user 42", Endpoint: "POST /payments", ID: id}
}

// MustBegin claims a key, which must be free.
func MustBegin(t testing.TB, store idempotency.Store, key string) (idempotency.Record, idempotency.Claim) {
	t.Helper()
	record, claim, err := store.Begin(context.Background(), KeyOf(key), Request)
	require.NoError(t, err)
	require.NotNil(t, claim)
	return record, claim
}

// MustComplete claims a key and completes the record with Answer.
func MustComplete(t testing.TB, store idempotency.Store, key string) {
	t.Helper()
	require.NoError(t, Complete(store, key))
}

// Complete does the same as MustComplete, and returns an error, so that any goroutine may call Complete.
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

// MustReadResponse returns the stored response of a key.
func MustReadResponse(t testing.TB, store idempotency.Store, key string) idempotency.Response {
	t.Helper()
	record, claim, err := store.Begin(context.Background(), KeyOf(key), Request)
	require.NoError(t, err)
	require.Nil(t, claim)
	require.NotNil(t, record.Response)
	return *record.Response
}

// RequireReplay checks that the stored response of a key is Answer.
func RequireReplay(t testing.TB, store idempotency.Store, key string) {
	t.Helper()
	require.Equal(t, Answer, MustReadResponse(t, store, key))
}

// MustInspect returns the entry of a key.
func MustInspect(t testing.TB, store idempotency.Inspector, key string) idempotency.Entry {
	t.Helper()
	entry, err := store.Inspect(context.Background(), KeyOf(key))
	require.NoError(t, err)
	return entry
}

// AbandonKey claims a key, makes the lease lapse, and returns the entry.
func (s Subject) AbandonKey(t testing.TB, key string) idempotency.Entry {
	t.Helper()
	MustBegin(t, s.Store, key)
	s.Set(t, key, s.Lapse)
	entry := MustInspect(t, s.Store, key)
	require.Equal(t, idempotency.StateAbandoned, entry.State)
	return entry
}
