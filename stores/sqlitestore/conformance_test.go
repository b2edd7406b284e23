package sqlitestore_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/stores/seal"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	store := openStore(t, newPath(t), sqlitestore.Options{})
	idempotencytest.Run(t, func(*testing.T) idempotency.Store { return store })
	idempotencytest.RunSteps(t, func(*testing.T) idempotency.Store { return store })
}

// The store also conforms with all options set, and when it is sealed.
func TestSealedStoreConforms(t *testing.T) {
	t.Parallel()
	store := openStore(t, newPath(t), sqlitestore.Options{Synchronous: sqlitestore.Normal, MaxBytes: 256 << 20})
	sealed, err := seal.New(store, seal.Options{
		Keys: []seal.Key{{ID: "1", Secret: make([]byte, 32)}},
	})
	require.NoError(t, err)
	idempotencytest.Run(t, func(*testing.T) idempotency.Store { return sealed })
	idempotencytest.RunSteps(t, func(*testing.T) idempotency.Store { return sealed })
}

// Stores on the same file exclude each other as processes do, because each store has its own connections and its own
// writer.
func TestStoresShareOneFile(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	stores := roundRobin{stores: []idempotency.Store{
		openStore(t, path, sqlitestore.Options{}), openStore(t, path, sqlitestore.Options{}), openStore(t, path, sqlitestore.Options{}),
	}}
	idempotencytest.Run(t, func(*testing.T) idempotency.Store { return &stores })
	idempotencytest.RunSteps(t, func(*testing.T) idempotency.Store { return &stores })
}

// roundRobin sends each request to the next store.
type roundRobin struct {
	stores       []idempotency.Store
	requestCount atomic.Int64
}

func (s *roundRobin) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	return s.stores[int(s.requestCount.Add(1))%len(s.stores)].Begin(ctx, key, request)
}
