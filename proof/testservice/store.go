package testservice

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// NumberedKey returns the n-th of many keys.
func NumberedKey(n int) idempotency.Key {
	return idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: fmt.Sprintf("%036d", n)}
}

// AttemptFor returns an attempt with a lease of a minute.
func AttemptFor(ttl time.Duration) idempotency.ClaimRequest {
	return idempotency.ClaimRequest{Fingerprint: idempotency.Fingerprint{1}, Lease: time.Minute, TTL: ttl, TakeOver: true}
}

// BodyOf returns a response with a body of n bytes.
func BodyOf(n int) idempotency.Response {
	return idempotency.Response{Status: http.StatusCreated, Body: make([]byte, n)}
}

// MustClaim claims a free key.
func MustClaim(
	t testing.TB, store idempotency.Store, key idempotency.Key, request idempotency.ClaimRequest,
) idempotency.Claim {
	t.Helper()
	_, claim, err := store.Begin(t.Context(), key, request)
	require.NoError(t, err)
	require.NotNil(t, claim, "the key is held by somebody else")
	return claim
}

// InDoubt returns the claim that an error of Begin carries, or nil.
func InDoubt(err error) idempotency.Claim {
	inDoubt, ok := errors.AsType[*idempotency.ClaimInDoubtError](err)
	if !ok {
		return nil
	}
	return inDoubt.Claim
}

// MustComplete claims a free key and completes its record.
func MustComplete(t testing.TB, store idempotency.Store, key idempotency.Key, resp idempotency.Response) {
	t.Helper()
	require.NoError(t, MustClaim(t, store, key, AttemptFor(time.Hour)).Complete(t.Context(), resp, time.Hour))
}

// MustRead returns the record that holds the key.
func MustRead(t testing.TB, store idempotency.Store, key idempotency.Key) idempotency.Record {
	t.Helper()
	record, claim, err := store.Begin(t.Context(), key, AttemptFor(time.Hour))
	require.NoError(t, err)
	require.Nil(t, claim, "nobody holds the key")
	return record
}

// MustInspect returns the entry of a key.
func MustInspect(t testing.TB, store idempotency.Store, key idempotency.Key) idempotency.Entry {
	t.Helper()
	entry, err := store.(idempotency.Inspector).Inspect(t.Context(), key)
	require.NoError(t, err)
	return entry
}

// MustList returns a listing of up to ten thousand records.
func MustList(t testing.TB, store idempotency.Store) idempotency.Listing {
	t.Helper()
	listing, err := store.(idempotency.Inspector).List(t.Context(), idempotency.ListRequest{Limit: 10_000})
	require.NoError(t, err)
	return listing
}

// Crash makes a first attempt at what svc.Call(key, body) asks for, which ends without a trace.
func Crash(t *testing.T, svc *Service, key, body string, lease time.Duration) idempotency.Record {
	t.Helper()
	fp, err := idempotency.FingerprintRaw(httptest.NewRequest(http.MethodPost, "/payments", nil), []byte(body))
	require.NoError(t, err)
	rec, claim, err := svc.Store.Begin(t.Context(), idempotency.Key{User: "single", Endpoint: "POST /payments", ID: key},
		idempotency.ClaimRequest{Fingerprint: fp, Lease: lease, TTL: time.Hour})
	require.NoError(t, err)
	require.NotNil(t, claim)
	return rec
}

// HeapInUse returns the bytes of all that is reachable.
func HeapInUse() int64 {
	runtime.GC()
	runtime.GC() // what the first one moved out of the pools
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// Until calls step until it reports true, and returns how long that took.
func Until(t *testing.T, step func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	require.Eventually(t, step, time.Minute, 5*time.Millisecond)
	return time.Since(began)
}
