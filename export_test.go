package idempotency

import (
	"context"
	"net/http"
	"time"

	"github.com/idempotency-go/idempotency/internal/checkpoint"
)

// RefusalFor returns the refusal that a client gets for err.
var RefusalFor = refusalFor

// MemoryUsage holds the bytes of all records in a store, and the bytes of the records of each user.
type MemoryUsage struct {
	TotalBytes  int64
	BytesByUser map[string]int64
}

// CountedUsage returns the usage that the store has counted with each change.
func (s *MemoryStore) CountedUsage() MemoryUsage {
	total, users := s.byteUsage.Counted()
	return MemoryUsage{total, users}
}

// MeasuredUsage measures the usage anew, from all records in the store.
func (s *MemoryStore) MeasuredUsage() MemoryUsage {
	measured := MemoryUsage{BytesByUser: map[string]int64{}}
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for _, e := range sh.entries {
			measured.TotalBytes += e.countBytes()
			measured.BytesByUser[e.key.User] += e.countBytes()
		}
		sh.mu.Unlock()
	}
	return measured
}

// UsersCounted returns the number of users with bodies in the body budget, plus the number of users with waiting requests.
func (m *Middleware) UsersCounted() int {
	return m.bodyBudget.Users() + m.runner.waitingRequests.userShares.Users()
}

// RenewLate starts the renewals of a lease that was requested age ago, as if the process had stood still meanwhile. RenewLate
// returns the context of the owner.
func (r *Runner) RenewLate(ctx context.Context, claim Claim, age time.Duration) context.Context {
	owner, cancel := context.WithCancelCause(ctx)
	l := &lease{leaseSettings: &r.leaseSettings, claim: claim, storeCtx: ctx, cancelAttempt: cancel}
	l.startRenewals(time.Now().Add(-age))
	return owner
}

// StopTimers stops the renewal timer of the attempt that ctx belongs to, as if the process stood still.
func StopTimers(ctx context.Context) {
	l := &ctx.Value(checkpoint.Key{}).(*attempt).lease
	l.mu.Lock()
	defer l.mu.Unlock()
	l.renewTimer.Stop()
}

// WithSelectors returns fp extended by the fields of h with the given names.
func (fp Fingerprint) WithSelectors(h http.Header, names []string) Fingerprint {
	return fp.withSelectors(h, mergeSelectors(names))
}

// FindKey returns the key in the fields of h with one of the names.
func FindKey(h http.Header, names ...string) (string, error) { return findKey(h, names) }

// RunnerOptionsOf returns the options that a Middleware with o passes to its Runner.
func RunnerOptionsOf(o Options) RunnerOptions { return o.runnerOptions() }
