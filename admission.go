package idempotency

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// request is a request for an operation, over HTTP or by a call of [Runner.Do].
type request struct {
	runner      *Runner
	key         Key
	fingerprint Fingerprint
	ctx         context.Context // the caller's context, which ends if the caller leaves
	detachedCtx context.Context // ctx without its end; nil before the first use
	event       Event           // the report for the Observer
}

// detachedContext returns the context of work that goes on after the caller has left. The context is made at the first
// call, because many requests need none.
func (r *request) detachedContext() context.Context {
	if r.detachedCtx == nil {
		r.detachedCtx = context.WithoutCancel(r.ctx)
	}
	return r.detachedCtx
}

// storeContext returns a context for one call of the store, with a timeout of limit or StoreTimeout, whichever is less.
// The call outlives a client that hangs up, because an interrupted call could leave a claim behind. For an [Immediate]
// store, storeContext returns the context of the request, because a deadline would cost more than the call. Such a store
// does its work even if the context has ended.
func (r *request) storeContext(limit time.Duration) (context.Context, context.CancelFunc) {
	if r.runner.isImmediate {
		return r.ctx, func() {}
	}
	return context.WithTimeout(r.detachedContext(), min(limit, r.runner.opts.StoreTimeout))
}

// claimReply is the store's reply to a request for a claim.
type claimReply struct {
	record      Record    // the record of the new attempt or, without a claim, the record that holds the key
	claim       Claim     // nil: the key is held, or FailOpen lets the handler run without a claim
	requestedAt time.Time // when the store was asked; the lease began later
}

// admission leads a request to a claim, to a stored response, or to a refusal.
type admission struct {
	request
	claimReply
}

// admitRequest asks the store for a claim. The result is a replay, a refusal, or neither: the caller then runs the
// handler. A caller that sends the replay calls reportEvent.
//
// Without a claim, the handler runs only if FailOpen allows an unprotected run. FailOpen does not cover a request that
// has waited for another attempt or has found an abandoned one, because that attempt may still be running or may
// have had effects.
func (a *admission) admitRequest() (replay *Response, refusal error) {
	a.event.Began = a.runner.eventReporter.currentTime()
	err := a.acquireClaim()
	wasAbandoned := a.runner.resolver != nil && a.isHeldBecause(err, ErrOutcomeUnknown)
	if wasAbandoned {
		if refusal := a.reconcileAbandoned(); refusal != nil {
			return nil, refusal
		}
		err = a.acquireClaim()
	}
	switch {
	case err != nil && a.runner.failsOpen(err) && a.event.Waited == 0 && !wasAbandoned:
		// A claim in doubt is not released, because the handler runs now: the lease, if the store has granted it, keeps other
		// requests away for a while. With Refuse, later requests are then refused with outcome-unknown.
		a.claimReply = claimReply{}
		a.event.Outcome, a.event.Err = OutcomeUnprotected, err
		return nil, nil
	case err != nil:
		refusal = a.refuseRequest(outcomeOf(err), err)
		if inDoubt, ok := errors.AsType[*ClaimInDoubtError](err); ok && inDoubt.Claim != nil {
			s := settlement{admission: *a}
			s.claim = inDoubt.Claim
			s.releaseInBackground()
		}
		return nil, refusal
	case a.claim != nil && a.runner.leaseSettings.mustStopActing(a.requestedAt):
		return nil, a.releaseLateClaim()
	case a.claim != nil:
		return nil, nil
	}
	if err := judgeRecord(&a.record, a.fingerprint); err != nil {
		return nil, a.refuseByRecord(err)
	}
	return a.prepareReplay(), nil
}

// releaseLateClaim releases a claim whose lease may have lapsed, because the store's reply took too long. The claim is
// released even with [Refuse], because the handler has never run.
func (a *admission) releaseLateClaim() (refusal error) {
	s := settlement{admission: *a}
	err := s.freeKey()
	a.event = s.event
	return a.refuseRequest(OutcomeClaimLost, cmp.Or(err, ErrClaimLost))
}

// prepareReplay returns the stored response and makes the event a replay.
func (a *admission) prepareReplay() *Response {
	replay := a.record.Response
	a.event.Outcome, a.event.Status, a.event.Note = OutcomeReplayed, replay.Status, replay.Note
	a.event.FromCache = a.record.FromCache
	a.event.setStored(replay)
	return replay
}

// reportEvent completes the event and reports the event to Observer and Logger.
func (a *admission) reportEvent(ctx context.Context) {
	e := &a.event
	e.Key, e.Attempt, e.Total = a.key, a.record.Attempt, a.runner.eventReporter.elapsedSince(e.Began)
	a.runner.eventReporter.deliverEvent(ctx, e)
}

// refuseRequest reports outcome because of err, and returns the refusal for err.
func (a *admission) refuseRequest(outcome Outcome, err error) (refusal error) {
	a.event.Outcome, a.event.Err = outcome, err
	a.reportEvent(a.ctx)
	return refusalFor(err)
}

// refusalOutcomes has the outcome for each error of judgeRecord.
var refusalOutcomes = map[error]Outcome{
	ErrKeyReused:      OutcomeKeyReused,
	ErrNotReplayable:  OutcomeNotReplayable,
	ErrInProgress:     OutcomeInProgress,
	ErrOutcomeUnknown: OutcomeUnknown,
}

// refuseByRecord refuses the request because of the record that holds the key. The parameter err is an error of
// judgeRecord.
func (a *admission) refuseByRecord(err error) (refusal error) {
	shown := refusalFor(err)
	a.event.Outcome, a.event.Err = refusalOutcomes[err], err
	switch {
	case err == ErrKeyReused:
		a.event.Fingerprints = &[2]Fingerprint{a.record.Fingerprint, a.fingerprint}
	case err == ErrNotReplayable:
		a.event.Status, shown.OriginalStatus = a.record.Response.Status, a.record.Response.Status
		a.event.setStored(a.record.Response)
	case (err == ErrInProgress || err == ErrOutcomeUnknown) && a.event.Waited > 0 && a.ctx.Err() != nil:
		a.event.Outcome, a.event.Err = OutcomeClientLeft, context.Cause(a.ctx)
	case err == ErrInProgress:
		a.event.LeaseLeft, shown.RetryAfter = a.record.LeaseLeft, a.runner.retryDelay(a.record.LeaseLeft)
	}
	a.reportEvent(a.ctx)
	return shown
}

// retryDelay returns when a client should ask again about a running attempt with the given rest of the lease.
func (r *Runner) retryDelay(leaseLeft time.Duration) time.Duration {
	if leaseLeft < r.opts.Lease/2 {
		return leaseLeft // the owner missed a renewal, and may have crashed
	}
	return time.Second
}

// judgeRecord compares the record that holds a key with a request of fingerprint fp. If judgeRecord returns nil, the
// response of the record is the answer to the request. A reused key outranks all other errors, because the state of the
// record does not concern another request.
func judgeRecord(record *Record, fp Fingerprint) error {
	switch {
	case record.Fingerprint != fp:
		return ErrKeyReused
	case record.Response != nil && record.Response.Omitted:
		return ErrNotReplayable
	case record.Response != nil:
		return nil
	case record.LeaseLeft > 0:
		return ErrInProgress
	default:
		return ErrOutcomeUnknown
	}
}

// failsOpen reports whether FailOpen lets the handler run without a claim after the store failed with err. FailOpen
// covers a store that is down. Requests are refused
//
//   - if the store has no room for the record or the user, or no free connection: a client could cause such an error
//     on purpose, to disable the protection;
//   - if the record is unreadable, because the operation may be completed;
//   - if the store cannot work on its server at all ([errors.ErrUnsupported]).
func (r *Runner) failsOpen(err error) bool {
	isDown := !errors.Is(err, ErrRecordInvalid) && !errors.Is(err, ErrUserQuota) && !errors.Is(err, ErrStoreFull) &&
		!errors.Is(err, ErrStoreBusy) && !errors.Is(err, errors.ErrUnsupported)
	return r.opts.FailOpen && isDown
}

// outcomeOf returns the outcome of a request that ends with err, without a claim and without a replay.
func outcomeOf(err error) Outcome {
	switch {
	case errors.Is(err, ErrUserQuota):
		return OutcomeQuotaExceeded
	case errors.Is(err, ErrReplayRefused):
		return OutcomeReplayRefused
	case errors.Is(err, ErrClaimLost):
		return OutcomeClaimLost
	default:
		return OutcomeUnavailable
	}
}

// acquireClaim asks the store for a claim. While another attempt is running, acquireClaim waits as long as
// Options.Wait allows.
func (a *admission) acquireClaim() error {
	err := a.requestClaim()
	a.event.Claim = cmp.Or(a.event.Claim, a.runner.eventReporter.elapsedSince(a.event.Began))
	if a.isHeldBecause(err, ErrInProgress) {
		err = a.awaitTurn(err)
	}
	return err
}

// requestClaim calls Begin once and keeps the reply.
func (a *admission) requestClaim() (err error) {
	r := a.runner
	ctx, cancel := a.storeContext(r.opts.StoreTimeout)
	defer cancel()
	claimRequest := ClaimRequest{
		Fingerprint: a.fingerprint, Lease: r.opts.Lease, TTL: r.opts.TTL, TakeOver: r.opts.Abandoned == ReExecute,
		Remaining: r.readsRemaining,
	}
	a.requestedAt = time.Now()
	a.record, a.claim, err = r.store.Begin(ctx, a.key, claimRequest)
	return err
}

// isHeldBecause reports whether the store has replied that the key is held, and judgeRecord gives reason as the error.
func (a *admission) isHeldBecause(err, reason error) bool {
	return err == nil && a.claim == nil && judgeRecord(&a.record, a.fingerprint) == reason
}

// awaitTurn waits for the end of the running attempt, as long as the request may wait, and asks for a claim afterwards.
// Only one of the waiting requests with the same key polls the store. The parameter err is the result of the last
// requestClaim.
func (a *admission) awaitTurn(err error) error {
	a.waitWithin(func(ctx context.Context) {
		for a.isHeldBecause(err, ErrInProgress) && ctx.Err() == nil {
			found, polled := a.runner.waitingRequests.pollGroup.Await(ctx, a.key, func() (found *Record, changed bool) {
				err = a.requestClaim()
				if err == nil && a.claim == nil { // a claim is for this request alone, but a record serves all waiters
					record := a.record
					found = &record
				}
				return found, !a.isHeldBecause(err, ErrInProgress)
			})
			switch {
			case polled || found == nil: // this request has polled itself, or the poll has ended without a record
			case found.Fingerprint == a.fingerprint:
				a.record = *found
			default: // a store may hide the fingerprint from a request with other content, so ask for this request
				err = a.requestClaim()
			}
		}
	})
	return err
}

// waitWithin calls wait and returns true. The context of wait ends with the request, or when the request has waited for
// Options.Wait in total. If the request may not wait, or the user has too many waiting requests, waitWithin returns
// false at once.
func (a *admission) waitWithin(wait func(context.Context)) bool {
	remaining := a.runner.opts.Wait - a.event.Waited
	shares := &a.runner.waitingRequests.userShares
	if remaining <= 0 || !shares.Take(a.key.User, 1) {
		return false
	}
	defer shares.GiveBack(a.key.User, 1)
	began := time.Now()
	defer func() { a.event.Waited += time.Since(began) }()
	ctx, cancel := context.WithTimeout(a.ctx, remaining)
	defer cancel()
	wait(ctx)
	return true
}

// wakeWaiters makes a request of this process that waits for key ask the store at once.
func (r *Runner) wakeWaiters(key Key) {
	if r.opts.Wait > 0 {
		r.waitingRequests.pollGroup.Wake(key)
	}
}

// reconcileAbandoned asks Options.Reconcile about the abandoned operation in the record, and resolves the operation in
// the store by the answer, as an operator does. The request holds no claim meanwhile. If reconcileAbandoned returns
// nil, the caller asks for a claim again: the operation is resolved, the record has changed in the meantime, or the
// request has waited for a concurrent reconciliation.
func (a *admission) reconcileAbandoned() (refusal error) {
	reconciliations := &a.runner.reconciliations
	ended, isFirst := reconciliations.beginReconciliation(a.key)
	if !isFirst {
		return a.awaitReconciliation(ended)
	}
	defer reconciliations.endReconciliation(a.key)
	entry, err := a.inspectEntry(a.runner.resolver)
	switch {
	case errors.Is(err, ErrNoRecord):
		return nil
	case err != nil:
		return a.refuseRequest(outcomeOf(err), err)
	case entry.State != StateAbandoned || entry.Attempt != a.record.Attempt || !entry.Created.Equal(a.record.Created):
		return nil
	}
	resolution, err := a.callReconcile(entry)
	if err != nil {
		return a.refuseUnknown(err)
	}
	switch err := a.resolveEntry(entry, resolution); {
	case errors.Is(err, ErrEntryChanged), errors.Is(err, ErrInProgress), errors.Is(err, ErrNoRecord):
		return nil
	case err != nil:
		return a.refuseRequest(outcomeOf(err), err)
	}
	a.reportResolution(entry, resolution)
	return nil
}

// awaitReconciliation waits until a concurrent reconciliation of the same operation has ended, as long as the request
// may wait. The caller then asks for a claim again. A request that may not wait is refused.
func (a *admission) awaitReconciliation(ended <-chan struct{}) (refusal error) {
	hasWaited := a.waitWithin(func(ctx context.Context) {
		select {
		case <-ended:
		case <-ctx.Done():
		}
	})
	if !hasWaited {
		return a.refuseByRecord(ErrOutcomeUnknown)
	}
	return nil
}

// inspectEntry reads the operator's view of the operation from the store.
func (a *admission) inspectEntry(inspector Inspector) (Entry, error) {
	ctx, cancel := a.storeContext(a.runner.opts.StoreTimeout)
	defer cancel()
	return inspector.Inspect(ctx, a.key)
}

// callReconcile calls Options.Reconcile and makes a resolution of the answer. Reconcile has half a lease, because the client
// also waits for the resolution in the store and perhaps for the next attempt. A later answer counts as an error.
func (a *admission) callReconcile(entry Entry) (Resolution, error) {
	opts := &a.runner.opts
	ctx, cancel := context.WithTimeout(a.detachedContext(), opts.Lease/2)
	defer cancel()
	operation := Operation{Key: a.key, ID: a.key.OperationID(), Attempt: entry.Attempt, Fingerprint: a.fingerprint}
	response, err := opts.Reconcile(ctx, operation)
	resolution := Resolution{Response: response, At: time.Now(), TTL: opts.TTL}
	err = cmp.Or(err, ctx.Err())
	if err == nil {
		err = resolution.Validate()
	}
	return resolution, err
}

// resolveEntry stores the resolution, unless entry is no longer current.
func (a *admission) resolveEntry(entry Entry, resolution Resolution) error {
	ctx, cancel := a.storeContext(a.runner.opts.StoreTimeout)
	defer cancel()
	return a.runner.resolver.Resolve(ctx, entry, resolution)
}

// refuseUnknown refuses the request because Reconcile returned err instead of an answer. The Observer gets err, and the
// client learns only that the outcome is unknown.
func (a *admission) refuseUnknown(err error) *Error {
	refusal := refusalFor(ErrOutcomeUnknown)
	refusal.Err = fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	a.event.Outcome, a.event.Err = OutcomeUnknown, refusal.Err
	a.reportEvent(a.ctx)
	return refusal
}

// reportResolution reports that Reconcile has resolved the operation. The outcome of the request itself is a second
// event.
func (a *admission) reportResolution(entry Entry, resolution Resolution) {
	reported, resolved := *a, resolution.Resolved(entry)
	reported.event.Outcome, reported.event.Resolved = OutcomeNotHappened, &resolved
	if response := resolution.Response; response != nil {
		reported.event.Outcome, reported.event.Status, reported.event.Note = OutcomeHappened, response.Status, response.Note
		reported.event.setStored(response)
	}
	reported.reportEvent(a.ctx)
}

// reconciliations are the running calls of Reconcile. At most one of them runs for each operation.
type reconciliations struct {
	mu         sync.Mutex
	endedByKey map[Key]chan struct{} // each channel is closed when the reconciliation has ended
}

// beginReconciliation registers a reconciliation of key and returns isFirst = true. If a reconciliation of key is
// running, isFirst is false, and the channel ended is closed at the end of the running reconciliation.
func (r *reconciliations) beginReconciliation(key Key) (ended <-chan struct{}, isFirst bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ended, ok := r.endedByKey[key]; ok {
		return ended, false
	}
	if r.endedByKey == nil {
		r.endedByKey = make(map[Key]chan struct{})
	}
	r.endedByKey[key] = make(chan struct{})
	return nil, true
}

// endReconciliation removes the reconciliation of key and wakes the requests that wait for its end.
func (r *reconciliations) endReconciliation(key Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.endedByKey[key])
	delete(r.endedByKey, key)
}
