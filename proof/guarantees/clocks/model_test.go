//go:build linux

package clocks_test

import (
	"fmt"
	"time"
)

// The lease and the TTL, in the model and in the stores.
const (
	lease = 600 * time.Second
	ttl   = 4000 * time.Second
)

// model is the record of one key in a store that measures all times with its own clock. The model predicts the outcome of each
// request.
type model struct {
	kind             kind
	refusesAbandoned bool
	now              time.Duration // the shift of the clock

	record      *modelRecord
	claimByName map[string]modelRecord
}

// modelRecord is the record of the key, or the record that a claim has made.
type modelRecord struct {
	state            string // "running", "released", "done"
	owner            string
	attempt          int
	leaseEnd, expiry time.Duration
}

// liveRecord returns the unexpired record, or nil. Redis deletes an expired record at the next access. PostgreSQL keeps an expired
// record until another record replaces the row, so the record comes back to life if the clock is set back.
func (m *model) liveRecord() *modelRecord {
	if m.record == nil || m.record.expiry > m.now {
		return m.record
	}
	if !m.kind.isPostgres {
		m.record = nil
	}
	return nil
}

// beginRequest returns the outcome of a request, or the attempt that the request has claimed.
func (m *model) beginRequest(name string) string {
	if r := m.liveRecord(); r != nil {
		switch {
		case r.state == "done":
			return "replays " + r.owner
		case r.state == "running" && r.leaseEnd > m.now:
			return "in progress"
		case r.state == "running" && m.refusesAbandoned:
			return "unknown"
		}
		return m.grantClaim(name, r.attempt+1)
	}
	return m.grantClaim(name, 1)
}

func (m *model) grantClaim(name string, attempt int) string {
	claim := modelRecord{"running", name, attempt, m.now + lease, m.now + ttl}
	if m.claimByName == nil {
		m.claimByName = map[string]modelRecord{}
	}
	m.claimByName[name] = claim
	m.record = &claim
	return fmt.Sprint("attempt ", attempt)
}

// holdsRecord reports whether the record belongs to the claim of the request name.
func (m *model) holdsRecord(name string) bool {
	r := m.liveRecord()
	return r != nil && r.state == "running" && r.owner == name
}

// isForgotten reports whether the record of the request name is gone, so that its claim may restore the record. An expired
// record of another request shows that this other request has claimed the key in the meantime.
func (m *model) isForgotten(name string) bool {
	return m.liveRecord() == nil && (m.record == nil || m.record.owner == name)
}

// renewLease renews the lease of the request name. A renewal in Redis never makes the lease shorter.
func (m *model) renewLease(name string) {
	switch {
	case m.holdsRecord(name) && m.kind.isPostgres:
		m.record.leaseEnd, m.record.expiry = m.now+lease, max(m.record.expiry, m.now+lease)
	case m.holdsRecord(name):
		m.record.leaseEnd, m.record.expiry = max(m.record.leaseEnd, m.now+lease), max(m.record.expiry, m.now+ttl)
	case m.isForgotten(name):
		m.putRecord(name, "running")
	}
}

func (m *model) putRecord(name, state string) {
	claim := m.claimByName[name]
	claim.state, claim.leaseEnd, claim.expiry = state, m.now+lease, m.now+ttl
	m.record = &claim
}

// completeRecord returns the outcome of the request name after its work has succeeded.
func (m *model) completeRecord(name string) string {
	if !m.holdsRecord(name) && !m.isForgotten(name) {
		return "lost"
	}
	m.putRecord(name, "done")
	return "executes " + name
}

// releaseRecord returns the outcome of the request name after its work has failed.
func (m *model) releaseRecord(name string) string {
	if !m.holdsRecord(name) {
		return "lost"
	}
	m.putRecord(name, "released")
	return "fails"
}
