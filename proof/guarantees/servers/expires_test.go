package servers_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/guarantees/effort"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

// Answers whose TTL is over are forgotten. Their keys are executed again, and not charged again.
func TestAnswersExpire(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	client := newClient(t, server)
	opts := brief
	opts.TTL = opts.Lease
	s := newShop(t, opts, &memory{}, twoStores(func() redis.Cmdable { return newClient(t, server) })...)
	s.open(100, func() {})
	require.Eventually(t, func() bool { return claims(t, client) == 0 }, patience, 10*time.Millisecond)
	found := s.audit(t, loss{to: time.Now(), until: time.Now()}, false)
	found.report(t)
}

// A store in memory whose process starts again has forgotten everything. What is executed again is not charged again.
func TestMemoryStoreStartsAgain(t *testing.T) {
	t.Parallel()
	var store restarted
	store.restart()
	s := newShop(t, brief, &memory{}, &store, &store)
	var found counts
	faults := effort.Of(10)
	for range faults {
		var cost loss
		s.open(100, func() {
			cost.to = time.Now()
			store.restart()
			cost.until = time.Now()
		})
		found.add(s.audit(t, cost, false))
	}
	effort.Count(t, "faults", faults)
	found.report(t)
}

// restarted is a store in memory, or the one after it.
type restarted struct {
	now atomic.Pointer[idempotency.MemoryStore]
}

func (r *restarted) restart() { r.now.Store(idempotency.NewMemoryStore(idempotency.MemoryOptions{})) }

// Begin implements [idempotency.Store].
func (r *restarted) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	return r.now.Load().Begin(ctx, key, request)
}
