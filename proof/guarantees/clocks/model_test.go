//go:build linux

package clocks_test

import (
	"fmt"
	"time"
)

// How long claims and records of the model last, and the stores' too.
const (
	lease = 600 * time.Second
	ttl   = 4000 * time.Second
)

// model is the record of one key in a store that goes by its own clock and by nothing else. It says what each request
// is to be told.
type model struct {
	kind   kind
	refuse bool
	now    time.Duration // what the clock shows

	record *entry
	claims map[string]entry
}

// entry is a record, or a claim that somebody has.
type entry struct {
	state           string // "running", "released", "done"
	owner           string
	attempt         int
	leased, expires time.Duration
}

// live returns the record that counts, or nil. Redis forgets a record that has expired as soon as it is asked for.
// PostgreSQL keeps it until another one takes its place: it counts again if the clock is set back.
func (m *model) live() *entry {
	if m.record == nil || m.record.expires > m.now {
		return m.record
	}
	if !m.kind.postgres {
		m.record = nil
	}
	return nil
}

// begin returns what a request is told, or the attempt that it has a claim to.
func (m *model) begin(who string) string {
	if r := m.live(); r != nil {
		switch {
		case r.state == "done":
			return "replays " + r.owner
		case r.state == "running" && r.leased > m.now:
			return "in progress"
		case r.state == "running" && m.refuse:
			return "unknown"
		}
		return m.claim(who, r.attempt+1)
	}
	return m.claim(who, 1)
}

func (m *model) claim(who string, attempt int) string {
	claim := entry{"running", who, attempt, m.now + lease, m.now + ttl}
	if m.claims == nil {
		m.claims = map[string]entry{}
	}
	m.claims[who] = claim
	m.record = &claim
	return fmt.Sprint("attempt ", attempt)
}

// holds reports whether the record is that of a claim of who.
func (m *model) holds(who string) bool {
	r := m.live()
	return r != nil && r.state == "running" && r.owner == who
}

// forgotten reports whether the record is gone, so that its owner may make it again. An expired one of somebody else that
// is still there says that they have claimed the key since.
func (m *model) forgotten(who string) bool {
	return m.live() == nil && (m.record == nil || m.record.owner == who)
}

// renew renews the lease of who. That of Redis never becomes shorter.
func (m *model) renew(who string) {
	switch {
	case m.holds(who) && m.kind.postgres:
		m.record.leased, m.record.expires = m.now+lease, max(m.record.expires, m.now+lease)
	case m.holds(who):
		m.record.leased, m.record.expires = max(m.record.leased, m.now+lease), max(m.record.expires, m.now+ttl)
	case m.forgotten(who):
		m.put(who, "running")
	}
}

func (m *model) put(who, state string) {
	claim := m.claims[who]
	claim.state, claim.leased, claim.expires = state, m.now+lease, m.now+ttl
	m.record = &claim
}

// complete returns what who is told whose work has succeeded.
func (m *model) complete(who string) string {
	if !m.holds(who) && !m.forgotten(who) {
		return "lost"
	}
	m.put(who, "done")
	return "executes " + who
}

// fail returns what who is told whose work has failed.
func (m *model) fail(who string) string {
	if !m.holds(who) {
		return "lost"
	}
	m.put(who, "released")
	return "fails"
}
