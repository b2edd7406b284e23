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

// Answers are forgotten at the end of their TTL. Their keys are executed again, but not charged again.
func TestAnswersExpire(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	client := newClient(t, server)
	opts := briefOptions
	opts.TTL = opts.Lease
	s := newShop(t, opts, &memoryLedger{}, twoStores(func() redis.Cmdable { return newClient(t, server) })...)
	s.payDuring(100, func() {})
	require.Eventually(t, func() bool { return countRecords(t, client) == 0 }, patience, 10*time.Millisecond)
	found := s.auditSales(t, loss{lostBefore: time.Now(), affectedBefore: time.Now()}, false)
	found.reportCounts(t)
}

// A store in memory forgets every record when its process starts again. Repeated operations are not charged again.
func TestMemoryStoreStartsAgain(t *testing.T) {
	t.Parallel()
	var store restartingStore
	store.restart()
	s := newShop(t, briefOptions, &memoryLedger{}, &store, &store)
	var found auditCounts
	faults := effort.Of(10)
	for range faults {
		var cost loss
		s.payDuring(100, func() {
			cost.lostBefore = time.Now()
			store.restart()
			cost.affectedBefore = time.Now()
		})
		found.addCounts(s.auditSales(t, cost, false))
	}
	effort.Count(t, "faults", faults)
	found.reportCounts(t)
}

// restartingStore is a store in memory that restart replaces by an empty store.
type restartingStore struct {
	current atomic.Pointer[idempotency.MemoryStore]
}

func (r *restartingStore) restart() {
	r.current.Store(idempotency.NewMemoryStore(idempotency.MemoryOptions{}))
}

// Begin implements [idempotency.Store].
func (r *restartingStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	return r.current.Load().Begin(ctx, key, request)
}
