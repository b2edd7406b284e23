package benchmark_test

import (
	"bytes"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/benchmark"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

// claimFor asks for a claim whose record is kept for ttl.
func claimFor(ttl time.Duration) idempotency.ClaimRequest {
	return idempotency.ClaimRequest{Lease: time.Minute, TTL: ttl, TakeOver: true}
}

func answerOf(size int) idempotency.Response {
	return idempotency.Response{Status: http.StatusOK, Body: bytes.Repeat([]byte("x"), size)}
}

func keyOf(user, id string) idempotency.Key {
	return idempotency.Key{User: user, Endpoint: "POST /payments", ID: id}
}

// mustComplete claims the key and stores the answer.
func mustComplete(b *testing.B, store idempotency.Store, key idempotency.Key, resp idempotency.Response) idempotency.Claim {
	b.Helper()
	_, claim, err := store.Begin(b.Context(), key, claimFor(time.Hour))
	require.NoError(b, err)
	require.NotNil(b, claim)
	require.NoError(b, claim.Complete(b.Context(), resp, time.Hour))
	return claim
}

// BenchmarkStore has the steps of both stores by themselves, without a middleware.
func BenchmarkStore(b *testing.B) {
	backends, err := benchmark.OpenRedis()
	servertest.Require(b, err)
	b.Cleanup(backends.Close)
	for name, newStore := range map[string]func() idempotency.Store{
		"memory": func() idempotency.Store {
			return idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: 1 << 40})
		},
		"redis": func() idempotency.Store { return idempotency.NewRedisStore(backends.Redis, idempotency.RedisOptions{}) },
	} {
		b.Run(name+"/Begin", func(b *testing.B) {
			require.NoError(b, backends.Redis.FlushAll(b.Context()).Err())
			store, keys := newStore(), benchmark.NewKeys(b.N)
			b.ReportAllocs()
			b.ResetTimer()
			for _, id := range keys {
				if _, claim, err := store.Begin(b.Context(), keyOf("alice", id), claimFor(time.Hour)); err != nil || claim == nil {
					b.Fatal(claim, err)
				}
			}
		})
		for size, resp := range map[string]idempotency.Response{"200B": answerOf(200), "64KiB": answerOf(64 << 10)} {
			key := keyOf("alice", benchmark.NewKeys(1)[0])
			b.Run(name+"/Complete/"+size, func(b *testing.B) {
				require.NoError(b, backends.Redis.FlushAll(b.Context()).Err())
				claim := mustComplete(b, newStore(), key, resp)
				b.ReportAllocs()
				for b.Loop() { // repetitions, which cost the client of Redis the same as the first one
					if err := claim.Complete(b.Context(), resp, time.Hour); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run(name+"/replay/"+size, func(b *testing.B) {
				require.NoError(b, backends.Redis.FlushAll(b.Context()).Err())
				store := newStore()
				mustComplete(b, store, key, resp)
				b.ReportAllocs()
				for b.Loop() {
					record, claim, err := store.Begin(b.Context(), key, claimFor(time.Hour))
					if err != nil || claim != nil || len(record.Response.Body) != len(resp.Body) {
						b.Fatal(record, claim, err)
					}
				}
			})
		}
	}
}

// BenchmarkMemoryStore claims and completes records while as many expire. They belong to one user, or each to another,
// and are kept for equal times or not.
func BenchmarkMemoryStore(b *testing.B) {
	resp := answerOf(200)
	alice := func(string) string { return "alice" }
	equal := func(int) time.Duration { return time.Millisecond }
	for name, bench := range map[string]struct {
		userOf func(id string) string
		ttlOf  func(n int) time.Duration
	}{
		"one user":   {alice, equal},
		"many users": {func(id string) string { return id[:12] }, equal},
		"many TTLs":  {alice, func(n int) time.Duration { return time.Duration(n%1000) * 50 * time.Microsecond }},
	} {
		b.Run(name, func(b *testing.B) {
			store, keys := idempotency.NewMemoryStore(idempotency.MemoryOptions{}), benchmark.NewKeys(b.N)
			var last atomic.Int64
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					n := int(last.Add(1)) - 1
					_, claim, err := store.Begin(b.Context(), keyOf(bench.userOf(keys[n]), keys[n]), claimFor(time.Minute))
					if err == nil && claim != nil {
						err = claim.Complete(b.Context(), resp, bench.ttlOf(n))
					}
					if err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}
