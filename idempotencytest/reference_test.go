package idempotencytest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/idempotency-go/idempotency"
)

// reference keeps the contract unless bug names one of the faults in its code.
type reference struct {
	bug      string
	mu       sync.Mutex
	entries  map[idempotency.Key]*entry
	resolved *idempotency.Resolved // the last one of any operation
}

func newReference(bug string) *reference {
	return &reference{bug: bug, entries: make(map[idempotency.Key]*entry)}
}

func (r *reference) has(bug string) bool { return r.bug == bug }

// entry is a record with LeaseLeft unset.
type entry struct {
	idempotency.Record
	owner      *referenceClaim // of the last claim
	released   bool
	lease, ttl time.Time // their ends
	retention  time.Duration
	resolved   *idempotency.Resolved
	beingRead  bool // a caller of Begin has found the response
}

func (r *reference) record(e *entry, now time.Time) idempotency.Record {
	rec := e.Record
	rec.LeaseLeft = max(0, e.lease.Sub(now))
	if rec.Response != nil {
		clone := rec.Response.Clone()
		rec.Response = &clone
	}
	return rec
}

func (r *reference) Begin(
	ctx context.Context, key idempotency.Key, a idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	old := r.entries[key]
	e := r.find(key, now)
	if e != nil && e.Response != nil && r.has("key runs while its record is read") {
		if e.beingRead {
			return idempotency.Record{Attempt: e.Attempt, Fingerprint: e.Fingerprint, Created: e.Created, LeaseLeft: long}, nil, nil
		}
		e.beingRead = true
		r.pause()
		e.beingRead = false
	}
	if e != nil && !r.claimable(e, a, now) {
		if r.has("held key is an error") && e.lease.After(now) {
			return idempotency.Record{}, nil, idempotency.ErrInProgress
		}
		rec := r.record(e, now)
		if e.Response != nil && a.Remaining {
			rec.Remaining = e.ttl.Sub(now)
		}
		if r.has("remaining time does not pass") {
			rec.Remaining = e.retention
		}
		if r.has("held record has the fingerprint of who asks") && e.Response == nil ||
			r.has("completed record has the fingerprint of who asks") && e.Response != nil {
			rec.Fingerprint = a.Fingerprint
		}
		if r.has("held record is always of another request") {
			rec.Fingerprint[0]++
		}
		return rec, nil, nil
	}
	if r.races(e) {
		r.pause()
	}
	if e == nil {
		e = &entry{Record: idempotency.Record{Fingerprint: a.Fingerprint, Created: now}}
		if old != nil && r.has("creation is that of the expired record") {
			e.Created = old.Created
		}
		r.entries[key] = e
	}
	if ctx.Err() != nil && r.has("cancelled Begin claims for ever") {
		e.lease, e.ttl = now.Add(time.Hour), now.Add(time.Hour)
		return idempotency.Record{}, nil, ctx.Err()
	}
	if ctx.Err() != nil && r.has("cancelled Begin says nothing") {
		delete(r.entries, key)
		return idempotency.Record{}, nil, nil
	}
	var remaining time.Duration
	switch {
	case r.has("remaining time is that of the attempt"):
		remaining = a.TTL
	case e.Attempt > 0:
		remaining = e.ttl.Sub(now)
	}
	ttl := a.TTL
	if !r.has("TTL shorter than the lease") {
		ttl = max(a.TTL, a.Lease)
	}
	if e.Attempt == 0 || !r.has("TTL counts from the first attempt") {
		e.ttl = now.Add(ttl)
	}
	if e.Attempt == 0 || !r.has("takeover keeps the attempt number") || e.released {
		e.Attempt++
	}
	e.lease = now.Add(a.Lease)
	e.released = false
	if r.has("claiming forgets the resolution") {
		e.resolved = nil
	}
	if r.has("resolution outlives the record") {
		e.resolved = r.resolved
	}
	e.owner = &referenceClaim{store: r, key: key}
	e.owner.claimed = *e
	if ctx.Err() != nil && r.has("claim in doubt is nil") {
		return idempotency.Record{}, nil, &idempotency.ClaimInDoubtError{Err: ctx.Err()}
	}
	if ctx.Err() != nil && r.has("unanswered claim cannot be released") {
		return idempotency.Record{}, deaf{e.owner}, ctx.Err()
	}
	own := r.record(e, now)
	own.Remaining = remaining
	return own, e.owner, nil
}

// deaf is a claim that cannot be released.
type deaf struct{ idempotency.Claim }

func (deaf) Release(context.Context, time.Duration) error { return nil }

// pause gives way between two steps that should be one.
func (r *reference) pause() {
	r.mu.Unlock()
	time.Sleep(time.Millisecond)
	r.mu.Lock()
}

// races reports whether the claim of e, which is nil for a new one, is taken without the lock.
func (r *reference) races(e *entry) bool {
	switch {
	case e == nil:
		return r.has("get, then set")
	case e.released:
		return r.has("get a released record, then set")
	default:
		return r.has("get a lapsed record, then set")
	}
}

func (r *reference) find(key idempotency.Key, now time.Time) *entry {
	e := r.entries[key]
	switch {
	case e == nil:
		return nil
	case r.has("unfinished records stay") && e.Response == nil && !e.released,
		r.has("released records stay") && e.released,
		r.has("completed records stay") && e.Response != nil:
		return e
	case r.has("reading prolongs the record") && e.Response != nil && e.ttl.After(now):
		e.ttl = now.Add(e.retention)
	case r.has("completed records expire early") && e.Response != nil && now.After(e.ttl.Add(-e.retention/2)),
		r.has("unfinished records expire early") && e.Response == nil && now.After(e.ttl.Add(-short/2)),
		r.has("released records expire early") && e.released && now.After(e.ttl.Add(-short/2)),
		r.has("release forgets the operation") && e.released,
		!e.ttl.After(now):
		delete(r.entries, key)
		return nil
	}
	return e
}

func (r *reference) claimable(e *entry, a idempotency.ClaimRequest, now time.Time) bool {
	lapsed := !e.lease.After(now)
	if r.has("takeover heeds the first lease only") {
		lapsed = !e.owner.claimed.lease.After(now)
	}
	switch {
	case e.Response != nil:
		return r.has("completed record is taken over") && a.TakeOver && lapsed ||
			r.has("completed record is claimed by another request") && a.Fingerprint != e.Fingerprint
	case a.Fingerprint != e.Fingerprint:
		return r.has("another request claims what was released") && e.released ||
			r.has("another request takes over") && a.TakeOver && lapsed
	case e.released:
		return !r.has("released record needs a takeover") || a.TakeOver && lapsed
	case r.has("takeover needs no leave"):
		return lapsed
	case r.has("takeover needs no lapse"):
		return a.TakeOver
	case r.has("lapse is not noticed"):
		return false
	default:
		return lapsed && a.TakeOver
	}
}

type referenceClaim struct {
	store   *reference
	key     idempotency.Key
	claimed entry
	settled bool // Complete or Release was called
	freed   bool // by Release
}

func (c *referenceClaim) Extend(_ context.Context, lease time.Duration) error {
	return c.step("Extend", func(e *entry, now time.Time) error {
		has := c.store.has
		switch {
		case has("Extend does nothing"):
			return nil
		case e.Response != nil && has("Extend cuts the retention"):
			e.ttl = now.Add(lease)
			return idempotency.ErrClaimLost
		case e.Response != nil && has("Extend of a completed record succeeds"):
			return nil
		case e.released && has("Extend brings a released record back"):
			e.released = false
		case e.Response != nil || e.released:
			return idempotency.ErrClaimLost
		case !e.lease.After(now) && has("Extend refuses a lapsed lease"):
			return idempotency.ErrClaimLost
		}
		if has("Extend checks, then writes") {
			c.store.pause()
			e.released = false
		}
		if has("Extend adds to the lease") {
			lease += e.lease.Sub(now)
		}
		e.lease = now.Add(lease)
		if e.ttl.Before(e.lease) && !has("Extend leaves the TTL") || has("Extend cuts the TTL") {
			e.ttl = e.lease
		}
		return nil
	})
}

func (c *referenceClaim) Complete(_ context.Context, resp idempotency.Response, ttl time.Duration) error {
	return c.step("Complete", func(e *entry, now time.Time) error {
		has := c.store.has
		switch {
		case e.released && !has("released claim is completed"):
			return idempotency.ErrClaimLost
		case !e.lease.After(now) && e.Response == nil && has("Complete refuses a lapsed lease"):
			return idempotency.ErrClaimLost
		case e.Response != nil && has("repeated Complete is refused"):
			return idempotency.ErrClaimLost
		case e.Response != nil && !has("last response wins"):
			return nil
		}
		if has("response is modified") {
			defer slices.Reverse(resp.Body) // the caller's
		}
		if e.Response != nil || !has("body memory is retained") {
			resp = resp.Clone()
		}
		if has("Complete checks, then writes") {
			c.store.pause()
		}
		e.Response = &resp
		switch {
		case has("completing forgets the resolution"):
			e.resolved = nil
		case has("note of a handler is the reason") && e.resolved != nil:
			forged := *e.resolved
			forged.Reason, e.resolved = resp.Note, &forged
		}
		if !has("lease outlives completion") {
			e.lease = now
		}
		e.retention = ttl
		if !has("retention counts from the claim") {
			e.ttl = now.Add(ttl)
		}
		return nil
	})
}

func (c *referenceClaim) Release(_ context.Context, ttl time.Duration) error {
	return c.step("Release", func(e *entry, now time.Time) error {
		has := c.store.has
		switch {
		case e.Response != nil && has("Release undoes completion"):
			e.Response = nil
			return idempotency.ErrClaimLost
		case e.Response != nil && !has("Release after Complete succeeds"),
			e.released && has("repeated Release is refused"),
			!e.lease.After(now) && !e.released && has("Release refuses a lapsed lease"):
			return idempotency.ErrClaimLost
		case e.Response != nil, has("Release does nothing"):
			return nil
		case ttl == 0 && !has("freed key is released"):
			c.freed = true
			c.store.free(c.key)
			return nil
		}
		if !e.released && !has("Release leaves the TTL") {
			e.ttl = now.Add(ttl)
		}
		e.lease, e.released = now, true
		return nil
	})
}

// free forgets the operation.
func (r *reference) free(key idempotency.Key) {
	if !r.has("freed key is shown") {
		delete(r.entries, key)
	}
}

// step does a step of the claim if its record is still its own, or can be made again.
func (c *referenceClaim) step(name string, do func(*entry, time.Time) error) error {
	r := c.store
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	e := r.find(c.key, now)
	c.settled = c.settled || name != "Extend"
	switch {
	case c.freed && e == nil && name == "Release" && !r.has("repeated Release of a freed key is refused"):
		return nil
	case e != nil && c.owns(name, e):
		return do(e, now)
	case e != nil && r.has(name+" acts, then checks"):
		_ = do(e, now)
		return idempotency.ErrClaimLost
	case e != nil, name == "Release" && !r.has("Release restores"), r.has(name + " does not restore"),
		name == "Extend" && c.settled && !r.has("Extend restores what was settled"):
		return idempotency.ErrClaimLost
	}
	restored := c.claimed
	restored.owner = c
	r.entries[c.key] = &restored
	if r.has("lease is not restored") && name == "Extend" {
		delete(r.entries, c.key)
	}
	if err := do(&restored, now); err != nil || r.has("restoring is not reported") {
		return err
	}
	return idempotency.ErrRestored
}

func (c *referenceClaim) owns(step string, e *entry) bool {
	r := c.store
	return e.owner == c || r.has(step+" is not fenced") ||
		r.has("fenced by time of creation") && e.Created.Equal(c.claimed.Created) ||
		r.has("fenced by attempt number") && e.Attempt == c.claimed.Attempt ||
		r.has("not fenced after a release") && e.released
}
