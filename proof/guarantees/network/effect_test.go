package network_test

import (
	"net/http"
	"sync"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/idempotency-go/idempotency"
)

// lastEffect remembers until when nobody may repeat an effect that is no row.
type lastEffect struct {
	mu      sync.Mutex
	until   time.Time // the lease runs at least so long; zero: there was no effect
	repeats int       // by runs that began after the lease had lapsed
}

// repeated returns how many effects there were more than one, as after a crash.
func (e *lastEffect) repeated() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.repeats
}

// rounding is more than what a store may add to a lease when it tells how long that still runs.
const rounding = 10 * time.Millisecond

// act has the effect of a run of the handler that began then.
func (tr *trial) act(r *http.Request, began time.Time) error {
	if tr.rows { // there is no second row, whoever runs
		return tr.effects.add(r.Context(), tr.key)
	}
	until := tr.leaseEnds()
	e := &tr.effect
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.until.IsZero() {
		assert.Equal(tr, idempotency.ReExecute, tr.policy, "a second effect")
		assert.False(tr, began.Before(e.until), "a second effect, %v before the lease of the first one lapses", e.until.Sub(began))
		e.repeats++
	}
	e.until = until
	return tr.effects.add(r.Context(), tr.key)
}

// leaseEnds returns an instant that is not after the end of the lease which runs now.
func (tr *trial) leaseEnds() time.Time {
	now := time.Now()
	if tr.lease == 0 {
		return now.Add(longLease / 2) // longer than any trial
	}
	record, _, err := tr.processes[0].store.again(tr.direct)
	assert.NoError(tr, err)
	return now.Add(record.LeaseLeft - rounding)
}
