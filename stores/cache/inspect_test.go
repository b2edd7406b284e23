package cache_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/stores/cache"
)

// What is forgotten through a Cache is not replayed by it, whether the store behind knows the parts of the key or not.
func TestCacheForgetsOnDemand(t *testing.T) {
	t.Parallel()
	_, client := testservice.NewMiniredis(t)
	for name, inner := range map[string]idempotency.Store{
		"memory": idempotency.NewMemoryStore(idempotency.MemoryOptions{}),
		"redis":  idempotency.NewRedisStore(client, idempotency.RedisOptions{}),
		"sealed": testservice.MustSeal(t, idempotency.NewMemoryStore(idempotency.MemoryOptions{}), testservice.Sealing("key")),
	} {
		t.Run(name, func(t *testing.T) {
			cached := cache.New(inner, cache.Options{MaxAge: time.Hour})
			elsewhere := cache.New(inner, cache.Options{MaxAge: time.Hour})
			for i := range 3 {
				key := testservice.NumberedKey(i)
				testservice.MustComplete(t, cached, key, testservice.BodyOf(i))
				testservice.Until(t, func() bool { // a store that is asked on a busy machine may not know what remains
					return testservice.MustRead(t, elsewhere, key).Remaining > 0
				})
			}
			listed := make(map[uuid.UUID]idempotency.Entry) // in any order, if they are of one millisecond
			for _, entry := range testservice.MustList(t, cached).Entries {
				listed[entry.Operation] = entry
			}
			for i := range 2 {
				require.NoError(t, cached.Forget(t.Context(), listed[testservice.NumberedKey(i).OperationID()]))
				testservice.MustClaim(t, cached, testservice.NumberedKey(i), testservice.AttemptFor(time.Hour))
				require.Len(t, testservice.MustRead(t, elsewhere, testservice.NumberedKey(i)).Response.Body, i, "for up to MaxAge")
			}
			require.Len(t, testservice.MustRead(t, cached, testservice.NumberedKey(2)).Response.Body, 2)

			// Who has forgotten at the store itself can still have the Cache forget its copy.
			entry := testservice.MustInspect(t, cached, testservice.NumberedKey(2))
			require.NoError(t, inner.(idempotency.Inspector).Forget(t.Context(), entry))
			require.Len(t, testservice.MustRead(t, cached, testservice.NumberedKey(2)).Response.Body, 2)
			require.ErrorIs(t, cached.Forget(t.Context(), entry), idempotency.ErrNoRecord)
			testservice.MustClaim(t, cached, testservice.NumberedKey(2), testservice.AttemptFor(time.Hour))
		})
	}
}

// A Begin that the store has answered before a Forget does not bring the record back into the Cache.
func TestCacheForgetsWhatComesLate(t *testing.T) {
	t.Parallel()
	inner := &lateStore{MemoryStore: idempotency.NewMemoryStore(idempotency.MemoryOptions{})}
	cached := cache.New(inner, cache.Options{})
	testservice.MustComplete(t, inner.MemoryStore, testservice.NumberedKey(0), testservice.BodyOf(1))
	entry := testservice.MustInspect(t, cached, testservice.NumberedKey(0))
	inner.afterBegin = func() { require.NoError(t, cached.Forget(t.Context(), entry)) }
	require.Len(t, testservice.MustRead(t, cached, testservice.NumberedKey(0)).Response.Body, 1)
	inner.afterBegin = nil
	testservice.MustClaim(t, cached, testservice.NumberedKey(0), testservice.AttemptFor(time.Hour))
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

func TestInspectorReportsFaults(t *testing.T) {
	t.Parallel()
	cached := cache.New(nil, cache.Options{MaxBytes: -1})
	_, err := cached.Inspect(t.Context(), testservice.NumberedKey(0))
	require.ErrorContains(t, err, "MaxBytes")
	require.ErrorContains(t, cached.Forget(t.Context(), idempotency.Entry{}), "MaxBytes")
	_, err = cached.List(t.Context(), idempotency.ListRequest{})
	require.ErrorContains(t, err, "MaxBytes")
}

// A cache in front of a store that shows nothing says so.
func TestNoInspectorBehind(t *testing.T) {
	t.Parallel()
	inner := struct{ idempotency.Store }{idempotency.NewMemoryStore(idempotency.MemoryOptions{})}
	for name, store := range map[string]idempotency.Store{
		"cached": inner, "both": testservice.MustSeal(t, inner, testservice.Sealing("key")),
	} {
		t.Run(name, func(t *testing.T) {
			cached := newCache(store)
			_, err := cached.Inspect(t.Context(), testservice.NumberedKey(0))
			require.ErrorIs(t, err, errors.ErrUnsupported)
			require.ErrorIs(t, cached.Forget(t.Context(), idempotency.Entry{}), errors.ErrUnsupported)
			_, err = cached.List(t.Context(), idempotency.ListRequest{})
			require.ErrorIs(t, err, errors.ErrUnsupported)
		})
	}
}
