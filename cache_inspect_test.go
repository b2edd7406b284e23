package idempotency_test

import (
	"context"
	"crypto/sha256"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// What is forgotten through a Cache is not replayed by it, whether the store behind knows the parts of the key or not.
func TestCacheForgetsOnDemand(t *testing.T) {
	t.Parallel()
	_, client := newMiniredis(t)
	for name, inner := range map[string]idempotency.Store{
		"memory": idempotency.NewMemoryStore(idempotency.MemoryOptions{}),
		"redis":  idempotency.NewRedisStore(client, idempotency.RedisOptions{}),
		"sealed": mustSeal(t, idempotency.NewMemoryStore(idempotency.MemoryOptions{}), sealing("key")),
	} {
		t.Run(name, func(t *testing.T) {
			cache := idempotency.NewCache(inner, idempotency.CacheOptions{})
			elsewhere := idempotency.NewCache(inner, idempotency.CacheOptions{})
			for i := range 3 {
				mustComplete(t, cache, numberedKey(i), bodyOf(i))
				mustRead(t, elsewhere, numberedKey(i))
			}
			listed := make(map[[sha256.Size]byte]idempotency.Entry) // in any order, if they are of one millisecond
			for _, entry := range mustList(t, cache).Entries {
				listed[entry.Digest] = entry
			}
			for i := range 2 {
				require.NoError(t, cache.Forget(t.Context(), listed[numberedKey(i).Digest()]))
				mustClaim(t, cache, numberedKey(i), attemptFor(time.Hour))
				require.Len(t, mustRead(t, elsewhere, numberedKey(i)).Response.Body, i, "for up to MaxAge")
			}
			require.Len(t, mustRead(t, cache, numberedKey(2)).Response.Body, 2)

			// Who has forgotten at the store itself can still have the Cache forget its copy.
			entry := mustInspect(t, cache, numberedKey(2))
			require.NoError(t, inner.(idempotency.Inspector).Forget(t.Context(), entry))
			require.Len(t, mustRead(t, cache, numberedKey(2)).Response.Body, 2)
			require.ErrorIs(t, cache.Forget(t.Context(), entry), idempotency.ErrNoRecord)
			mustClaim(t, cache, numberedKey(2), attemptFor(time.Hour))
		})
	}
}

// A Begin that the store has answered before a Forget does not bring the record back into the Cache.
func TestCacheForgetsWhatComesLate(t *testing.T) {
	t.Parallel()
	inner := &lateStore{MemoryStore: idempotency.NewMemoryStore(idempotency.MemoryOptions{})}
	cache := idempotency.NewCache(inner, idempotency.CacheOptions{})
	mustComplete(t, inner.MemoryStore, numberedKey(0), bodyOf(1))
	entry := mustInspect(t, cache, numberedKey(0))
	inner.afterBegin = func() { require.NoError(t, cache.Forget(t.Context(), entry)) }
	require.Len(t, mustRead(t, cache, numberedKey(0)).Response.Body, 1)
	inner.afterBegin = nil
	mustClaim(t, cache, numberedKey(0), attemptFor(time.Hour))
}

// lateStore does something after each Begin, before it returns.
type lateStore struct {
	*idempotency.MemoryStore
	afterBegin func()
}

func (s *lateStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	record, claim, err := s.MemoryStore.Begin(ctx, key, request)
	if s.afterBegin != nil {
		s.afterBegin()
	}
	return record, claim, err
}

func TestInspectorReportsOptions(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]idempotency.Inspector{
		"memory": idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: -1}),
		"cache":  idempotency.NewCache(nil, idempotency.CacheOptions{MaxBytes: -1}),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := store.Inspect(t.Context(), numberedKey(0))
			require.ErrorContains(t, err, "MaxBytes")
			require.ErrorContains(t, store.Forget(t.Context(), idempotency.Entry{}), "MaxBytes")
			_, err = store.List(t.Context(), idempotency.ListRequest{})
			require.ErrorContains(t, err, "MaxBytes")
		})
	}
	_, client := newMiniredis(t)
	for name, store := range map[string]idempotency.Inspector{
		"memory": idempotency.NewMemoryStore(idempotency.MemoryOptions{}),
		"redis":  idempotency.NewRedisStore(redis.Cmdable(client), idempotency.RedisOptions{}),
	} {
		_, err := store.List(t.Context(), idempotency.ListRequest{Limit: -1, Scan: -2})
		require.ErrorContains(t, err, "Limit -1", name)
		require.ErrorContains(t, err, "Scan -2", name)
	}
}
