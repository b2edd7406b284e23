package console

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
)

const (
	maxReuses      = 1000 // remembered by a console
	maxShownReuses = 5    // on the page of an operation
)

// reusedRequest is a request that was refused because its key belongs to a different request.
type reusedRequest struct {
	operation uuid.UUID
	At        time.Time
	Names     []string // of the parts that differ, by Options.Differences
}

// Observe is an [idempotency.Observer]. Give Observe to Options.Observer of the service, or call Observe from the observer of the
// service. The console keeps the newest 1,000 requests with OutcomeKeyReused in memory, and shows their number on the page of
// the operation. Requests that other processes refused are missing, and a client that is refused 1,000 times displaces the
// requests of all other clients.
func (c *Console) Observe(_ context.Context, e idempotency.Event) {
	if e.Outcome != idempotency.OutcomeKeyReused {
		return
	}
	reused := reusedRequest{operation: e.Key.OperationID(), At: time.Now()}
	if c.opts.Differences != nil {
		reused.Names = c.opts.Differences(e)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.recentReuses) == maxReuses {
		c.recentReuses = slices.Delete(c.recentReuses, 0, 1)
	}
	c.recentReuses = append(c.recentReuses, reused)
}

// listReuses returns the requests that were refused with the key of operation, the newest first.
func (c *Console) listReuses(operation uuid.UUID) (all []reusedRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, reused := range slices.Backward(c.recentReuses) {
		if reused.operation == operation {
			all = append(all, reused)
		}
	}
	return all
}
