package idempotency

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// request is a request for an operation, over HTTP or as a call of [Runner.Do]: what admission and settlement know of it.
type request struct {
	runner      *Runner
	key         Key
	fingerprint Fingerprint
	ctx         context.Context // of the caller, which may leave
	detachedCtx context.Context // ctx without its end; nil: not needed yet
	event       Event           // for the Observer
}

// detachedContext returns the context of work that goes on even if the context of the request has ended.
func (r *request) detachedContext() context.Context {
	if r.detachedCtx == nil {
		r.detachedCtx = context.WithoutCancel(r.ctx)
	}
	return r.detachedCtx
}

// storeContext returns the context of a call of the store that begins now and takes no longer than limit. The call outlives a
// client that hangs up, because a lost call would leave a claim behind. An [Immediate] store gets the context of the request, because
// a deadline would cost more than the call.
func (r *request) storeContext(limit time.Duration) (context.Context, context.CancelFunc) {
	if r.runner.immediate {
		return r.ctx, func() {}
	}
	return context.WithTimeout(r.detachedContext(), min(limit, r.runner.opts.StoreTimeout))
}

// grant is the reply of the store to a request for a claim.
type grant struct {
	record      Record    // of the attempt that was granted, or else the record that holds the key
	claim       Claim     // nil: the key is held, or the handler runs without a claim, as FailOpen allows
	requestedAt time.Time // the lease did not begin before
}

// admission takes a request to a claim, to the stored response, or to a refusal.
type admission struct {
	request
	grant
}

// admit asks the store for a claim. The request may be executed if there is neither a replay nor a refusal. Then the claim is nil
// if FailOpen lets the handler run without one. Whoever sends the replay calls report.
func (a *admission) admit() (replay *Response, refusal error) {
	a.event.Began = a.runner.events.now()
	err := a.acquireClaim()
	isReconciled := a.runner.resolver != nil && a.isHeld(err, ErrOutcomeUnknown)
	if isReconciled {
		if refusal := a.reconcileAbandoned(); refusal != nil {
			return nil, refusal
		}
		err = a.acquireClaim()
	}
	switch {
	case err != nil && a.runner.failsOpen(err) && a.event.Waited == 0 && !isReconciled:
		a.grant = grant{} // a claim whose reply was lost is left to lapse
		a.event.Outcome, a.event.Err = OutcomeUnprotected, err
		return nil, nil
	case err != nil:
		refusal = a.refuse(outcomeOf(err), err)
		if inDoubt, ok := errors.AsType[*ClaimInDoubtError](err); ok {
			s := settlement{admission: *a}
			s.claim = inDoubt.Claim
			s.releaseInBackground()
		}
		return nil, refusal
	case a.claim != nil && a.runner.leases.hasLapsed(a.requestedAt):
		return nil, a.releaseLateClaim()
	case a.claim != nil:
		return nil, nil
	}
	if err := judgeRecord(&a.record, a.fingerprint); err != nil {
		return nil, a.refuseHeld(err)
	}
	return a.foundReplay(), nil
}

// releaseLateClaim releases a claim whose reply took so long that the lease may have lapsed. The handler has not run, so
// Options.Abandoned makes no difference.
func (a *admission) releaseLateClaim() (refusal error) {
	s := settlement{admission: *a}
	err := s.free()
	a.event = s.event
	return a.refuse(OutcomeClaimLost, cmp.Or(err, ErrClaimLost))
}

// foundReplay returns the stored response, and sets the event to its replay.
func (a *admission) foundReplay() *Response {
	replay := a.record.Response
	a.event.Outcome, a.event.Status, a.event.Note = OutcomeReplayed, replay.Status, replay.Note
	a.event.FromCache = a.record.FromCache
	a.event.keeps(replay)
	return replay
}

// report completes the event and tells the Observer.
func (a *admission) report(ctx context.Context) {
	e := &a.event
	e.Key, e.Attempt, e.Total = a.key, a.record.Attempt, a.runner.events.since(e.Began)
	a.runner.events.report(ctx, e)
}

// refuse reports that the request is refused because of err, and returns the refusal.
func (a *admission) refuse(o Outcome, err error) (refusal error) {
	a.event.Outcome, a.event.Err = o, err
	a.report(a.ctx)
	return refusalFor(err)
}

var refusalOutcomes = map[error]Outcome{
	ErrKeyReused:      OutcomeKeyReused,
	ErrNotReplayable:  OutcomeNotReplayable,
	ErrInProgress:     OutcomeInProgress,
	ErrOutcomeUnknown: OutcomeUnknown,
}

// refuseHeld refuses the request because of the record that holds the key. The error is one of judgeRecord.
func (a *admission) refuseHeld(err error) (refusal error) {
	refused := refusalFor(err)
	a.event.Outcome, a.event.Err = refusalOutcomes[err], err
	switch {
	case err == ErrKeyReused:
		a.event.Fingerprints = &[2]Fingerprint{a.record.Fingerprint, a.fingerprint}
	case err == ErrNotReplayable:
		a.event.Status, refused.OriginalStatus = a.record.Response.Status, a.record.Response.Status
		a.event.keeps(a.record.Response)
	case (err == ErrInProgress || err == ErrOutcomeUnknown) && a.event.Waited > 0 && a.ctx.Err() != nil:
		a.event.Outcome, a.event.Err = OutcomeClientLeft, context.Cause(a.ctx)
	case err == ErrInProgress:
		a.event.LeaseLeft = a.record.LeaseLeft
		if a.record.LeaseLeft < a.runner.opts.Lease/2 {
			refused.RetryAfter = a.record.LeaseLeft // the owner has missed a renewal, and may be dead
		}
	}
	a.report(a.ctx)
	return refused
}

// judgeRecord says what a record that holds the key means for a request with fingerprint fp. Nil means that the response of the
// record is the answer. Reuse of the key outranks everything else.
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

// failsOpen reports whether the handler runs without a claim although the store has failed with err. The handler does not run if the
// store works but has no room or no free connection, because anybody may be able to bring that about, if the record cannot be read,
// or if the store can never work ([errors.ErrUnsupported]).
func (r *Runner) failsOpen(err error) bool {
	isDown := !errors.Is(err, ErrRecordInvalid) && !errors.Is(err, ErrUserQuota) && !errors.Is(err, ErrStoreFull) &&
		!errors.Is(err, ErrStoreBusy) && !errors.Is(err, errors.ErrUnsupported)
	return r.opts.FailOpen && isDown
}

// outcomeOf returns the outcome of a request that gets neither a claim nor a replay because of err.
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

// acquireClaim asks the store for a claim. If another attempt is running, acquireClaim waits for the end of that attempt.
func (a *admission) acquireClaim() error {
	err := a.requestClaim()
	a.event.Claim = cmp.Or(a.event.Claim, a.runner.events.since(a.event.Began))
	if a.isHeld(err, ErrInProgress) {
		err = a.awaitTurn(err)
	}
	return err
}

// requestClaim asks the store once.
func (a *admission) requestClaim() (err error) {
	r := a.runner
	a.claim = nil
	ctx, cancel := a.storeContext(r.opts.StoreTimeout)
	defer cancel()
	asked := ClaimRequest{
		Fingerprint: a.fingerprint, Lease: r.opts.Lease, TTL: r.opts.TTL, TakeOver: r.opts.Abandoned == ReExecute,
	}
	a.requestedAt = time.Now()
	a.record, a.claim, err = r.store.Begin(ctx, a.key, asked)
	return err
}

// isHeld reports whether the store has replied without an error, and the record that holds the key means reason.
func (a *admission) isHeld(err, reason error) bool {
	return err == nil && a.claim == nil && judgeRecord(&a.record, a.fingerprint) == reason
}

// awaitTurn waits, as long as the request may, for the end of the attempt that is running, and asks for a claim then. One waiter of
// each key asks the store for all.
func (a *admission) awaitTurn(err error) error {
	a.waitWithin(func(ctx context.Context) {
		for a.isHeld(err, ErrInProgress) && ctx.Err() == nil {
			found, polled := a.runner.waiters.polls.Await(ctx, a.key, func() (found *Record, changed bool) {
				err = a.requestClaim()
				if err == nil && a.claim == nil { // only this request can use a claim
					record := a.record
					found = &record
				}
				return found, !a.isHeld(err, ErrInProgress)
			})
			switch {
			case polled || found == nil:
			case found.Fingerprint == a.fingerprint:
				a.record = *found
			default: // the polling waiter has another request, and the record tells this one nothing
				err = a.requestClaim()
			}
		}
	})
	return err
}

// waitWithin calls wait with a context that ends with the request, or when the request has waited for Options.Wait. It returns
// false, and does not call wait, if the request may not wait.
func (a *admission) waitWithin(wait func(context.Context)) bool {
	left := a.runner.opts.Wait - a.event.Waited
	shares := &a.runner.waiters.shares
	if left <= 0 || !shares.Take(a.key.User, 1) {
		return false
	}
	defer shares.GiveBack(a.key.User, 1)
	began := time.Now()
	defer func() { a.event.Waited += time.Since(began) }()
	ctx, cancel := context.WithTimeout(a.ctx, left)
	defer cancel()
	wait(ctx)
	return true
}

// wakeWaiters lets a request of this process that waits for key ask the store at once.
func (r *Runner) wakeWaiters(key Key) {
	if r.opts.Wait > 0 {
		r.waiters.polls.Wake(key)
	}
}

// reconcileAbandoned asks Options.Reconcile what became of the abandoned operation in the record, and has the store end the
// operation accordingly, as an operator does. The request holds no claim meanwhile. Without a refusal, the request asks for a claim
// again, because the operation was ended or its record has changed.
func (a *admission) reconcileAbandoned() (refusal error) {
	questions := &a.runner.questions
	answered, isFirst := questions.begin(a.key)
	if !isFirst {
		return a.awaitReconciliation(answered)
	}
	defer questions.end(a.key)
	entry, err := a.inspectEntry()
	switch {
	case errors.Is(err, ErrNoRecord):
		return nil
	case err != nil:
		return a.refuse(outcomeOf(err), err)
	case entry.State != StateAbandoned || entry.Attempt != a.record.Attempt || !entry.Created.Equal(a.record.Created):
		return nil
	}
	resolution, err := a.askReconcile(entry)
	if err != nil {
		return a.refuseUnknown(err)
	}
	switch err := a.resolveEntry(entry, resolution); {
	case errors.Is(err, ErrEntryChanged), errors.Is(err, ErrInProgress), errors.Is(err, ErrNoRecord):
		return nil
	case err != nil:
		return a.refuse(outcomeOf(err), err)
	}
	a.reportResolution(entry, resolution)
	return nil
}

// awaitReconciliation waits, as long as the request may, until another request of this process has heard what became of the
// operation. A request that may not wait is refused.
func (a *admission) awaitReconciliation(answered <-chan struct{}) (refusal error) {
	hasWaited := a.waitWithin(func(ctx context.Context) {
		select {
		case <-answered:
		case <-ctx.Done():
		}
	})
	if !hasWaited {
		return a.refuseHeld(ErrOutcomeUnknown)
	}
	return nil
}

// inspectEntry returns the entry of the operation.
func (a *admission) inspectEntry() (Entry, error) {
	ctx, cancel := a.storeContext(a.runner.opts.StoreTimeout)
	defer cancel()
	return a.runner.resolver.Inspect(ctx, a.key)
}

// askReconcile calls Options.Reconcile, for half a lease at most, and returns the resolution that its answer means.
func (a *admission) askReconcile(entry Entry) (Resolution, error) {
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

// resolveEntry has the store end the operation of entry.
func (a *admission) resolveEntry(entry Entry, resolution Resolution) error {
	ctx, cancel := a.storeContext(a.runner.opts.StoreTimeout)
	defer cancel()
	return a.runner.resolver.Resolve(ctx, entry, resolution)
}

// refuseUnknown refuses the request because Reconcile has not found out what became of the operation. The client learns no more
// than that, whatever err is.
func (a *admission) refuseUnknown(err error) *Error {
	refusal := refusalFor(ErrOutcomeUnknown)
	refusal.Err = fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	a.event.Outcome, a.event.Err = OutcomeUnknown, refusal.Err
	a.report(a.ctx)
	return refusal
}

// reportResolution reports that Reconcile has ended the operation. What becomes of the request is another event.
func (a *admission) reportResolution(entry Entry, resolution Resolution) {
	of, resolved := *a, resolution.Resolved(entry)
	of.event.Outcome, of.event.Resolved = OutcomeNotHappened, &resolved
	if response := resolution.Response; response != nil {
		of.event.Outcome, of.event.Status, of.event.Note = OutcomeHappened, response.Status, response.Note
		of.event.keeps(response)
	}
	of.report(a.ctx)
}

// questions are those that Reconcile is asked at the moment: one for each operation at a time.
type questions struct {
	mu   sync.Mutex
	open map[Key]chan struct{} // closed at the end of the question
}

// begin begins the question about an operation, unless the question is open already. Then isFirst is false, and answered is closed
// when the open question ends.
func (q *questions) begin(key Key) (answered <-chan struct{}, isFirst bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if open, ok := q.open[key]; ok {
		return open, false
	}
	if q.open == nil {
		q.open = make(map[Key]chan struct{})
	}
	q.open[key] = make(chan struct{})
	return nil, true
}

// end ends a question.
func (q *questions) end(key Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	close(q.open[key])
	delete(q.open, key)
}
