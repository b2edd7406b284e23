package idempotencytest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/idempotency-go/idempotency"
)

// referenceStore keeps the contract unless bug names one of the bugs in its code.
type referenceStore struct {
	bug      string
	mu       sync.Mutex
	entries  map[idempotency.Key]*entry
	resolved *idempotency.Resolved // the last resolution of any operation
}

func newReferenceStore(bug string) *referenceStore {
	return &referenceStore{bug: bug, entries: make(map[idempotency.Key]*entry)}
}

func (r *referenceStore) hasBug(bug string) bool { return r.bug == bug }

// entry is a stored record. LeaseLeft is unset.
type entry struct {
	idempotency.Record
	owner               *referenceClaim // the last claim
	isReleased          bool
	endReason           idempotency.EndReason
	leaseEnd, expiresAt time.Time
	retention           time.Duration
	resolved            *idempotency.Resolved
	isBeingRead         bool // a caller of Begin has found the response
}

// copyRecord returns the record of e as Begin returns the record.
func (r *referenceStore) copyRecord(e *entry, now time.Time) idempotency.Record {
	rec := e.Record
	rec.LeaseLeft = max(0, e.leaseEnd.Sub(now))
	if rec.Response != nil {
		clone := rec.Response.Clone()
		rec.Response = &clone
	}
	return rec
}

func (r *referenceStore) Begin(
	ctx context.Context, key idempotency.Key, a idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	old := r.entries[key]
	e := r.findEntry(key, now)
	if e != nil && e.Response != nil && r.hasBug("key runs while its record is read") {
		if e.isBeingRead {
			return idempotency.Record{Attempt: e.Attempt, Fingerprint: e.Fingerprint, Created: e.Created, LeaseLeft: long}, nil, nil
		}
		e.isBeingRead = true
		r.yieldLock()
		e.isBeingRead = false
	}
	if e != nil && !r.isClaimable(e, a, now) {
		if r.hasBug("held key is an error") && e.leaseEnd.After(now) {
			return idempotency.Record{}, nil, idempotency.ErrInProgress
		}
		rec := r.copyRecord(e, now)
		if e.Response != nil && a.Remaining {
			rec.Remaining = e.expiresAt.Sub(now)
		}
		if r.hasBug("remaining time does not pass") {
			rec.Remaining = e.retention
		}
		if r.hasBug("held record has the fingerprint of the caller") && e.Response == nil ||
			r.hasBug("completed record has the fingerprint of the caller") && e.Response != nil {
			rec.Fingerprint = a.Fingerprint
		}
		if r.hasBug("held record is always of another request") {
			rec.Fingerprint[0]++
		}
		return rec, nil, nil
	}
	if r.skipsLock(e) {
		r.yieldLock()
	}
	if e == nil {
		e = &entry{Record: idempotency.Record{Fingerprint: a.Fingerprint, Created: now}}
		if old != nil && r.hasBug("creation is that of the expired record") {
			e.Created = old.Created
		}
		r.entries[key] = e
	}
	if ctx.Err() != nil && r.hasBug("cancelled Begin claims for ever") {
		e.leaseEnd, e.expiresAt = now.Add(time.Hour), now.Add(time.Hour)
		return idempotency.Record{}, nil, ctx.Err()
	}
	if ctx.Err() != nil && r.hasBug("cancelled Begin says nothing") {
		delete(r.entries, key)
		return idempotency.Record{}, nil, nil
	}
	var remaining time.Duration
	switch {
	case r.hasBug("remaining time is that of the attempt"):
		remaining = a.TTL
	case e.Attempt > 0:
		remaining = e.expiresAt.Sub(now)
	}
	ttl := a.TTL
	if !r.hasBug("TTL shorter than the lease") {
		ttl = max(a.TTL, a.Lease)
	}
	if e.Attempt == 0 || !r.hasBug("TTL counts from the first attempt") {
		e.expiresAt = now.Add(ttl)
	}
	if e.Attempt == 0 || !r.hasBug("takeover keeps the attempt number") || e.isReleased {
		e.Attempt++
	}
	e.leaseEnd = now.Add(a.Lease)
	e.isReleased = false
	if !r.hasBug("reason outlives the attempt") {
		e.endReason = ""
	}
	if r.hasBug("claiming forgets the resolution") {
		e.resolved = nil
	}
	if r.hasBug("resolution outlives the record") {
		e.resolved = r.resolved
	}
	e.owner = &referenceClaim{store: r, key: key}
	e.owner.claimed = *e
	if ctx.Err() != nil && r.hasBug("claim in doubt is nil") {
		return idempotency.Record{}, nil, &idempotency.ClaimInDoubtError{Err: ctx.Err()}
	}
	if ctx.Err() != nil && r.hasBug("unanswered claim cannot be released") {
		return idempotency.Record{}, unreleasableClaim{e.owner}, ctx.Err()
	}
	own := r.copyRecord(e, now)
	own.Remaining = remaining
	return own, e.owner, nil
}

// unreleasableClaim is a claim whose Release does nothing.
type unreleasableClaim struct{ idempotency.Claim }

func (unreleasableClaim) Release(context.Context, idempotency.Release) error { return nil }

// yieldLock lets other goroutines work between two steps that should be atomic.
func (r *referenceStore) yieldLock() {
	r.mu.Unlock()
	time.Sleep(time.Millisecond)
	r.mu.Lock()
}

// skipsLock reports whether a bug lets Begin check and claim e in two steps. A nil e is a new record.
func (r *referenceStore) skipsLock(e *entry) bool {
	switch {
	case e == nil:
		return r.hasBug("get, then set")
	case e.isReleased:
		return r.hasBug("get a released record, then set")
	default:
		return r.hasBug("get a lapsed record, then set")
	}
}

// findEntry returns the record of key, and removes an expired record.
func (r *referenceStore) findEntry(key idempotency.Key, now time.Time) *entry {
	e := r.entries[key]
	switch {
	case e == nil:
		return nil
	case r.hasBug("unfinished records stay") && e.Response == nil && !e.isReleased,
		r.hasBug("released records stay") && e.isReleased,
		r.hasBug("completed records stay") && e.Response != nil:
		return e
	case r.hasBug("reading prolongs the record") && e.Response != nil && e.expiresAt.After(now):
		e.expiresAt = now.Add(e.retention)
	case r.hasBug("completed records expire early") && e.Response != nil && now.After(e.expiresAt.Add(-e.retention/2)),
		r.hasBug("unfinished records expire early") && e.Response == nil && now.After(e.expiresAt.Add(-short/2)),
		r.hasBug("released records expire early") && e.isReleased && now.After(e.expiresAt.Add(-short/2)),
		r.hasBug("release forgets the operation") && e.isReleased,
		!e.expiresAt.After(now):
		delete(r.entries, key)
		return nil
	}
	return e
}

// isClaimable reports whether Begin grants the request a claim of e.
func (r *referenceStore) isClaimable(e *entry, a idempotency.ClaimRequest, now time.Time) bool {
	lapsed := !e.leaseEnd.After(now)
	if r.hasBug("takeover ignores Extend") {
		lapsed = !e.owner.claimed.leaseEnd.After(now)
	}
	switch {
	case e.Response != nil:
		return r.hasBug("completed record is taken over") && a.TakeOver && lapsed ||
			r.hasBug("completed record is claimed by another request") && a.Fingerprint != e.Fingerprint
	case a.Fingerprint != e.Fingerprint:
		return r.hasBug("another request claims what was released") && e.isReleased ||
			r.hasBug("another request takes over") && a.TakeOver && lapsed
	case e.isReleased:
		return !r.hasBug("released record needs a takeover") || a.TakeOver && lapsed
	case r.hasBug("takeover without TakeOver"):
		return lapsed
	case r.hasBug("takeover of a running lease"):
		return a.TakeOver
	case r.hasBug("lapsed lease counts as running"):
		return false
	default:
		return lapsed && a.TakeOver
	}
}

type referenceClaim struct {
	store     *referenceStore
	key       idempotency.Key
	claimed   entry
	isSettled bool // Complete or Release was called
	isFreed   bool // Release was called with a ttl of zero
}

func (c *referenceClaim) Extend(_ context.Context, lease time.Duration) error {
	return c.runStep("Extend", func(e *entry, now time.Time) error {
		hasBug := c.store.hasBug
		switch {
		case hasBug("Extend does nothing"):
			return nil
		case e.Response != nil && hasBug("Extend cuts the retention"):
			e.expiresAt = now.Add(lease)
			return idempotency.ErrClaimLost
		case e.Response != nil && hasBug("Extend of a completed record succeeds"):
			return nil
		case e.isReleased && hasBug("Extend brings a released record back"):
			e.isReleased = false
		case e.Response != nil || e.isReleased:
			return idempotency.ErrClaimLost
		case !e.leaseEnd.After(now) && hasBug("Extend refuses a lapsed lease"):
			return idempotency.ErrClaimLost
		}
		if hasBug("Extend checks, then writes") {
			c.store.yieldLock()
			e.isReleased = false
		}
		if hasBug("Extend adds to the lease") {
			lease += e.leaseEnd.Sub(now)
		}
		e.leaseEnd = now.Add(lease)
		if e.expiresAt.Before(e.leaseEnd) && !hasBug("Extend leaves the TTL") || hasBug("Extend cuts the TTL") {
			e.expiresAt = e.leaseEnd
		}
		return nil
	})
}

func (c *referenceClaim) Complete(_ context.Context, resp idempotency.Response, ttl time.Duration) error {
	return c.runStep("Complete", func(e *entry, now time.Time) error {
		hasBug := c.store.hasBug
		switch {
		case e.isReleased && !hasBug("released claim is completed"):
			return idempotency.ErrClaimLost
		case !e.leaseEnd.After(now) && e.Response == nil && hasBug("Complete refuses a lapsed lease"):
			return idempotency.ErrClaimLost
		case e.Response != nil && hasBug("repeated Complete is refused"):
			return idempotency.ErrClaimLost
		case e.Response != nil && !hasBug("last response wins"):
			return nil
		}
		if hasBug("response is modified") {
			defer slices.Reverse(resp.Body) // the body of the caller
		}
		if e.Response != nil || !hasBug("body memory is retained") {
			resp = resp.Clone()
		}
		if hasBug("Complete checks, then writes") {
			c.store.yieldLock()
		}
		e.Response = &resp
		switch {
		case hasBug("completing forgets the resolution"):
			e.resolved = nil
		case hasBug("note of a handler is the reason") && e.resolved != nil:
			forged := *e.resolved
			forged.Reason, e.resolved = resp.Note, &forged
		}
		if !hasBug("lease outlives completion") {
			e.leaseEnd = now
		}
		e.retention = ttl
		if !hasBug("retention counts from the claim") {
			e.expiresAt = now.Add(ttl)
		}
		return nil
	})
}

func (c *referenceClaim) Release(_ context.Context, end idempotency.Release) error {
	return c.runStep("Release", func(e *entry, now time.Time) error {
		hasBug := c.store.hasBug
		switch {
		case e.Response != nil && hasBug("Release undoes completion"):
			e.Response = nil
			return idempotency.ErrClaimLost
		case e.Response != nil && !hasBug("Release after Complete succeeds"),
			e.isReleased && hasBug("repeated Release is refused"),
			!e.leaseEnd.After(now) && !e.isReleased && hasBug("Release refuses a lapsed lease"):
			return idempotency.ErrClaimLost
		case e.Response != nil, hasBug("Release does nothing"):
			return nil
		case end.Abandoned && !hasBug("abandoned record is released"):
			if !hasBug("abandoned record keeps its lease") {
				e.leaseEnd = now
			}
			e.endReason = end.Reason
			return nil
		case end.TTL == 0 && !hasBug("freed key is released"):
			c.isFreed = true
			c.store.freeKey(c.key)
			return nil
		}
		if !e.isReleased && !hasBug("Release leaves the TTL") {
			e.expiresAt = now.Add(end.TTL)
		}
		e.leaseEnd, e.isReleased, e.endReason = now, true, end.Reason
		return nil
	})
}

// freeKey removes the record of key.
func (r *referenceStore) freeKey(key idempotency.Key) {
	if !r.hasBug("freed key is shown") {
		delete(r.entries, key)
	}
}

// runStep runs a method of the claim, called name, on the record of the claim. If the record is gone, and the method
// may create the record again, runStep restores the record and returns ErrRestored.
func (c *referenceClaim) runStep(name string, do func(*entry, time.Time) error) error {
	r := c.store
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	e := r.findEntry(c.key, now)
	c.isSettled = c.isSettled || name != "Extend"
	switch {
	case c.isFreed && e == nil && name == "Release" && !r.hasBug("repeated Release of a freed key is refused"):
		return nil
	case e != nil && c.ownsEntry(name, e):
		return do(e, now)
	case e != nil && r.hasBug(name+" acts, then checks"):
		_ = do(e, now)
		return idempotency.ErrClaimLost
	case e != nil, name == "Release" && !r.hasBug("Release restores"), r.hasBug(name + " does not restore"),
		name == "Extend" && c.isSettled && !r.hasBug("Extend restores what was settled"):
		return idempotency.ErrClaimLost
	}
	restored := c.claimed
	restored.owner = c
	r.entries[c.key] = &restored
	if r.hasBug("lease is not restored") && name == "Extend" {
		delete(r.entries, c.key)
	}
	if err := do(&restored, now); err != nil || r.hasBug("restoring is not reported") {
		return err
	}
	return idempotency.ErrRestored
}

// ownsEntry reports whether the method called step may change e.
func (c *referenceClaim) ownsEntry(step string, e *entry) bool {
	r := c.store
	return e.owner == c || r.hasBug(step+" is not fenced") ||
		r.hasBug("fenced by time of creation") && e.Created.Equal(c.claimed.Created) ||
		r.hasBug("fenced by attempt number") && e.Attempt == c.claimed.Attempt ||
		r.hasBug("not fenced after a release") && e.isReleased
}
