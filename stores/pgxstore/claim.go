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

// claim implements [idempotency.Claim]. A claim keeps all values that its record is made of, so that the claim can
// restore the record if the server loses the record.
type claim struct {
	store      *Store
	statements statements
	keyNames   sqlstore.Names
	operation  pgtype.UUID
	request    idempotency.ClaimRequest
	ownerToken pgtype.UUID
	grant
	reliedRows reliedRows
	settlement
}

// grant holds what the server decided when it granted the claim.
type grant struct {
	attemptNumber     int32 // 0 until the key is claimed
	createdAt         pgtype.Timestamptz
	replacedRemaining time.Duration // TTL that was left to the record of the attempt before; 0 if unknown
}

// settlement tracks the end of a claim, and until then, whether Extend may renew the lease.
type settlement struct {
	mu        sync.Mutex // held while the claim settles or restores the record
	isSettled bool       // by Complete or Release

	renewalLock    sync.RWMutex // read-locked by a renewal, locked while the transaction of a step begins, and to change isRecordLocked
	isRecordLocked bool         // by the transaction of a step
}

// claimKey claims the key, and returns the record that holds the key afterwards: the record of this claim, or the record
// of another attempt. For mayHoldClaim see [Table.retryOnConn].
func (c *claim) claimKey(ctx context.Context, mayHoldClaim *bool) (storedRow *row, err error) {
	takeoverLevel := int32(1) // claim absent, expired and released records
	if c.request.TakeOver {
		takeoverLevel = 2 // also claim abandoned records, whose lease has lapsed
	}
	args := []any{c.operation, c.request.Fingerprint[:], takeoverLevel, c.keyNames[0], c.keyNames[1], c.keyNames[2],
		&c.ownerToken, c.request.Lease.Microseconds(), c.request.TTL.Microseconds()}
	err = c.sendInsert(ctx, mayHoldClaim, fromPool, c.statements["claim"], args, func(r pgx.Row) (err error) {
		storedRow, err = c.scanClaim(r)
		return err
	})
	return storedRow, err
}

// sendInsert runs a statement that may insert the record of the claim, and scans the returned row with scan.
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

// sendInsertInTurn runs the statement sql on a partitioned table, where no unique index can refuse a second record of the
// key. To prevent a second record, all claims of a key take turns by an advisory lock. The statement begins after the
// lock is granted, so its snapshot includes the records of all earlier turns. The batch takes one round trip. If the
// statement fails, the server skips the commit, and the pool closes the connection.
func (c *claim) sendInsertInTurn(
	ctx context.Context, conn *pgx.Conn, sql string, args []any, scan func(pgx.Row) error,
) error {
	var batch pgx.Batch
	batch.Queue(beginReadCommitted)
	batch.Queue("select pg_advisory_xact_lock($1::bigint)", c.store.lockNumber(c.operation))
	batch.Queue(sql, args...).QueryRow(scan)
	batch.Queue("commit")
	return conn.SendBatch(ctx, &batch).Close()
}

// scanClaim scans the row that claim.sql returns. The last column of the row decides whose record scanClaim returns:
//
//   - null: the key is held, and the row is the record that holds the key.
//   - 0: a concurrent session was faster. scanClaim returns errOvertaken, so that the statement is repeated.
//   - -1: the user has too many records. scanClaim returns [idempotency.ErrUserQuota].
//   - the number of an attempt: this claim holds the key. If the number is above 1, the row is the record of the attempt
//     before; otherwise only the time of the server counts. scanClaim returns the record that the statement has written.
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
	case attemptNumber.Int32 < 0:
		return nil, idempotency.ErrUserQuota
	}
	claimedAt := storedRow.serverTime
	ownRow := row{attempt: attemptNumber, fingerprint: c.request.Fingerprint[:], token: c.ownerToken, createdAt: claimedAt,
		serverTime: claimedAt, leaseUntil: pgtype.Timestamptz{Time: claimedAt.Time.Add(c.request.Lease), Valid: true}}
	if attemptNumber.Int32 > 1 {
		ownRow.createdAt, c.replacedRemaining = storedRow.createdAt, storedRow.remainingTime()
	}
	*storedRow = ownRow
	return storedRow, nil
}

// Extend implements [idempotency.Claim]. While the transaction of a step locks the record, Extend sends nothing, because
// a renewal would wait for the lock. The lock itself keeps other attempts from claiming the key.
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

// restoreLease restores the record of a claim that is still running, with a new lease. The name of the calling operation
// is for error messages.
func (c *claim) restoreLease(ctx context.Context, name string, lease, ttl time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isSettled { // a settled claim would neither renew nor settle the restored record
		return idempotency.ErrClaimLost
	}
	c.reliedRows.relyOnJoinedSteps() // first, because the reply to the restore may be lost
	return c.restoreRecord(ctx, fromPoolOrSpare, name,
		append(c.restoreArgs(), lease.Microseconds(), ttl.Microseconds(), nil, nil, nil, nil, nil)) // no response
}

// Complete implements [idempotency.Claim].
func (c *claim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	stepNames, mayHaveRows := c.reliedRows.requiredSteps()
	args := append(responseArgs(resp, make([]any, 0, 6)...), stepNames) // with room for stepNames
	isChanged, err := c.changeRecordFor(ctx, fromPool, "complete", ttl, args...)
	switch {
	case isChanged || err != nil:
	case mayHaveRows:
		err = c.markRowsLost(ctx)
	default:
		err = c.restoreRecord(ctx, fromPool, "complete", responseArgs(resp, append(c.restoreArgs(), nil, ttl.Microseconds())...)) // no lease
	}
	if errors.Is(err, errCompleted) {
		// An earlier try, whose reply was lost, has completed the record. Complete succeeds only if the record survives a
		// failover, which confirmRecord makes sure of.
		err = c.store.confirmRecord(ctx, c.statements, c.operation, c.ownerToken, true)
	}
	return c.noteSettled(err)
}

// reliedRows tracks the steps that may have written rows. The answer of the handler relies on these rows, so Complete
// requires that the record still has the steps in stepNames. The handler may have rolled back the steps in joinedSteps, so
// Complete requires these steps only after the record was lost. The rows and the result of a step are committed together, so
// a server that has lost the result has lost the rows as well.
type reliedRows struct {
	mu          sync.Mutex
	stepNames   string   // required steps, separated by line feeds
	joinedSteps []string // steps in transactions of the handler
}

// addSteps adds steps to the required steps.
func (r *reliedRows) addSteps(steps ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.appendSteps(steps)
}

// appendSteps is addSteps for callers that hold mu.
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

// addJoinedStep notes that the result of step was stored in a transaction of the handler. Whether the handler has
// committed this transaction is unknown.
func (r *reliedRows) addJoinedStep(step string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.joinedSteps = append(r.joinedSteps, step)
}

// relyOnJoinedSteps adds the joined steps to the required steps. The claim calls relyOnJoinedSteps before it restores
// a lost record without its steps: rows of the joined steps may be lost with the record, so Complete must fail.
func (r *reliedRows) relyOnJoinedSteps() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.appendSteps(r.joinedSteps)
}

// requiredSteps returns the names of the steps that the record must have, as an argument of complete.sql. The result is
// nil if the record needs no step. mayHaveRows reports whether the handler may have written rows.
func (r *reliedRows) requiredSteps() (steps any, mayHaveRows bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stepNames == "" {
		return nil, r.joinedSteps != nil
	}
	return r.stepNames, true
}

// markRowsLost returns the error of Complete if the handler may have written rows and complete.sql has not changed the
// record:
//
//   - [sqlstore.ErrRowsLost]: the record is gone, or lacks a required step. A record that lacks a step gets the step
//     [idempotency.RecordLost], which tells later attempts that steps are lost.
//   - [idempotency.ErrClaimLost]: another attempt has claimed the key.
//   - nil: this claim has completed the record before.
func (c *claim) markRowsLost(ctx context.Context) error {
	mark := []any{c.operation, c.ownerToken, idempotency.RecordLost, []byte{}}
	isLost, err := c.changeRecord(ctx, fromPool, "checkpoint", mark)
	if err == nil && !isLost {
		err = c.store.confirmRecord(ctx, c.statements, c.operation, c.ownerToken, true)
	}
	if errors.Is(err, errUnconfirmed) {
		_, _, err = c.loadSteps(ctx) // without an error, no other attempt has the key: the record is gone, or was marked before
		isLost, err = err == nil, wrapError("complete", err)
	}
	if isLost {
		return sqlstore.ErrRowsLost
	}
	return err
}

// Release implements [idempotency.Claim]. With a TTL of zero, Release frees the key. The freed row remains for two
// leases, or for the TTL if the TTL is shorter, because a duplicate of the claim may still arrive (see free.sql).
func (c *claim) Release(ctx context.Context, end idempotency.Release) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var isChanged bool
	var err error
	switch {
	case end.Abandoned:
		isChanged, err = c.changeRecord(ctx, fromPool, "abandon", []any{c.operation, c.ownerToken, reasonOrNull(end.Reason)})
	case end.TTL == 0:
		isChanged, err = c.changeRecordFor(ctx, fromPool, "free", min(2*c.request.Lease, c.request.TTL))
	default:
		isChanged, err = c.changeRecordFor(ctx, fromPool, "release", end.TTL, reasonOrNull(end.Reason))
	}
	if !isChanged && err == nil {
		err = idempotency.ErrClaimLost
	}
	return c.noteSettled(err)
}

// reasonOrNull returns the reason as a parameter. No reason is null.
func reasonOrNull(reason idempotency.EndReason) pgtype.Text {
	return pgtype.Text{String: string(reason), Valid: reason != ""}
}

// noteSettled returns err, and marks the claim as settled unless err leaves the outcome open.
func (c *claim) noteSettled(err error) error {
	c.isSettled = c.isSettled || err == nil ||
		errors.Is(err, idempotency.ErrRestored) || errors.Is(err, idempotency.ErrClaimLost)
	return err
}

// errCompleted reports that this claim has completed its record before.
var errCompleted = fmt.Errorf("%w: completed", idempotency.ErrClaimLost)

// restoreArgs returns the arguments of restore.sql that precede the lease.
func (c *claim) restoreArgs() []any {
	return []any{c.operation, c.request.Fingerprint[:], c.keyNames[0], c.keyNames[1], c.keyNames[2], c.ownerToken,
		c.attemptNumber, c.createdAt}
}

// restoreRecord runs restore.sql, which inserts the record again if the server has lost it, and updates a record of this claim
// that has expired or that an earlier try has restored. args are the arguments of restore.sql, which describe the record as the
// call called name leaves it: "complete" leaves a response, "extend" and "checkpoint" leave a lease. A single statement
// writes this final state, because other attempts must never see an intermediate state, which could even expire before a
// second statement.
// restoreRecord always returns an error:
//
//   - [idempotency.ErrRestored]: the record was restored.
//   - errCompleted: this claim has completed the record before.
//   - [idempotency.ErrClaimLost]: another attempt has claimed the key.
//   - Any other error is an error of the server.
func (c *claim) restoreRecord(ctx context.Context, from connSource, name string, args []any) error {
	mayHoldClaim := true // the claim is granted, so only the end of ctx stops the tries
	var isRestored, mayRestore, isCompleted bool
	err := c.sendInsert(ctx, &mayHoldClaim, from, c.statements["restore"], args, func(r pgx.Row) error {
		err := r.Scan(&isRestored, &mayRestore, &isCompleted)
		if err == nil && mayRestore && !isRestored {
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

// changeRecordFor runs the statement name with duration and the arguments more. The duration is the lease for extend, and the
// TTL for all other statements. changeRecordFor reports whether the statement has found the record of the claim. release and
// free also find a record that the claim has released before, and leave the record as it is.
func (c *claim) changeRecordFor(
	ctx context.Context, from connSource, name string, duration time.Duration, more ...any,
) (isChanged bool, err error) {
	if err := c.store.checkTTL(duration); err != nil {
		return false, err
	}
	args := append(make([]any, 0, 9), c.operation, c.ownerToken, duration.Microseconds())
	return c.changeRecord(ctx, from, name, append(args, more...))
}

// changeRecord runs the statement name with all its arguments, and reports whether the statement has changed the record.
func (c *claim) changeRecord(ctx context.Context, from connSource, name string, args []any) (isChanged bool, err error) {
	mayHoldClaim := true // the claim is granted, so only the end of ctx stops the tries
	err = c.store.retryOnConn(ctx, &mayHoldClaim, from, func(conn *pgx.Conn) error {
		tag, err := conn.Exec(ctx, c.statements[name], args...)
		isChanged = tag.RowsAffected() == 1
		return err
	})
	return isChanged, wrapError(name, err)
}
