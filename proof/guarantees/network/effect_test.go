package network_test

import (
	"net/http"
	"sync"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/idempotency-go/idempotency"
)

// effectDeadline remembers until when an effect other than a row must not be repeated.
type effectDeadline struct {
	mu          sync.Mutex
	leaseEnd    time.Time // the lease of the last effect runs at least until leaseEnd; zero: no effect yet
	repeatCount int       // effects of runs that began after leaseEnd
}

// countRepeats returns the number of effects after the first effect. A takeover after a crash may repeat the effect.
func (e *effectDeadline) countRepeats() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.repeatCount
}

// leaseRounding is more than a store may add to the rest of a lease by rounding.
const leaseRounding = 10 * time.Millisecond

// haveEffect adds the effect of a run of the handler that began at began.
func (tr *trial) haveEffect(r *http.Request, began time.Time) error {
	if tr.effectsAreRows { // a second row is never allowed
		return tr.effectLedger.addEffect(r.Context(), tr.key)
	}
	until := tr.earliestLeaseEnd()
	e := &tr.effectDeadline
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.leaseEnd.IsZero() {
		assert.Equal(tr, idempotency.ReExecute, tr.policy, "a second effect")
		assert.False(tr, began.Before(e.leaseEnd), "a second effect, %v before the lease of the first one lapses", e.leaseEnd.Sub(began))
		e.repeatCount++
	}
	e.leaseEnd = until
	return tr.effectLedger.addEffect(r.Context(), tr.key)
}

// earliestLeaseEnd returns an instant before the end of the current lease.
func (tr *trial) earliestLeaseEnd() time.Time {
	now := time.Now()
	if tr.leaseDuration == 0 {
		return now.Add(longLease / 2) // longer than any trial
	}
	record, _, err := tr.processes[0].rememberingStore.repeatBegin(tr.directStore)
	assert.NoError(tr, err)
	return now.Add(record.LeaseLeft - leaseRounding)
}
