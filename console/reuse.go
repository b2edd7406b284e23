package console

import (
	"context"
	"slices"
	"time"

	"github.com/idempotency-go/idempotency"
)

const (
	mostReuses  = 1000 // that a console remembers
	reusesShown = 5    // at an operation
)

// reuse is a request that was refused, because its key came with another one before.
type reuse struct {
	digest [32]byte
	At     time.Time
	Names  []string // of what differs
}

// Observe is an [idempotency.Observer]: give it to Options.Observer of the service, or call it from yours. The console
// remembers the newest 1,000 requests that were refused with OutcomeKeyReused, in memory, and shows at an operation how many
// there were. It does not know those that other processes have refused, and a client that is refused 1,000 times displaces
// all others.
func (c *Console) Observe(_ context.Context, e idempotency.Event) {
	if e.Outcome != idempotency.OutcomeKeyReused {
		return
	}
	one := reuse{digest: e.Key.Digest(), At: time.Now()}
	if c.opts.Differences != nil {
		one.Names = c.opts.Differences(e)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.reuses) == mostReuses {
		c.reuses = slices.Delete(c.reuses, 0, 1)
	}
	c.reuses = append(c.reuses, one)
}

// reusesOf returns the requests that were refused with the key of an operation, the newest one first.
func (c *Console) reusesOf(digest [32]byte) (all []reuse) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range slices.Backward(c.reuses) {
		if one.digest == digest {
			all = append(all, one)
		}
	}
	return all
}
