package pgxstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// claim implements [idempotency.Claim]. It remembers what the record is made of, to make it again should it be lost.
type claim struct {
	store      *Store
	statements statements
	keyNames   sqlstore.Names
	keyDigest  [32]byte
	request    idempotency.ClaimRequest
	ownerToken pgtype.UUID
	grant
	reliedRows reliedRows
	settlement
}

// grant is what the server has granted to a claim.
type grant struct {
	attemptNumber     int32 // 0: not claimed yet
	createdAt         pgtype.Timestamptz
	replacedRemaining time.Duration // how long the record of the attempt before would have been kept; 0: not known
}

// settlement says whether a claim is settled, and until then, whether its lease is renewed.
type settlement struct {
	mu        sync.Mutex // held while the record is settled or made again
	isSettled bool       // Complete or Release has ended the claim

	renewalLock    sync.RWMutex // held for reading by a renewal, and for writing by a transaction that locks the record or ends
	isRecordLocked bool         // a transaction has locked the record: renewals rest
}

// take claims the key, and returns the record that holds it then. See [Table.retry] for claimed.
func (c *claim) claimKey(ctx context.Context, mayHoldClaim *bool) (storedRow *row, err error) {
	takeoverLevel := int32(1) // what was released may be claimed
	if c.request.TakeOver {
		takeoverLevel = 2 // and that whose lease has lapsed
	}
	args := []any{c.keyDigest[:], c.request.Fingerprint[:], takeoverLevel, c.keyNames[0], c.keyNames[1], c.keyNames[2], &c.ownerToken,
		c.request.Lease.Microseconds(), c.request.TTL.Microseconds()}
	err = c.sendInsert(ctx, mayHoldClaim, fromPool, c.statements["claim"], args, func(r pgx.Row) (err error) {
		storedRow, err = c.scanClaim(r)
		return err
	})
	return storedRow, err
}

// ask runs a statement that may insert the record.
func (c *claim) sendInsert(
	ctx context.Context, mayHoldClaim *bool, from connSource, sql string, args []any, scan func(pgx.Row) error,
) error {
	return c.store.retryOnConn(ctx, mayHoldClaim, from, func(conn *pgx.Conn) error {
		if c.store.opts.isPartitioned() {
			return c.sendInsertInTurn(ctx, conn, sql, args, scan)
		}
		return scan(conn.QueryRow(ctx, sql, args...))
	})
}

// askInTurn inserts into a divided table, where no unique index can refuse a second record. All claims of a key take
// turns, and each takes the snapshot that it judges by when it is its turn. It is still one round trip.
func (c *claim) sendInsertInTurn(ctx context.Context, conn *pgx.Conn, sql string, args []any, scan func(pgx.Row) error) error {
	var batch pgx.Batch
	batch.Queue(beginReadCommitted)
	batch.Queue("select pg_advisory_xact_lock($1::bigint)", c.store.lockNumber(c.keyDigest))
	batch.Queue(sql, args...).QueryRow(scan)
	batch.Queue("commit")
	return conn.SendBatch(ctx, &batch).Close()
}

// scan returns the record that holds the key, which is that of the claim if the statement has made it.
func (c *claim) scanClaim(from pgx.Row) (*row, error) {
	var attemptNumber pgtype.Int4
	storedRow := &row{}
	switch err := from.Scan(storedRow.scanTargets(&c.keyNames, &attemptNumber)...); {
	case err != nil:
		return nil, err
	case !attemptNumber.Valid:
		return storedRow, nil
	case attemptNumber.Int32 == 0:
		return nil, errOvertaken
	}
	ownRow := row{attempt: attemptNumber, fingerprint: c.request.Fingerprint[:], token: c.ownerToken, createdAt: storedRow.serverTime,
		serverTime: storedRow.serverTime, leaseUntil: pgtype.Timestamptz{Time: storedRow.serverTime.Time.Add(c.request.Lease), Valid: true}}
	if attemptNumber.Int32 > 1 {
		ownRow.createdAt, c.replacedRemaining = storedRow.createdAt, storedRow.remainingTime()
	}
	*storedRow = ownRow
	return storedRow, nil
}

// Extend implements [idempotency.Claim]. While a transaction of a step has locked the record, Extend sends nothing: nobody can
// claim the key, and a renewal would wait for the lock.
func (c *claim) Extend(ctx context.Context, lease time.Duration) error {
	c.renewalLock.RLock()
	defer c.renewalLock.RUnlock()
	if c.isRecordLocked {
		return nil
	}
	isChanged, err := c.changeRecordFor(ctx, fromPoolOrSpare, "extend", lease)
	if isChanged || err != nil {
		return err
	}
	return c.restoreLease(ctx, "extend", lease, max(c.request.TTL, lease))
}

// revive makes the record of a claim that goes on again, for the step of that name.
func (c *claim) restoreLease(ctx context.Context, name string, lease, ttl time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isSettled { // nobody would renew or settle the record if it were made again
		return idempotency.ErrClaimLost
	}
	err := c.restoreRecord(ctx, fromPoolOrSpare, name,
		append(c.restoreArgs(), lease.Microseconds(), ttl.Microseconds(), nil, nil, nil, nil, nil))
	if errors.Is(err, idempotency.ErrRestored) {
		c.reliedRows.relyOnJoinedSteps()
	}
	return err
}

// Complete implements [idempotency.Claim].
func (c *claim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	stepNames, mayHaveRows := c.reliedRows.requiredSteps()
	isChanged, err := c.changeRecordFor(ctx, fromPool, "complete", ttl, append(responseArgs(resp, make([]any, 0, 6)...), stepNames)...)
	switch {
	case isChanged || err != nil:
	case mayHaveRows:
		err = c.markRowsLost(ctx)
	default:
		err = c.restoreRecord(ctx, fromPool, "complete", responseArgs(resp, append(c.restoreArgs(), nil, ttl.Microseconds())...))
	}
	if errors.Is(err, errCompleted) { // this is a repetition, perhaps of a try that was not answered
		err = c.store.confirmRecord(ctx, c.statements, c.keyDigest, c.ownerToken, true)
	}
	return c.noteSettled(err)
}

// reliedRows are the rows that the handler relies on. At Complete, the record must have the steps that may have written them.
type reliedRows struct {
	mu          sync.Mutex
	stepNames   string   // their names, one a line
	joinedSteps []string // steps in transactions of the handler, which may have been committed
}

// rely adds steps, each once.
func (r *reliedRows) addSteps(steps ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.appendSteps(steps)
}

func (r *reliedRows) appendSteps(steps []string) {
	for _, step := range steps {
		switch {
		case r.stepNames == "":
			r.stepNames = step
		case !slices.Contains(strings.Split(r.stepNames, "\n"), step):
			r.stepNames += "\n" + step
		}
	}
}

// join notes that the result of step was stored in a transaction of the handler.
func (r *reliedRows) addJoinedStep(step string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.joinedSteps = append(r.joinedSteps, step)
}

// relyOnJoined is called when the record was lost, and made again without its steps. If the handler has committed the
// transactions of the joined steps, their rows may be lost.
func (r *reliedRows) relyOnJoinedSteps() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.appendSteps(r.joinedSteps)
}

// relied returns the steps that the record must have, or nil, and whether the handler may have written rows.
func (r *reliedRows) requiredSteps() (steps any, mayHaveRows bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stepNames == "" {
		return nil, r.joinedSteps != nil
	}
	return r.stepNames, true
}

// loseRows is called if the handler may have written rows, and the record could not be completed:
//
//   - The record is gone, or lacks a step: loseRows returns [sqlstore.ErrRowsLost]. A record that lacks a step gets the step
//     [idempotency.RecordLost].
//   - Another attempt has claimed the key: loseRows returns [idempotency.ErrClaimLost].
//   - The claim has completed the record before: loseRows returns nil.
func (c *claim) markRowsLost(ctx context.Context) error {
	isMarked, err := c.changeRecord(ctx, fromPool, "checkpoint", []any{c.keyDigest[:], c.ownerToken, idempotency.RecordLost, []byte{}})
	if err == nil && !isMarked {
		err = c.store.confirmRecord(ctx, c.statements, c.keyDigest, c.ownerToken, true)
	}
	if errors.Is(err, errUnconfirmed) {
		_, _, err = c.loadSteps(ctx)
		isMarked, err = err == nil, wrapError("complete", err)
	}
	if isMarked {
		return sqlstore.ErrRowsLost
	}
	return err
}

// Release implements [idempotency.Claim].
func (c *claim) Release(ctx context.Context, ttl time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	statement := "release"
	if ttl == 0 {
		statement, ttl = "free", min(2*c.request.Lease, c.request.TTL)
	}
	isChanged, err := c.changeRecordFor(ctx, fromPool, statement, ttl)
	if !isChanged && err == nil {
		err = idempotency.ErrClaimLost
	}
	return c.noteSettled(err)
}

// settle notes that the claim has ended, if err says so.
func (c *claim) noteSettled(err error) error {
	c.isSettled = c.isSettled || err == nil || errors.Is(err, idempotency.ErrRestored) || errors.Is(err, idempotency.ErrClaimLost)
	return err
}

// errCompleted says that the claim itself has completed its record.
var errCompleted = fmt.Errorf("%w: completed", idempotency.ErrClaimLost)

// restoreArgs returns what the record is made of again, up to its lease.
func (c *claim) restoreArgs() []any {
	return []any{c.keyDigest[:], c.request.Fingerprint[:], c.keyNames[0], c.keyNames[1], c.keyNames[2], c.ownerToken, c.attemptNumber, c.createdAt}
}

// restore makes the record again if it is gone, as it is to be after the step. That is one statement: a record that was
// made first and changed afterwards would show others what is not true, and might lapse in between.
func (c *claim) restoreRecord(ctx context.Context, from connSource, name string, args []any) error {
	mayHoldClaim := true
	var isRestored, isFree, isCompleted bool
	err := c.sendInsert(ctx, &mayHoldClaim, from, c.statements["restore"], args, func(r pgx.Row) error {
		err := r.Scan(&isRestored, &isFree, &isCompleted)
		if err == nil && isFree && !isRestored {
			return errOvertaken
		}
		return err
	})
	switch {
	case err != nil:
		return wrapError(name, err)
	case isRestored:
		return idempotency.ErrRestored
	case isCompleted:
		return errCompleted
	default:
		return idempotency.ErrClaimLost
	}
}

// step reports whether the claim held its record, which the statement of that name has changed then. The record lives for d,
// or at least for d.
func (c *claim) changeRecordFor(ctx context.Context, from connSource, name string, ttl time.Duration, more ...any) (isChanged bool, err error) {
	if err := c.store.checkTTL(ttl); err != nil {
		return false, err
	}
	return c.changeRecord(ctx, from, name, append(append(make([]any, 0, 9), c.keyDigest[:], c.ownerToken, ttl.Microseconds()), more...))
}

// change is step with all arguments of the statement.
func (c *claim) changeRecord(ctx context.Context, from connSource, name string, args []any) (isChanged bool, err error) {
	mayHoldClaim := true
	err = c.store.retryOnConn(ctx, &mayHoldClaim, from, func(conn *pgx.Conn) error {
		tag, err := conn.Exec(ctx, c.statements[name], args...)
		isChanged = tag.RowsAffected() == 1
		return err
	})
	return isChanged, wrapError(name, err)
}
