package guarantees_test

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
)

// flawedStore is a store that keeps the contract, unless bug is the name of a bug in its code.
type flawedStore struct {
	bug         string
	mu          sync.Mutex
	recordByKey map[idempotency.Key]*flawedRecord

	rowsByKey map[idempotency.Key][]int // the rows that steps have written
}

func newFlawedStore(bug string) *flawedStore {
	return &flawedStore{bug: bug, recordByKey: make(map[idempotency.Key]*flawedRecord), rowsByKey: make(map[idempotency.Key][]int)}
}

func (f *flawedStore) hasBug(bug string) bool { return f.bug == bug }

type flawedRecord struct {
	idempotency.Record
	ownerClaim       *flawedClaim
	isReleased       bool
	leaseEnd, expiry time.Time // the ends of the lease and of the record
	stepResult       []byte    // the result of the step
}

func (r *flawedRecord) recordAt(now time.Time) idempotency.Record {
	record := r.Record
	record.LeaseLeft = max(0, r.leaseEnd.Sub(now))
	return record
}

// yieldLock unlocks the store for a moment between two steps that should be atomic.
func (f *flawedStore) yieldLock() {
	f.mu.Unlock()
	time.Sleep(time.Millisecond)
	f.mu.Lock()
}

func (f *flawedStore) findRecord(key idempotency.Key, now time.Time) *flawedRecord {
	r := f.recordByKey[key]
	switch {
	case r == nil, r.Response != nil && f.hasBug("completed records stay"),
		r.Response == nil && f.hasBug("running records stay"):
		return r
	case r.isReleased && f.hasBug("a release forgets the operation"), !r.expiry.After(now):
		delete(f.recordByKey, key)
		return nil
	}
	return r
}

func (f *flawedStore) isClaimable(r *flawedRecord, a idempotency.ClaimRequest, now time.Time) bool {
	lapsed := !r.leaseEnd.After(now)
	if f.hasBug("a lease lasts too long") {
		lapsed = !r.leaseEnd.Add(time.Millisecond).After(now)
	}
	switch {
	case r.Response != nil:
		return f.hasBug("completed record is taken over") && a.TakeOver
	case r.Fingerprint != a.Fingerprint:
		return f.hasBug("takeover ignores the fingerprint") && a.TakeOver && lapsed
	case r.isReleased:
		return true
	default:
		return a.TakeOver && (lapsed || f.hasBug("takeover ignores the lease")) || lapsed && f.hasBug("takeover without TakeOver")
	}
}

func (f *flawedStore) Begin(
	_ context.Context, key idempotency.Key, a idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	held := f.findRecord(key, now)
	if held != nil && !f.isClaimable(held, a, now) {
		return held.recordAt(now), nil, nil
	}
	if f.hasBug("get, then set") {
		f.yieldLock()
	}
	claim := &flawedClaim{store: f, key: key, leaseDuration: a.Lease}
	claim.madeRecord = flawedRecord{
		Record:     idempotency.Record{Attempt: 1, Fingerprint: a.Fingerprint, Created: now},
		ownerClaim: claim, leaseEnd: now.Add(a.Lease), expiry: now.Add(max(a.Lease, a.TTL)),
	}
	if held != nil {
		claim.madeRecord.Created, claim.madeRecord.Attempt = held.Created, held.Attempt+1
	}
	if held != nil && f.hasBug("the attempt number stays") {
		claim.madeRecord.Attempt = held.Attempt
	}
	own := claim.madeRecord
	if held != nil {
		own.stepResult = held.stepResult
	}
	f.recordByKey[key] = &own
	return own.recordAt(now), claim, nil
}

type flawedClaim struct {
	store         *flawedStore
	key           idempotency.Key
	madeRecord    flawedRecord
	leaseDuration time.Duration // renewed by a step
	isSettled     bool
}

func (c *flawedClaim) Extend(_ context.Context, lease time.Duration) error {
	return c.takeStep("Extend", func(r *flawedRecord, now time.Time) error {
		switch {
		case r.Response != nil && c.store.hasBug("Extend after Complete cuts the retention"):
			r.expiry = now.Add(lease)
			return idempotency.ErrClaimLost
		case r.isReleased && c.store.hasBug("Extend brings a released record back"):
			r.isReleased = false
		case r.Response != nil, r.isReleased:
			return idempotency.ErrClaimLost
		}
		r.leaseEnd = now.Add(lease)
		if r.expiry.Before(r.leaseEnd) && !c.store.hasBug("Extend leaves the TTL") {
			r.expiry = r.leaseEnd
		}
		return nil
	})
}

func (c *flawedClaim) Complete(_ context.Context, resp idempotency.Response, ttl time.Duration) error {
	return c.takeStep("Complete", func(r *flawedRecord, now time.Time) error {
		switch {
		case r.isReleased && !c.store.hasBug("released claim is completed"):
			return idempotency.ErrClaimLost
		case r.Response != nil && !c.store.hasBug("a repeated Complete changes the response"):
			return nil
		}
		r.Response, r.leaseEnd, r.expiry = &resp, now, now.Add(ttl)
		return nil
	})
}

func (c *flawedClaim) Release(_ context.Context, end idempotency.Release) error {
	return c.takeStep("Release", func(r *flawedRecord, now time.Time) error {
		switch {
		case r.Response != nil && c.store.hasBug("Release undoes Complete"):
			r.Response = nil
		case r.Response != nil:
			return idempotency.ErrClaimLost
		}
		if end.Abandoned {
			r.leaseEnd = now
			return nil
		}
		if end.TTL == 0 && c.store.hasBug("a freed key is only released") {
			end.TTL = time.Hour
		}
		if !r.isReleased {
			r.expiry = now.Add(end.TTL)
		}
		r.leaseEnd, r.isReleased = now, true
		return nil
	})
}

// takeStep calls do on the record of the claim, and restores the record first if the contract allows that.
func (c *flawedClaim) takeStep(name string, do func(*flawedRecord, time.Time) error) error {
	f := c.store
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	r := f.findRecord(c.key, now)
	ended := c.isSettled
	c.isSettled = c.isSettled || name != "Extend"
	switch {
	case r != nil && (r.ownerClaim == c || f.hasBug(name+" is not fenced")):
		return do(r, now)
	case r != nil && f.hasBug(name+" acts, then checks"):
		_ = do(r, now)
		return idempotency.ErrClaimLost
	case r != nil, name == "Release", name == "Extend" && ended && !f.hasBug("Extend restores what was settled"):
		return idempotency.ErrClaimLost
	}
	if f.hasBug("a restored record overwrites another") {
		f.yieldLock()
	}
	restored := c.madeRecord
	f.recordByKey[c.key] = &restored
	if err := do(&restored, now); err != nil || f.hasBug("restoring is not reported") {
		return err
	}
	return idempotency.ErrRestored
}

// Inspect implements [idempotency.Inspector].
func (f *flawedStore) Inspect(_ context.Context, key idempotency.Key) (idempotency.Entry, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	r := f.findRecord(key, now)
	if r == nil {
		return idempotency.Entry{}, idempotency.ErrNoRecord
	}
	entry := idempotency.Entry{Key: key, State: idempotency.StateAbandoned, Attempt: r.Attempt, Created: r.Created}
	if r.Response != nil || r.isReleased || r.leaseEnd.After(now) {
		entry.State = idempotency.StateRunning // stands for all states other than StateAbandoned
	}
	return entry, nil
}

// Resolve implements [idempotency.Resolver].
func (f *flawedStore) Resolve(_ context.Context, asked idempotency.Entry, resolution idempotency.Resolution) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	r := f.findRecord(asked.Key, now)
	switch {
	case r == nil:
		return idempotency.ErrNoRecord
	case f.hasBug("completed operations are resolved") && r.Response != nil,
		f.hasBug("running operations are resolved") && r.leaseEnd.After(now):
	case r.Response != nil, r.isReleased:
		return idempotency.ErrEntryChanged
	case r.leaseEnd.After(now):
		return idempotency.ErrInProgress
	case (r.Attempt != asked.Attempt || !r.Created.Equal(asked.Created)) && !f.hasBug("Resolve ignores the attempt"):
		return idempotency.ErrEntryChanged
	}
	if f.hasBug("Resolve checks, then acts") {
		f.yieldLock()
	}
	if !f.hasBug("Resolve leaves the claim") {
		r.ownerClaim = nil
	}
	r.Response, r.isReleased, r.leaseEnd, r.expiry = resolution.Response, resolution.Response == nil, now, now.Add(resolution.TTL)
	return nil
}

// The histories call no other methods of a resolver.

func (f *flawedStore) InspectOperation(context.Context, uuid.UUID) (idempotency.Entry, error) {
	return idempotency.Entry{}, errors.ErrUnsupported
}

func (f *flawedStore) Forget(context.Context, idempotency.Entry) error { return errors.ErrUnsupported }

func (f *flawedStore) List(context.Context, idempotency.ListRequest) (idempotency.Listing, error) {
	return idempotency.Listing{}, errors.ErrUnsupported
}
