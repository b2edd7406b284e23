package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
)

// Leases is a store whose claims are leases.
type Leases interface {
	// Do runs a step, and returns after the step has taken effect. The bool adds means that the step may add a record.
	// Do may call run again after an error. With an error, begun tells the effect of the step:
	//
	//   - begun is false: the step has had no effect, and will have none.
	//   - begun is true: the effect is unknown, for example because ctx has ended during the step.
	Do(ctx context.Context, adds bool, run func(Steps) error) (begun bool, err error)

	// Failure wraps the error of a step for the caller of the store.
	Failure(step string, err error) error
}

// RowLeases is a [Leases] in a database where steps may write rows. A record that loses a step has also lost the rows
// of the step.
type RowLeases interface {
	Leases

	// KeepsRows marks the store, and does nothing.
	KeepsRows()
}

// Steps read and change records with one statement each. The methods that change a record report whether the record was
// changed. Extend, Complete, Release, Abandon and Checkpoint change only an unexpired record that has the token, a lease and no
// response.
type Steps interface {
	// Read returns the record of operation. Without a record, Found of the row is false.
	Read(operation uuid.UUID) (*Row, error)

	// Put writes own as a new record, or replaces the record seen, which Read has returned. Put returns false if the
	// stored record differs from seen by now. A lease of zero means no lease. If seen has not expired and own has no
	// response, the record keeps the checkpoints of seen; otherwise the checkpoints are entries. An unexpired record
	// keeps the resolution of an operator.
	Put(operation uuid.UUID, seen, own *Row, entries []byte, lease, ttl time.Duration) (bool, error)

	// Extend sets the end of the lease to lease from now, and lets the record live at least as long.
	Extend(operation uuid.UUID, token []byte, lease time.Duration) (bool, error)

	// Complete stores response for ttl from now, removes the checkpoints, and ends the lease. In a [RowLeases],
	// Complete also requires checkpoints of at least size bytes. Stores without rows ignore size.
	Complete(operation uuid.UUID, token, response []byte, ttl time.Duration, size int) (bool, error)

	// Release ends the lease, and keeps the record with the reason for ttl from now.
	Release(operation uuid.UUID, token []byte, reason idempotency.EndReason, ttl time.Duration) (bool, error)

	// Abandon makes the lease lapse now, and keeps the record with the reason.
	Abandon(operation uuid.UUID, token []byte, reason idempotency.EndReason) (bool, error)

	// Free ends the lease, sets the attempt to zero, removes the checkpoints, and keeps the row for ttl from now.
	Free(operation uuid.UUID, token []byte, ttl time.Duration) (bool, error)

	// Checkpoint stores entries if the record has exactly before bytes of checkpoints. The first before bytes of
	// entries are the stored checkpoints.
	Checkpoint(operation uuid.UUID, token, entries []byte, before int) (bool, error)

	// Checkpoints returns the checkpoints of a record that Checkpoint could change. For any different record, held is
	// false.
	Checkpoints(operation uuid.UUID, token []byte) (entries []byte, held bool, err error)

	// IsFull reports whether the store has too little room for a new operation.
	IsFull() bool

	// HasRoom reports whether the store has room for a response or a checkpoint of n bytes.
	HasRoom(n int) bool
}

// CountingSteps are the Steps of a store that may bound the records of a user.
type CountingSteps interface {
	Steps

	// ReadAndCount is Read for a claim. isUserFull reports that the claim would add a record, and that the user already has
	// as many records that have not expired as the store allows.
	ReadAndCount(operation uuid.UUID, user string) (seen *Row, isUserFull bool, err error)
}

// leaseClaim implements [idempotency.Claim]. A leaseClaim keeps all parts of the record in memory, so that the claim
// can restore the record if the store loses the record.
type leaseClaim struct {
	store         Leases
	operation     uuid.UUID
	keyNames      Names
	ownerToken    []byte
	grantedRecord idempotency.Record // the record at the time of the claim
	recordTTL     time.Duration      // lifetime of the record, from the claim

	checkpoints knownCheckpoints
	renewals    renewalLock
	settlement
}

// settlement holds the state of a claim.
type settlement struct {
	settleMutex  sync.Mutex // held while the record is settled or restored
	currentState claimState
}

// renewalLock pauses the renewals of a lease. A renewal holds the lock for reading. A change of isPaused holds the lock
// for writing.
type renewalLock struct {
	sync.RWMutex
	isPaused bool // the transaction of a step has locked the record
}

// claimState is the state of a claim in the memory of the owner.
type claimState int

const (
	claimOpen claimState = iota
	claimCompleted
	claimLost // lost to a different attempt, or released
)

// Claim claims key as Begin of [idempotency.Store] does. If the step has failed and its effect is unknown, the error is
// an [idempotency.ClaimInDoubtError].
func Claim(
	ctx context.Context, store Leases, key idempotency.Key, request *idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	l := &leaseClaim{
		store: store, operation: key.OperationID(), keyNames: NamesOf(key), ownerToken: NewToken(),
		recordTTL: max(request.TTL, request.Lease),
	}
	var result claimResult
	begun, err := store.Do(ctx, true, func(steps Steps) (err error) {
		result, err = l.claimKey(steps, request)
		return err
	})
	switch {
	case err != nil && begun:
		return idempotency.Record{}, nil, &idempotency.ClaimInDoubtError{Claim: l, Err: store.Failure("claim", err)}
	case err != nil:
		return idempotency.Record{}, nil, store.Failure("claim", err)
	case !result.isClaimed:
		return result.record, nil, store.Failure("claim", result.err)
	}
	// The owner must stop at the end of the requested lease, even if the stored lease is longer.
	result.record.LeaseLeft = min(result.record.LeaseLeft, request.Lease)
	l.grantedRecord = result.record
	return result.record, l, nil
}

// claimResult is the result of a claimKey.
type claimResult struct {
	record    idempotency.Record
	isClaimed bool
	err       error
}

// claimKey claims the key unless the stored record keeps request from the key. claimKey reads again if the record
// changes between reading and writing.
func (l *leaseClaim) claimKey(steps Steps, request *idempotency.ClaimRequest) (claimResult, error) {
	for {
		seen, isUserFull, err := l.readForClaim(steps)
		if errors.Is(err, idempotency.ErrRecordInvalid) {
			return claimResult{err: err}, nil
		}
		if err != nil {
			return claimResult{}, err
		}
		if isHeld, record, err := seen.Held(l.keyNames, request); isHeld {
			own := string(seen.Token) == string(l.ownerToken) // written by an earlier run, whose reply was lost
			return claimResult{record: record, isClaimed: own && err == nil, err: err}, nil
		}
		if isUserFull {
			return claimResult{err: idempotency.ErrUserQuota}, nil
		}
		if !seen.Counts() && steps.IsFull() {
			return claimResult{err: idempotency.ErrStoreFull}, nil
		}
		record := seen.Next(request)
		record.LeaseLeft = request.Lease
		put, err := steps.Put(l.operation, seen, NewRow(l.keyNames, l.ownerToken, record), nil, request.Lease, l.recordTTL)
		if put || err != nil {
			return claimResult{record: record, isClaimed: put}, err
		}
	}
}

// readForClaim reads the record, and whether the user has too many records for another one.
func (l *leaseClaim) readForClaim(steps Steps) (seen *Row, isUserFull bool, err error) {
	if counting, ok := steps.(CountingSteps); ok {
		return counting.ReadAndCount(l.operation, l.keyNames[0])
	}
	seen, err = steps.Read(l.operation)
	return seen, false, err
}

// Extend implements [idempotency.Claim]. While the transaction of a step has locked the record, Extend does nothing and
// returns nil.
func (l *leaseClaim) Extend(ctx context.Context, d time.Duration) error {
	l.renewals.RLock()
	defer l.renewals.RUnlock()
	if l.renewals.isPaused {
		return nil
	}
	return l.changeOrRestore(ctx, "extend", d, d, func(steps Steps) (bool, error) {
		return steps.Extend(l.operation, l.ownerToken, d)
	})
}

// changeOrRestore changes the record of an open claim by calling do. If the record is gone, changeOrRestore restores
// the record.
func (l *leaseClaim) changeOrRestore(
	ctx context.Context, name string, lease, ttl time.Duration, do func(steps Steps) (bool, error),
) error {
	var done bool
	_, err := l.store.Do(ctx, false, func(steps Steps) (err error) {
		done, err = do(steps)
		return err
	})
	if err != nil || done { // after an error the step may still be under way and write later
		return l.store.Failure(name, err)
	}
	l.settleMutex.Lock() // Complete or Release may be under way
	defer l.settleMutex.Unlock()
	if l.currentState != claimOpen { // a restored record would have no owner to renew or settle the record
		return idempotency.ErrClaimLost
	}
	return l.runChange(ctx, name, statusChanged, func(steps Steps) (recordStatus, error) {
		return l.changeRecord(steps,
			func() (bool, error) { return do(steps) },
			func(seen *Row) (bool, error) {
				l.checkpoints.markRowsLost()
				return steps.Put(l.operation, seen, NewRow(l.keyNames, l.ownerToken, l.grantedRecord), lostEntries, lease, ttl)
			})
	})
}

// Complete implements [idempotency.Claim]. Without room for resp, Complete stores a tombstone: the status, with Omitted
// set.
func (l *leaseClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	l.settleMutex.Lock()
	defer l.settleMutex.Unlock()
	switch l.currentState {
	case claimCompleted:
		return nil // a repetition succeeds even if the record has expired since
	case claimLost:
		return idempotency.ErrClaimLost
	}
	err := l.completeRecord(ctx, resp, ttl)
	if errors.Is(err, idempotency.ErrStoreFull) && !resp.Omitted {
		err = l.completeRecord(ctx, idempotency.Response{Status: resp.Status, Omitted: true}, ttl)
	}
	return l.noteClaimEnd(claimCompleted, err)
}

// completeRecord stores resp, or the tombstone of resp in a store without room.
func (l *leaseClaim) completeRecord(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	whole, tombstone, err := Stored(resp)
	if err != nil {
		return err
	}
	c := &completion{leaseClaim: l, ttl: ttl}
	_, c.keepsRows = l.store.(RowLeases)
	err = l.runChange(ctx, "complete", statusCompleted, func(steps Steps) (recordStatus, error) {
		c.response, c.areRowsLost = whole, false
		if !steps.HasRoom(len(whole)) {
			c.response = tombstone
		}
		return l.changeRecord(steps,
			func() (bool, error) { return c.completeOrMarkLost(steps) },
			func(seen *Row) (bool, error) { return c.restoreRecord(steps, seen) })
	})
	isOver := err == nil || errors.Is(err, idempotency.ErrRestored) || errors.Is(err, idempotency.ErrStoreFull)
	if isOver && c.areRowsLost { // after another error the step may still run
		return l.store.Failure("complete", ErrRowsLost)
	}
	return err
}

// ErrRowsLost reports that the database has lost the result and the rows of a step, as in a failover to an asynchronous
// replica.
var ErrRowsLost = fmt.Errorf("%w: the database has lost the rows of a step", idempotency.ErrClaimLost)

// completion is a call of Complete.
type completion struct {
	*leaseClaim
	response    []byte
	ttl         time.Duration
	keepsRows   bool // the store is a RowLeases
	areRowsLost bool // the store has lost rows relied on by the handler
}

// errNodesDiffer reports that the record lacks steps for one statement and has them for the next statement. The error
// is not final, so that Complete is repeated.
var errNodesDiffer = errors.New("the nodes of the database have different steps")

// completeOrMarkLost completes the record of the claim. If the record lacks steps with rows, completeOrMarkLost stores
// the checkpoint [idempotency.RecordLost] instead of the response. The first statement may have run on a node that had
// not received the steps yet. If the next statement finds the steps, completeOrMarkLost begins again.
func (c *completion) completeOrMarkLost(steps Steps) (changed bool, err error) {
	for range maxConflicts {
		size, isLost := 0, false
		if c.keepsRows {
			size, isLost = c.checkpoints.reliedSize()
		}
		if !isLost {
			changed, err = steps.Complete(c.operation, c.ownerToken, c.response, c.ttl, size)
		}
		if changed || err != nil || size == 0 && !isLost {
			return changed, err
		}
		entries, held, err := steps.Checkpoints(c.operation, c.ownerToken)
		switch {
		case err != nil || !held:
			return false, err
		case hasEntry(entries, idempotency.RecordLost):
			changed = true
		case !isLost && len(entries) >= size:
			continue
		default:
			withLost := appendEntry(entries, idempotency.RecordLost, nil)
			changed, err = steps.Checkpoint(c.operation, c.ownerToken, withLost, len(entries))
		}
		c.areRowsLost = changed
		return changed, err
	}
	return false, errNodesDiffer
}

// restoreRecord writes the record again with the response. If the store may have lost rows with the record,
// restoreRecord writes a record that has expired instead: the key stays free, and a node that lacks the record only
// because the node lags refuses the write.
func (c *completion) restoreRecord(steps Steps, seen *Row) (bool, error) {
	own := NewRow(c.keyNames, c.ownerToken, c.grantedRecord)
	if c.keepsRows && c.checkpoints.mayHaveRows() {
		c.areRowsLost = true
		put, err := steps.Put(c.operation, seen, own, nil, 0, 0)
		if err == nil {
			c.areRowsLost = put
		}
		return put, err
	}
	own.Response = sql.Null[[]byte]{V: c.response, Valid: true}
	return steps.Put(c.operation, seen, own, nil, 0, c.ttl)
}

// Release implements [idempotency.Claim].
func (l *leaseClaim) Release(ctx context.Context, end idempotency.Release) error {
	l.settleMutex.Lock()
	defer l.settleMutex.Unlock()
	return l.noteClaimEnd(claimLost, l.runChange(ctx, "release", statusReleased, func(steps Steps) (recordStatus, error) {
		switch {
		case end.Abandoned:
			return l.abandonRecord(steps, end.Reason)
		case end.TTL == 0:
			return l.changeRecord(steps, func() (bool, error) { return steps.Free(l.operation, l.ownerToken, l.freedRecordTTL()) }, nil)
		}
		return l.changeRecord(steps, func() (bool, error) { return steps.Release(l.operation, l.ownerToken, end.Reason, end.TTL) }, nil)
	}))
}

// abandonRecord makes the lease lapse. If the statement changes nothing and the claim still holds the record, an earlier try
// has made the lease lapse.
func (l *leaseClaim) abandonRecord(steps Steps, reason idempotency.EndReason) (recordStatus, error) {
	changed, err := steps.Abandon(l.operation, l.ownerToken, reason)
	if changed || err != nil {
		return statusChanged, err
	}
	_, status, err := l.readStatus(steps)
	if status == statusRunning {
		status = statusReleased
	}
	return status, err
}

// freedRecordTTL returns how long the row of a freed key stays: as long as a duplicate of the claim statement may still
// arrive.
func (l *leaseClaim) freedRecordTTL() time.Duration {
	return min(2*l.grantedRecord.LeaseLeft, l.recordTTL)
}

// noteClaimEnd sets the state of the claim if err says that the claim has ended, and returns err.
func (l *leaseClaim) noteClaimEnd(state claimState, err error) error {
	switch {
	case l.currentState == claimCompleted:
	case err == nil || errors.Is(err, idempotency.ErrRestored):
		l.currentState = state
	case errors.Is(err, idempotency.ErrClaimLost):
		l.currentState = claimLost
	}
	return err
}

// recordStatus is the relation between the stored record and a claim.
type recordStatus int

const (
	statusForeign   recordStatus = iota // a different attempt has claimed the key since
	statusChanged                       // the step has changed the record as wanted
	statusRunning                       // the claim still holds the record
	statusReleased                      // the claim was released
	statusCompleted                     // the claim was completed
	statusGone                          // the record was lost or has expired, and the key is free
	statusRestored                      // the record was gone, and the step has restored the record
)

// runChange runs a step of the claim, and turns the status into the error required by the contract of
// [idempotency.Claim]. The status repeated means that an earlier run of the step has taken effect.
func (l *leaseClaim) runChange(
	ctx context.Context, name string, repeated recordStatus, run func(steps Steps) (recordStatus, error),
) error {
	var found recordStatus
	_, err := l.store.Do(ctx, false, func(steps Steps) (err error) {
		found, err = run(steps)
		return err
	})
	if err != nil {
		return l.store.Failure(name, err)
	}
	switch found {
	case statusChanged, repeated:
		return nil
	case statusRestored:
		return idempotency.ErrRestored
	default:
		return idempotency.ErrClaimLost
	}
}

// changeRecord changes the record by calling do. If the record is gone, changeRecord calls restore, unless restore is
// nil.
func (l *leaseClaim) changeRecord(
	steps Steps, do func() (bool, error), restore func(seen *Row) (bool, error),
) (recordStatus, error) {
	for {
		if changed, err := do(); changed || err != nil {
			return statusChanged, err
		}
		seen, found, err := l.readStatus(steps)
		switch {
		case err != nil:
			return found, err
		case found == statusRunning:
			continue // a concurrent Extend has restored the record
		case found != statusGone || restore == nil:
			return found, nil
		}
		if put, err := restore(seen); put || err != nil {
			return statusRestored, err
		}
	}
}

// readStatus reads the record and the status of the record after a statement of the claim has changed nothing.
func (l *leaseClaim) readStatus(steps Steps) (*Row, recordStatus, error) {
	seen, err := steps.Read(l.operation)
	if errors.Is(err, idempotency.ErrRecordInvalid) {
		return nil, statusForeign, nil
	}
	if err != nil {
		return nil, statusForeign, err
	}
	return seen, l.statusOf(seen), nil
}

// statusOf returns the status of the record seen. The token alone tells whether a different attempt has claimed the key
// since, even if the record of the attempt has expired.
func (l *leaseClaim) statusOf(seen *Row) recordStatus {
	switch {
	case !seen.Found:
		return statusGone
	case string(seen.Token) != string(l.ownerToken):
		return statusForeign
	case seen.isFree():
		return statusReleased
	case !seen.Counts():
		return statusGone
	case seen.Response.Valid:
		return statusCompleted
	case !seen.Lease.Valid:
		return statusReleased
	default:
		return statusRunning
	}
}
