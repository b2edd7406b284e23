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

// NumberedKey returns a key with n in its ID.
func NumberedKey(n int) idempotency.Key {
	return idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: fmt.Sprintf("%036d", n)}
}

// AttemptFor returns a claim request with a lease of a minute, and TakeOver set.
func AttemptFor(ttl time.Duration) idempotency.ClaimRequest {
	return idempotency.ClaimRequest{Fingerprint: idempotency.Fingerprint{1}, Lease: time.Minute, TTL: ttl, TakeOver: true}
}

// BodyOf returns a response with a body of n bytes.
func BodyOf(n int) idempotency.Response {
	return idempotency.Response{Status: http.StatusCreated, Body: make([]byte, n)}
}

// MustClaim claims key, which must be free.
func MustClaim(
	t testing.TB, store idempotency.Store, key idempotency.Key, request idempotency.ClaimRequest,
) idempotency.Claim {
	t.Helper()
	_, claim, err := store.Begin(t.Context(), key, request)
	require.NoError(t, err)
	require.NotNil(t, claim, "the key is not free")
	return claim
}

// InDoubt returns the claim of a [idempotency.ClaimInDoubtError], or nil for any other error.
func InDoubt(err error) idempotency.Claim {
	inDoubt, ok := errors.AsType[*idempotency.ClaimInDoubtError](err)
	if !ok {
		return nil
	}
	return inDoubt.Claim
}

// MustComplete claims key, which must be free, and completes the record with resp.
func MustComplete(t testing.TB, store idempotency.Store, key idempotency.Key, resp idempotency.Response) {
	t.Helper()
	require.NoError(t, MustClaim(t, store, key, AttemptFor(time.Hour)).Complete(t.Context(), resp, time.Hour))
}

// MustRead returns the record of key. The record must keep a new attempt from claiming the key.
func MustRead(t testing.TB, store idempotency.Store, key idempotency.Key) idempotency.Record {
	t.Helper()
	record, claim, err := store.Begin(t.Context(), key, AttemptFor(time.Hour))
	require.NoError(t, err)
	require.Nil(t, claim, "the key is free")
	return record
}

// MustInspect returns the entry of key.
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

// Crash claims the key of the request that svc.Call(key, body) sends, as an attempt of a process that then crashes. The
// claim is neither renewed nor settled.
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

// HeapInUse returns the size of all reachable objects in bytes.
func HeapInUse() int64 {
	runtime.GC()
	runtime.GC() // frees the objects that the first collection has moved out of sync.Pools
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// Until calls step until step returns true, and returns the time that this took.
func Until(t *testing.T, step func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	require.Eventually(t, step, time.Minute, 5*time.Millisecond)
	return time.Since(began)
}
