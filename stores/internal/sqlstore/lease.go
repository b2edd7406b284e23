package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/idempotency-go/idempotency"
)

// Leases is a store whose claims are leases.
type Leases interface {
	// Do runs a step, and returns when it has taken effect. Adds says that it may add a record. If begun is false, the
	// step has had no effect, and will have none. If begun is true and there is an error, it may or may not have one, as
	// when ctx ends in the meantime. The step may run again after an error.
	Do(ctx context.Context, adds bool, run func(Steps) error) (begun bool, err error)

	// Failure returns the error of a step for the caller of the store.
	Failure(step string, err error) error
}

// RowLeases is a [Leases] in whose database steps may write rows. If a record loses a step, the rows of the step are lost, too.
type RowLeases interface {
	Leases

	// KeepsRows is a marker, and does nothing.
	KeepsRows()
}

// Steps read and change records, each by one statement. Those that change a record report whether they have changed it.
// Extend, Complete, Release and Checkpoint change a record only if it has the token, a lease and no response, and has
// not expired.
type Steps interface {
	// Read returns the record with a digest. If there is none, Found of the row is false.
	Read(digest []byte) (*Row, error)

	// Put makes a record of own, or replaces what Read has seen. It returns false if there is another record by now. A
	// lease of zero is none. The checkpoints of a record are kept if it has not expired, and own has no response. Otherwise
	// the record has the checkpoints entries. How an operator has resolved the operation is kept if the record has not expired.
	Put(digest []byte, seen, own *Row, entries []byte, lease, ttl time.Duration) (bool, error)

	// Extend lets the lease run for lease from now, and the record live at least as long.
	Extend(digest, token []byte, lease time.Duration) (bool, error)

	// Complete stores a response for ttl from now, removes the checkpoints, and ends the lease. In a store that is a [RowLeases], it
	// does so only if the checkpoints have at least size bytes. Other stores do not look at size.
	Complete(digest, token, response []byte, ttl time.Duration, size int) (bool, error)

	// Release ends the lease, and keeps the record for ttl from now.
	Release(digest, token []byte, ttl time.Duration) (bool, error)

	// Free ends the lease, sets the attempt to zero, removes the checkpoints, and keeps what is left for ttl from now.
	Free(digest, token []byte, ttl time.Duration) (bool, error)

	// Checkpoint stores checkpoints if there are as many bytes of them as before. These are the first of entries.
	Checkpoint(digest, token, entries []byte, before int) (bool, error)

	// Checkpoints returns what is stored in a record that Checkpoint could change. Otherwise held is false.
	Checkpoints(digest, token []byte) (entries []byte, held bool, err error)

	// IsFull reports whether there is no room for a new operation.
	IsFull() bool

	// HasRoom reports whether there is room for a response or a checkpoint of n bytes.
	HasRoom(n int) bool
}

// lease implements [idempotency.Claim]. It remembers what the record is made of, to make it again if the store loses it.
type lease struct {
	store  Leases
	digest []byte
	names  Names
	token  []byte
	record idempotency.Record // as it was granted
	ttl    time.Duration      // that the claim was granted with

	checkpoints checkpoints
	renewals    renewals
	settlement
}

// settlement says how a claim has ended.
type settlement struct {
	mu    sync.Mutex // held while the record is settled or made again
	ended ending
}

// renewals of a lease.
type renewals struct {
	sync.RWMutex      // held for reading by a renewal, and for writing while rest changes
	rest         bool // the transaction of a step has the record locked
}

// ending says how a claim has ended.
type ending int

const (
	open ending = iota
	completed
	lost // or released
)

// Claim claims a key, as Begin of [idempotency.Store] does. If the step has failed and may have taken effect, the claim is in
// doubt.
func Claim(
	ctx context.Context, store Leases, key idempotency.Key, request *idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	digest := key.Digest()
	l := &lease{
		store: store, digest: digest[:], names: NamesOf(key), token: NewToken(), ttl: max(request.TTL, request.Lease),
	}
	var g granted
	begun, err := store.Do(ctx, true, func(steps Steps) (err error) {
		g, err = l.claim(steps, request)
		return err
	})
	switch {
	case err != nil && begun:
		return idempotency.Record{}, nil, &idempotency.ClaimInDoubtError{Claim: l, Err: store.Failure("claim", err)}
	case err != nil:
		return idempotency.Record{}, nil, store.Failure("claim", err)
	case !g.claimed:
		return g.record, nil, store.Failure("claim", g.err)
	}
	g.record.LeaseLeft = min(g.record.LeaseLeft, request.Lease) // others may wait longer
	l.record = g.record
	return g.record, l, nil
}

// granted is what comes of the step that claims.
type granted struct {
	record  idempotency.Record
	claimed bool
	err     error
}

// claim claims the key, unless another attempt has it by now.
func (l *lease) claim(steps Steps, request *idempotency.ClaimRequest) (granted, error) {
	for {
		seen, err := steps.Read(l.digest)
		if errors.Is(err, idempotency.ErrRecordInvalid) {
			return granted{err: err}, nil
		}
		if err != nil {
			return granted{}, err
		}
		if isHeld, record, err := seen.Held(l.names, request); isHeld {
			own := string(seen.Token) == string(l.token) // put by an earlier run, which was not answered
			return granted{record: record, claimed: own && err == nil, err: err}, nil
		}
		if !seen.Counts() && steps.IsFull() {
			return granted{err: idempotency.ErrStoreFull}, nil
		}
		record := seen.Next(request)
		record.LeaseLeft = request.Lease
		put, err := steps.Put(l.digest, seen, NewRow(l.names, l.token, record), nil, request.Lease, l.ttl)
		if put || err != nil {
			return granted{record: record, claimed: put}, err
		}
	}
}

// Extend implements [idempotency.Claim]. While the transaction of a step has the record locked, Extend does nothing.
func (l *lease) Extend(ctx context.Context, d time.Duration) error {
	l.renewals.RLock()
	defer l.renewals.RUnlock()
	if l.renewals.rest {
		return nil
	}
	return l.proceed(ctx, "extend", d, d, func(steps Steps) (bool, error) { return steps.Extend(l.digest, l.token, d) })
}

// proceed changes the record of a claim that goes on, by do. If nobody has the key, it makes the record again instead.
func (l *lease) proceed(
	ctx context.Context, name string, lease, ttl time.Duration, do func(steps Steps) (bool, error),
) error {
	var done bool
	_, err := l.store.Do(ctx, false, func(steps Steps) (err error) {
		done, err = do(steps)
		return err
	})
	if err != nil || done { // after an error the step may still be under way, and write
		return l.store.Failure(name, err)
	}
	l.mu.Lock() // Complete or Release may be under way
	defer l.mu.Unlock()
	if l.ended != open { // nobody would renew or settle the record if it were made again
		return idempotency.ErrClaimLost
	}
	return l.settle(ctx, name, holds, func(steps Steps) (standing, error) {
		return l.change(steps,
			func() (bool, error) { return do(steps) },
			func(seen *Row) (bool, error) {
				l.checkpoints.loseRows()
				return steps.Put(l.digest, seen, NewRow(l.names, l.token, l.record), lostCheckpoints, lease, ttl)
			})
	})
}

// Complete implements [idempotency.Claim]. An answer that there is no room for is stored with Omitted set.
func (l *lease) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch l.ended {
	case completed:
		return nil // this is a repetition, even if the record has expired since
	case lost:
		return idempotency.ErrClaimLost
	}
	err := l.complete(ctx, resp, ttl)
	if errors.Is(err, idempotency.ErrStoreFull) && !resp.Omitted {
		err = l.complete(ctx, idempotency.Response{Status: resp.Status, Omitted: true}, ttl)
	}
	return l.end(completed, err)
}

func (l *lease) complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	whole, tombstone, err := Stored(resp)
	if err != nil {
		return err
	}
	c := &completion{lease: l, ttl: ttl}
	_, c.keepsRows = l.store.(RowLeases)
	err = l.settle(ctx, "complete", isComplete, func(steps Steps) (standing, error) {
		c.response, c.areRowsLost = whole, false
		if !steps.HasRoom(len(whole)) {
			c.response = tombstone
		}
		return l.change(steps,
			func() (bool, error) { return c.send(steps) },
			func(seen *Row) (bool, error) { return c.restore(steps, seen) })
	})
	if c.areRowsLost && (err == nil || errors.Is(err, idempotency.ErrRestored)) {
		return l.store.Failure("complete", ErrRowsLost)
	}
	return err
}

// ErrRowsLost says that the database has lost the rows of a step with the result of the step, as a failover to an asynchronous
// replica does.
var ErrRowsLost = fmt.Errorf("%w: the database has lost the rows of a step", idempotency.ErrClaimLost)

// completion is one call of Complete.
type completion struct {
	*lease
	response    []byte
	ttl         time.Duration
	keepsRows   bool // the store is a RowLeases
	areRowsLost bool // rows that the handler relies on are lost
}

// send completes the record of the claim. If the record lacks steps that may have written rows, send stores instead that steps are
// lost.
func (c *completion) send(steps Steps) (changed bool, err error) {
	size, isLost := 0, false
	if c.keepsRows {
		size, isLost = c.checkpoints.reliedSize()
	}
	if !isLost {
		changed, err = steps.Complete(c.digest, c.token, c.response, c.ttl, size)
	}
	if changed || err != nil || size == 0 && !isLost {
		return changed, err
	}
	entries, held, err := steps.Checkpoints(c.digest, c.token)
	switch {
	case err != nil || !held:
		return false, err
	case has(entries, idempotency.RecordLost):
		changed = true
	case !isLost && len(entries) >= size:
		return false, Invalid("checkpoints of another length")
	default:
		changed, err = steps.Checkpoint(c.digest, c.token, encode(entries, idempotency.RecordLost, nil), len(entries))
	}
	c.areRowsLost = changed
	return changed, err
}

// restore makes the record again, unless rows may have been lost with it.
func (c *completion) restore(steps Steps, seen *Row) (bool, error) {
	if c.keepsRows && c.checkpoints.loseRows() {
		c.areRowsLost = true
		return true, nil
	}
	own := NewRow(c.names, c.token, c.record)
	own.Response = sql.Null[[]byte]{V: c.response, Valid: true}
	return steps.Put(c.digest, seen, own, nil, 0, c.ttl)
}

// Release implements [idempotency.Claim].
func (l *lease) Release(ctx context.Context, ttl time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end(lost, l.settle(ctx, "release", isReleased, func(steps Steps) (standing, error) {
		release := func() (bool, error) { return steps.Release(l.digest, l.token, ttl) }
		if ttl == 0 {
			release = func() (bool, error) { return steps.Free(l.digest, l.token, l.freedFor()) }
		}
		return l.change(steps, release, nil)
	}))
}

// freedFor returns how long the row of a key that was freed is kept: for as long as the request for the claim, if it was sent
// twice, may still be on its way.
func (l *lease) freedFor() time.Duration { return min(2*l.record.LeaseLeft, l.ttl) }

// end notes that the claim has ended, if err says so.
func (l *lease) end(how ending, err error) error {
	switch {
	case l.ended == completed:
	case err == nil || errors.Is(err, idempotency.ErrRestored):
		l.ended = how
	case errors.Is(err, idempotency.ErrClaimLost):
		l.ended = lost
	}
	return err
}

// standing says how a record stands to a claim.
type standing int

const (
	foreign    standing = iota // another attempt has the key, or had it since
	holds                      // it is as the step wants it
	running                    // under this claim
	isReleased                 // by this claim
	isComplete                 // by this claim
	gone                       // nobody has the key
	restored                   // it was gone, and has been made again
)

// settle runs a step, and returns what the contract says for the standing that it finds. The standing repeated says that
// the step has taken effect before.
func (l *lease) settle(
	ctx context.Context, name string, repeated standing, run func(steps Steps) (standing, error),
) error {
	var found standing
	_, err := l.store.Do(ctx, false, func(steps Steps) (err error) {
		found, err = run(steps)
		return err
	})
	if err != nil {
		return l.store.Failure(name, err)
	}
	switch found {
	case holds, repeated:
		return nil
	case restored:
		return idempotency.ErrRestored
	default:
		return idempotency.ErrClaimLost
	}
}

// change changes the record by do. If nobody has the key, restore makes the record again, unless it is nil.
func (l *lease) change(
	steps Steps, do func() (bool, error), restore func(seen *Row) (bool, error),
) (standing, error) {
	for {
		if changed, err := do(); changed || err != nil {
			return holds, err
		}
		seen, found, err := l.find(steps)
		switch {
		case err != nil:
			return found, err
		case found == running:
			continue // Extend has made it again in the meantime
		case found != gone || restore == nil:
			return found, nil
		}
		if put, err := restore(seen); put || err != nil {
			return restored, err
		}
	}
}

// find returns how the record stands to a claim that could not change it.
func (l *lease) find(steps Steps) (*Row, standing, error) {
	seen, err := steps.Read(l.digest)
	if errors.Is(err, idempotency.ErrRecordInvalid) {
		return nil, foreign, nil
	}
	if err != nil {
		return nil, foreign, err
	}
	return seen, l.standing(seen), nil
}

// standing tells by the token whether another attempt has claimed the key since, even if its record has expired.
func (l *lease) standing(seen *Row) standing {
	switch {
	case !seen.Found:
		return gone
	case string(seen.Token) != string(l.token):
		return foreign
	case seen.isFree():
		return isReleased
	case !seen.Counts():
		return gone
	case seen.Response.Valid:
		return isComplete
	case !seen.Lease.Valid:
		return isReleased
	default:
		return running
	}
}
