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
	store := open(t, newPath(t), sqlitestore.Options{})
	idempotencytest.Run(t, func(*testing.T) idempotency.Store { return store })
	idempotencytest.RunSteps(t, func(*testing.T) idempotency.Store { return store })
}

// The store conforms with all options set and sealed, too.
func TestSealedStoreConforms(t *testing.T) {
	t.Parallel()
	store := open(t, newPath(t), sqlitestore.Options{Synchronous: sqlitestore.Normal, MaxBytes: 256 << 20})
	sealed, err := seal.New(store, seal.Options{
		Keys: []seal.Key{{ID: "1", Secret: make([]byte, 32)}},
	})
	require.NoError(t, err)
	idempotencytest.Run(t, func(*testing.T) idempotency.Store { return sealed })
	idempotencytest.RunSteps(t, func(*testing.T) idempotency.Store { return sealed })
}

// Stores with the same file exclude each other as processes do: each has connections and a writer of its own.
func TestStoresShareOneFile(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	stores := spread{stores: []idempotency.Store{
		open(t, path, sqlitestore.Options{}), open(t, path, sqlitestore.Options{}), open(t, path, sqlitestore.Options{}),
	}}
	idempotencytest.Run(t, func(*testing.T) idempotency.Store { return &stores })
	idempotencytest.RunSteps(t, func(*testing.T) idempotency.Store { return &stores })
}

// spread asks one store after the other.
type spread struct {
	stores []idempotency.Store
	next   atomic.Int64
}

func (s *spread) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	return s.stores[int(s.next.Add(1))%len(s.stores)].Begin(ctx, key, request)
}
