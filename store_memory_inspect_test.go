package idempotency_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/testservice"
)

// The first records of a listing are the same ones, however many it leaves out.
func TestMemoryListOfMany(t *testing.T) {
	t.Parallel()
	const n = 3000
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	for i := range n {
		testservice.MustComplete(t, store, testservice.NumberedKey(i), testservice.BodyOf(i*7919%n)) // each size once
	}
	for _, largest := range []bool{false, true} {
		all, err := store.List(t.Context(), idempotency.ListRequest{Largest: largest, Limit: n})
		require.NoError(t, err)
		require.Len(t, all.Entries, n)
		for _, limit := range []int{1, 10, 999, 1000, 1001, 2500} {
			some, err := store.List(t.Context(), idempotency.ListRequest{Largest: largest, Limit: limit})
			require.NoError(t, err)
			require.Equal(t, listedDigests(all)[:limit], listedDigests(some))
			require.Equal(t, all.Totals, some.Totals)
		}
		if largest {
			require.Greater(t, all.Entries[0].Size, all.Entries[n-1].Size+n-2)
		}
	}
}

// What is forgotten makes room.
func TestMemoryForgetMakesRoom(t *testing.T) {
	t.Parallel()
	store := oneUserStore(10_000)
	for range 100 {
		testservice.MustComplete(t, store, testservice.NumberedKey(0), testservice.BodyOf(5000))
		entry := testservice.MustInspect(t, store, testservice.NumberedKey(0))
		require.Len(t, entry.Response.Body, 5000, "there was no room for it")
		require.NoError(t, store.Forget(t.Context(), entry))
	}
}

func TestMemoryListEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := idempotency.NewMemoryStore(idempotency.MemoryOptions{}).List(ctx, idempotency.ListRequest{})
	require.ErrorIs(t, err, context.Canceled)
}

func TestInspectorReportsOptions(t *testing.T) {
	t.Parallel()
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: -1})
	_, err := store.Inspect(t.Context(), testservice.NumberedKey(0))
	require.ErrorContains(t, err, "MaxBytes")
	require.ErrorContains(t, store.Forget(t.Context(), idempotency.Entry{}), "MaxBytes")
	_, err = store.List(t.Context(), idempotency.ListRequest{})
	require.ErrorContains(t, err, "MaxBytes")
	_, client := testservice.NewMiniredis(t)
	for name, store := range map[string]idempotency.Inspector{
		"memory": idempotency.NewMemoryStore(idempotency.MemoryOptions{}),
		"redis":  idempotency.NewRedisStore(client, idempotency.RedisOptions{}),
	} {
		_, err := store.List(t.Context(), idempotency.ListRequest{Limit: -1, Scan: -2})
		require.ErrorContains(t, err, "Limit -1", name)
		require.ErrorContains(t, err, "Scan -2", name)
	}
}
