package guarantees_test

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/idempotency-go/idempotency"
)

// flawed is a store that keeps the contract, unless bug names one of the faults in its code.
type flawed struct {
	bug  string
	mu   sync.Mutex
	rows map[idempotency.Key]*row

	written map[idempotency.Key][]int // rows of steps
}

func newFlawed(bug string) *flawed {
	return &flawed{bug: bug, rows: make(map[idempotency.Key]*row), written: make(map[idempotency.Key][]int)}
}

func (f *flawed) has(bug string) bool { return f.bug == bug }

type row struct {
	idempotency.Record
	owner      *flawedClaim
	released   bool
	lease, ttl time.Time // their ends
	result     []byte    // of the step
}

func (r *row) shown(now time.Time) idempotency.Record {
	record := r.Record
	record.LeaseLeft = max(0, r.lease.Sub(now))
	return record
}

// pause gives way between two steps that should be one.
func (f *flawed) pause() {
	f.mu.Unlock()
	time.Sleep(time.Millisecond)
	f.mu.Lock()
}

func (f *flawed) find(key idempotency.Key, now time.Time) *row {
	r := f.rows[key]
	switch {
	case r == nil, r.Response != nil && f.has("completed records stay"),
		r.Response == nil && f.has("running records stay"):
		return r
	case r.released && f.has("a release forgets the operation"), !r.ttl.After(now):
		delete(f.rows, key)
		return nil
	}
	return r
}

func (f *flawed) claimable(r *row, a idempotency.ClaimRequest, now time.Time) bool {
	lapsed := !r.lease.After(now)
	if f.has("a lease lasts too long") {
		lapsed = !r.lease.Add(time.Millisecond).After(now)
	}
	switch {
	case r.Response != nil:
		return f.has("what is completed is taken over") && a.TakeOver
	case r.Fingerprint != a.Fingerprint:
		return f.has("takeover ignores the fingerprint") && a.TakeOver && lapsed
	case r.released:
		return true
	default:
		return a.TakeOver && (lapsed || f.has("takeover ignores the lease")) || lapsed && f.has("takeover needs no leave")
	}
}

func (f *flawed) Begin(
	_ context.Context, key idempotency.Key, a idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	held := f.find(key, now)
	if held != nil && !f.claimable(held, a, now) {
		return held.shown(now), nil, nil
	}
	if f.has("get, then set") {
		f.pause()
	}
	claim := &flawedClaim{store: f, key: key, leaseDuration: a.Lease}
	claim.made = row{
		Record: idempotency.Record{Attempt: 1, Fingerprint: a.Fingerprint, Created: now},
		owner:  claim, lease: now.Add(a.Lease), ttl: now.Add(max(a.Lease, a.TTL)),
	}
	if held != nil {
		claim.made.Created, claim.made.Attempt = held.Created, held.Attempt+1
	}
	if held != nil && f.has("the attempt number stays") {
		claim.made.Attempt = held.Attempt
	}
	own := claim.made
	if held != nil {
		own.result = held.result
	}
	f.rows[key] = &own
	return own.shown(now), claim, nil
}

type flawedClaim struct {
	store         *flawed
	key           idempotency.Key
	made          row
	leaseDuration time.Duration // a lease
	settled       bool
}

func (c *flawedClaim) Extend(_ context.Context, lease time.Duration) error {
	return c.step("Extend", func(r *row, now time.Time) error {
		switch {
		case r.Response != nil && c.store.has("Extend after Complete cuts the retention"):
			r.ttl = now.Add(lease)
			return idempotency.ErrClaimLost
		case r.released && c.store.has("Extend takes a release back"):
			r.released = false
		case r.Response != nil, r.released:
			return idempotency.ErrClaimLost
		}
		r.lease = now.Add(lease)
		if r.ttl.Before(r.lease) && !c.store.has("Extend leaves the TTL") {
			r.ttl = r.lease
		}
		return nil
	})
}

func (c *flawedClaim) Complete(_ context.Context, resp idempotency.Response, ttl time.Duration) error {
	return c.step("Complete", func(r *row, now time.Time) error {
		switch {
		case r.released && !c.store.has("what was released is completed"):
			return idempotency.ErrClaimLost
		case r.Response != nil && !c.store.has("a repeated Complete changes the response"):
			return nil
		}
		r.Response, r.lease, r.ttl = &resp, now, now.Add(ttl)
		return nil
	})
}

func (c *flawedClaim) Release(_ context.Context, ttl time.Duration) error {
	return c.step("Release", func(r *row, now time.Time) error {
		switch {
		case r.Response != nil && c.store.has("Release undoes Complete"):
			r.Response = nil
		case r.Response != nil:
			return idempotency.ErrClaimLost
		}
		if ttl == 0 && c.store.has("a freed key is only released") {
			ttl = time.Hour
		}
		if !r.released {
			r.ttl = now.Add(ttl)
		}
		r.lease, r.released = now, true
		return nil
	})
}

// step does a step of the claim if its record is still its own, or can be made again.
func (c *flawedClaim) step(name string, do func(*row, time.Time) error) error {
	f := c.store
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	r := f.find(c.key, now)
	ended := c.settled
	c.settled = c.settled || name != "Extend"
	switch {
	case r != nil && (r.owner == c || f.has(name+" is not fenced")):
		return do(r, now)
	case r != nil && f.has(name+" acts, then checks"):
		_ = do(r, now)
		return idempotency.ErrClaimLost
	case r != nil, name == "Release", name == "Extend" && ended && !f.has("Extend restores what was settled"):
		return idempotency.ErrClaimLost
	}
	if f.has("a restored record overwrites another") {
		f.pause()
	}
	restored := c.made
	f.rows[c.key] = &restored
	if err := do(&restored, now); err != nil || f.has("restoring is not reported") {
		return err
	}
	return idempotency.ErrRestored
}

// Inspect implements [idempotency.Inspector].
func (f *flawed) Inspect(_ context.Context, key idempotency.Key) (idempotency.Entry, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	r := f.find(key, now)
	if r == nil {
		return idempotency.Entry{}, idempotency.ErrNoRecord
	}
	entry := idempotency.Entry{Key: key, State: idempotency.StateAbandoned, Attempt: r.Attempt, Created: r.Created}
	if r.Response != nil || r.released || r.lease.After(now) {
		entry.State = idempotency.StateRunning // or whatever is not abandoned
	}
	return entry, nil
}

// Resolve implements [idempotency.Resolver].
func (f *flawed) Resolve(_ context.Context, asked idempotency.Entry, resolution idempotency.Resolution) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	r := f.find(asked.Key, now)
	switch {
	case r == nil:
		return idempotency.ErrNoRecord
	case f.has("what is completed is resolved") && r.Response != nil, f.has("what runs is resolved") && r.lease.After(now):
	case r.Response != nil, r.released:
		return idempotency.ErrEntryChanged
	case r.lease.After(now):
		return idempotency.ErrInProgress
	case (r.Attempt != asked.Attempt || !r.Created.Equal(asked.Created)) && !f.has("Resolve ignores the attempt"):
		return idempotency.ErrEntryChanged
	}
	if f.has("Resolve checks, then acts") {
		f.pause()
	}
	if !f.has("Resolve leaves the claim") {
		r.owner = nil
	}
	r.Response, r.released, r.lease, r.ttl = resolution.Response, resolution.Response == nil, now, now.Add(resolution.TTL)
	return nil
}

// The model asks for nothing else of a resolver.

func (f *flawed) InspectDigest(context.Context, [32]byte) (idempotency.Entry, error) {
	return idempotency.Entry{}, errors.ErrUnsupported
}

func (f *flawed) Forget(context.Context, idempotency.Entry) error { return errors.ErrUnsupported }

func (f *flawed) List(context.Context, idempotency.ListRequest) (idempotency.Listing, error) {
	return idempotency.Listing{}, errors.ErrUnsupported
}
