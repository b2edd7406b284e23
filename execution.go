package idempotency

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"time"
)

// execution is one attempt at an operation: from the question to the store to the end of the claim.
type execution struct {
	runner      *Runner
	key         Key
	request     context.Context
	lasting     context.Context // the same without an end; nil: not needed yet
	begun       beginResult
	unprotected error     // why there is no claim
	asked       time.Time // zero if nobody is to be told of the duration
	claimed     time.Duration
	waited      time.Duration
	fromCache   bool
	caller      caller // nil in a Runner

	operation operationContext
	ctx       context.Context // of work
	cancel    context.CancelCauseFunc
	renewer   renewer
	note      *string   // as it is stored; nil: not settled yet
	answered  *Response // what the handler has answered, until it is known what that means
	event     Event
	settled   bool  // the claim has ended, or is left to lapse
	refusal   error // what is to be answered instead of the response; set with settled
}

// caller is the HTTP request that an execution is to answer.
type caller interface {
	// mayWait is asked before the request waits for another attempt. If it may, waited is called afterwards.
	mayWait() bool
	waited()

	// mayReplay returns the refusal of a request that may not be answered with a response from the store.
	mayReplay(*Response) error
}

// work carries out an operation. It says what its response means; the error is a cause for the event.
type work func(context.Context) (Response, Verdict, error)

// execute runs work for the owner of a claim, and settles the claim whatever work does. The error is a refusal, to be
// answered instead of the response.
func (r *Runner) execute(ctx context.Context, x *execution, work work) (Response, error) {
	if x.begun.claim == nil {
		return x.runUnprotected(ctx, work)
	}
	ctx, x.cancel = context.WithCancelCause(x.enter(ctx))
	x.ctx = x.begun.claim.Context(ctx)
	defer x.settle() // also when work panics or calls runtime.Goexit, neither of which it stops
	if x.overdue() {
		return Response{}, x.giveUp()
	}
	if x.leased() || r.renewals.unleased {
		x.renewer.claim, x.renewer.ctx, x.renewer.cancel = x.begun.claim, x.detached(), x.cancel
		r.renewals.add(&x.renewer, x.begun.since)
	}
	return x.run(work)
}

// enter returns ctx with the operation. Without a claim, its attempt is 0.
func (x *execution) enter(ctx context.Context) context.Context {
	x.operation.key, x.operation.attempt, x.operation.store = x.key, x.begun.record.Attempt, x.runner.store
	return context.WithValue(ctx, operationKey{}, &x.operation)
}

// detached returns the context of what must be done even if that of the request has ended.
func (x *execution) detached() context.Context {
	if x.lasting == nil {
		x.lasting = context.WithoutCancel(x.request)
	}
	return x.lasting
}

// step returns the context of a step of the store that begins now, and takes no longer than most. A client that hangs up
// must not leave a claim behind.
func (x *execution) step(most time.Duration) (context.Context, context.CancelFunc) {
	if x.runner.immediate {
		return x.request, func() {}
	}
	return context.WithTimeout(x.detached(), min(most, x.runner.opts.StoreTimeout))
}

// leased reports whether the claim has a lease; else its effects are bound to Complete.
func (x *execution) leased() bool { return x.begun.claim != nil && !x.begun.record.NoLease }

// runUnprotected runs work without a claim, as FailOpen allows.
func (x *execution) runUnprotected(ctx context.Context, work work) (Response, error) {
	x.event = Event{Outcome: OutcomeUnprotected, Err: x.unprotected}
	ctx = x.enter(ctx)
	defer x.report(ctx)
	resp, _, _ := x.timed(ctx, work)
	x.event.Status = resp.Status
	return resp, nil
}

// overdue reports whether the store took longer to answer than the lease lasts.
func (x *execution) overdue() bool {
	return x.leased() && time.Since(x.begun.since) >= x.runner.renewals.span()
}

// giveUp ends a claim that may have lapsed before work has begun.
func (x *execution) giveUp() error {
	err := x.release(x.untouched(), ErrClaimLost) // with Refuse too, it may be tried again
	refusal := refusalFor(cmp.Or(err, ErrClaimLost))
	x.event.Outcome, x.event.Err = OutcomeClaimLost, refusal
	return refusal
}

// timed runs work, and notes how long it ran, also if it panics.
func (x *execution) timed(ctx context.Context, work work) (Response, Verdict, error) {
	began := x.runner.events.now()
	defer func() { x.event.Work = x.runner.events.since(began) }()
	return work(ctx)
}

func (x *execution) run(work work) (Response, error) {
	resp, verdict, cause := x.timed(x.ctx, work)
	x.answered = nil
	x.event.Status, x.event.Err = resp.Status, cmp.Or(x.event.Err, cause)
	switch {
	case x.settled: // by an answer that was too large to be kept
		return resp, x.refusal
	case verdict == Keep:
		return resp, x.complete(resp)
	case verdict == Release:
		x.event.untouched = true
		return resp, x.release(x.untouched(), cause)
	case verdict == failed:
		return resp, x.release(x.runner.opts.TTL, cause)
	default:
		return resp, x.abandon(cause)
	}
}

// complete stores the response. It returns nil if the response may be sent. That includes that the store failed: the
// effects exist, so the answer is true. It goes on to be stored in the background then.
func (x *execution) complete(resp Response) (refusal error) {
	refusal = x.tryComplete(resp)
	if !x.settled {
		x.completeLater(resp)
	}
	return refusal
}

// tryComplete is complete, but leaves the claim as it is if the store fails.
func (x *execution) tryComplete(resp Response) (refusal error) {
	began := x.runner.events.now()
	err := x.persist(resp, x.runner.opts.StoreTimeout)
	x.event.Completion = x.runner.events.since(began)
	if !x.leased() && (!settles(err) || errors.Is(err, ErrRecordInvalid)) {
		// The effects are bound to the record, of which nobody knows.
		err = fmt.Errorf("%w: %w", ErrRolledBack, err)
	}
	x.settled = settles(err)
	x.judgeCompletion(err)
	if stored(err) {
		x.event.keeps(&resp)
	}
	if x.settled {
		x.renewer.stop()
	}
	if x.event.Outcome == OutcomeClaimLost || x.event.Outcome == OutcomeRolledBack {
		x.refusal = refusalFor(err)
	}
	return x.refusal
}

// settles reports whether Complete has said what became of the record.
func settles(err error) bool {
	return err == nil || errors.Is(err, ErrRestored) || errors.Is(err, ErrClaimLost) ||
		errors.Is(err, ErrRolledBack) || errors.Is(err, ErrRecordInvalid)
}

// stored reports whether Complete has stored the response.
func stored(err error) bool { return err == nil || errors.Is(err, ErrRestored) }

// judgeCompletion sets the event to what Complete has said.
func (x *execution) judgeCompletion(err error) {
	if err == nil && x.renewer.restored.Load() {
		err = ErrRestored
	}
	x.event.Err = err
	switch {
	case err == nil:
		x.event.Outcome = OutcomeExecuted
	case errors.Is(err, ErrRestored):
		x.event.Outcome = OutcomeRestored
	case errors.Is(err, ErrClaimLost):
		x.event.Outcome = OutcomeClaimLost
	case errors.Is(err, ErrRolledBack):
		x.event.Outcome = OutcomeRolledBack
	default:
		x.event.Outcome = OutcomeUnrecorded
	}
}

// The pauses between two questions to a store that does not work.
const (
	firstRetry = 20 * time.Millisecond
	lastRetry  = time.Second
)

// persist calls Complete, which may be repeated, until the record is settled or the time is up.
func (x *execution) persist(resp Response, within time.Duration) error {
	until := time.Now().Add(within)
	resp = x.noted(resp)
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		err := x.completeOnce(resp, time.Until(until))
		if settles(err) || time.Until(until) < pause || !sleep(x.detached(), pause, nil) {
			return err
		}
	}
}

// completeOnce asks the store once to store the response.
func (x *execution) completeOnce(resp Response, most time.Duration) error {
	ctx, cancel := x.step(most)
	defer cancel()
	return x.begun.claim.Complete(ctx, resp, x.runner.opts.TTL)
}

// noted returns resp as it is stored. What is attached after that does not count: Complete is repeated with the same
// arguments, as [Claim] demands, and the event has the note that is stored.
func (x *execution) noted(resp Response) Response {
	if x.note == nil && !resp.Omitted {
		x.note = cmp.Or(x.operation.note.Load(), &noNote)
	}
	return resp.withNote(x.note)
}

// noNote stands for none, once that is settled.
var noNote string

// persistLater is persist until the response would have expired. A store may work and never take the response, which is too
// large for it, say. It renews the lease then, and refuses the response: it is asked once a lease to store a tombstone. If it
// does, refusal says why the response was given up.
func (x *execution) persistLater(resp Response, lease *renewer) (refusal, err error) {
	opts := &x.runner.opts
	for until := time.Now().Add(opts.TTL); ; {
		err := x.persist(resp, min(time.Until(until), opts.Lease+lastRetry))
		if settles(err) || x.request.Err() != nil || time.Until(until) < lastRetry {
			return nil, err
		}
		timeout, ok := errors.AsType[net.Error](err)
		silent := ok && timeout.Timeout() || errors.Is(err, ErrStoreBusy) // it may be about to work again
		if silent || !lease.renewedSince(time.Now().Add(-opts.Lease/2)) {
			continue
		}
		if lost := x.completeOnce(resp.tombstone(), opts.StoreTimeout); settles(lost) {
			return err, lost
		}
	}
}

// completeLater goes on to store the response in the background, and to renew the lease meanwhile. It gives up when the
// response would have expired, or at the end of a Shutdown.
func (x *execution) completeLater(resp Response) {
	x.settled = true
	room := x.runner.backlog.forAnswer(x.key.User, len(resp.Header)+len(resp.Trailer)+len(resp.Body))
	if room == nil {
		x.renewer.stop()
		return
	}
	resp = resp.Clone() // its body is in a buffer that serves the next request
	// The request goes on, and reports what is known now.
	later := x.inBackground()
	later.asked, later.claimed, later.event = x.asked, x.claimed, x.event
	later.note = cmp.Or(x.note, x.operation.note.Load())
	told := x.detached()
	room.run(func(context.Context) {
		defer x.renewer.stop()
		began := later.runner.events.now()
		if refusal, err := later.persistLater(resp, &x.renewer); settles(err) {
			later.event.Completion += later.runner.events.since(began)
			later.judgeCompletion(err)
			later.event.Err = cmp.Or(later.event.Err, refusal)
			switch {
			case refusal != nil:
				later.event.Omitted = true
			case stored(err):
				later.event.keeps(&resp)
			}
			if later.event.Outcome == OutcomeExecuted {
				later.event.Outcome = OutcomeRecorded
			}
			later.runner.wake(later.key)
			if later.event.Outcome != OutcomeUnrecorded { // which is known
				later.reportAlone(told)
			}
		}
	})
}

// releaseLater releases a claim that the store may have granted, although its reply was lost. Until then it would block
// the key for a lease, or with Refuse leave an outcome that nobody knows.
func (x *execution) releaseLater() {
	room := x.runner.backlog.forRelease(x.key.User)
	if room == nil {
		return
	}
	r, later, lost := x.runner, x.inBackground(), time.Now()
	until := lost.Add(r.opts.Lease)
	if r.opts.Abandoned == Refuse {
		until = lost.Add(r.opts.TTL)
	}
	room.run(func(ctx context.Context) {
		var denied time.Time // when the store first said that it does not know the claim
		for pause := firstRetry; time.Now().Before(until); pause = min(2*pause, lastRetry) {
			err := later.releaseOnce(later.untouched())
			unknown := errors.Is(err, ErrClaimLost)
			if unknown && denied.IsZero() {
				denied = time.Now()
			}
			// The request for the claim may still be on its way, behind that for its release.
			never := unknown && time.Since(denied) > r.opts.StoreTimeout
			if err == nil || never || !sleep(ctx, pause, nil) {
				break
			}
		}
		r.wake(later.key)
	})
}

// inBackground returns an execution that settles the claim of x after the request has ended. Its context ends with a
// Shutdown.
func (x *execution) inBackground() *execution {
	ctx := x.runner.backlog.ctx
	return &execution{runner: x.runner, key: x.key, begun: x.begun, request: ctx, lasting: ctx}
}

// untouchedLeases is how many leases long a record is kept if its operation has done nothing. That is long enough to
// recognise a request that was delayed on its way to the store. It is short enough that nobody can fill the store with
// requests that are turned away.
const untouchedLeases = 2

// untouched returns how long to keep the record if this attempt has done nothing. Earlier ones may have had effects:
// then it is kept for as long as without this attempt, or for TTL if nobody knows, as after a lost reply (Attempt 0).
func (x *execution) untouched() time.Duration {
	record, opts := &x.begun.record, &x.runner.opts
	if record.Attempt != 1 && record.Remaining == 0 {
		return opts.TTL
	}
	return max(record.Remaining, min(untouchedLeases*opts.Lease, opts.TTL))
}

// release ends the claim without a response, so that the operation may be tried again, and keeps the record for ttl. It
// returns a refusal if another attempt has taken over. If the store fails, the lease lapses by itself.
func (x *execution) release(ttl time.Duration, cause error) (refusal error) {
	x.settled = true
	x.renewer.stop()
	began := x.runner.events.now()
	err := x.releaseOnce(ttl)
	x.event.Completion = x.runner.events.since(began)
	x.event.Outcome, x.event.Err = OutcomeReleased, cause
	if err != nil {
		x.event.Err = errors.Join(err, cause)
	}
	if errors.Is(err, ErrClaimLost) {
		x.event.Outcome = OutcomeClaimLost
		return refusalFor(x.event.Err)
	}
	return nil
}

// releaseOnce asks the store once to release the claim.
func (x *execution) releaseOnce(ttl time.Duration) error {
	ctx, cancel := x.step(x.runner.opts.StoreTimeout)
	defer cancel()
	return x.begun.claim.Release(ctx, ttl)
}

// abandon ends the claim of an attempt of which nobody can say how far it came.
func (x *execution) abandon(cause error) (refusal error) {
	if !x.leased() || x.runner.opts.Abandoned == ReExecute {
		return x.release(x.runner.opts.TTL, cause)
	}
	// The claim is left to lapse, as after a crash.
	x.settled = true
	x.renewer.stop()
	x.event.Outcome, x.event.Err = OutcomeAbandoned, cause
	return nil
}

// errInterrupted is the cause of the end of an attempt when work did not return.
var errInterrupted = errors.New("idempotency: handler panicked or exited")

// settle ends the claim if work did not return, or did but could not say what its response means: an answer that is there
// is kept. It reports the outcome.
func (x *execution) settle() {
	defer x.cancel(nil)
	switch {
	case x.settled:
	case x.answered != nil:
		_ = x.complete(*x.answered)
	default:
		_ = x.abandon(cmp.Or(x.event.Err, errInterrupted))
	}
	x.runner.wake(x.key)
	x.report(x.ctx)
}

// reportAlone is report outside of a request. There is no server that recovers from a panic of the Observer, which would
// end the process.
func (x *execution) reportAlone(ctx context.Context) {
	defer func() {
		if p := recover(); p != nil {
			x.runner.events.panicked(ctx, p)
		}
	}()
	x.report(ctx)
}

// report completes the event with what is known of the request.
func (x *execution) report(ctx context.Context) {
	e := &x.event
	e.Key, e.Attempt = x.key, x.begun.record.Attempt
	e.Began, e.Claim, e.Waited, e.Total = x.asked, x.claimed, x.waited, x.runner.events.since(x.asked)
	e.FromCache = x.fromCache
	if note := cmp.Or(x.note, x.operation.note.Load()); note != nil {
		e.Note = *note
	}
	x.runner.events.report(ctx, e)
}
