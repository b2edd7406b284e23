package idempotency

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"
)

// execution is a request on its way through a Runner, from the question to the store to the end of the claim.
type execution struct {
	runner      *Runner
	key         Key
	held        held
	unprotected error     // why there is no claim
	began       time.Time // zero if nobody is to be told of the duration
	waited      time.Duration

	attempt *attempt
	keeper  keeper
	event   Event
	settled bool // the claim has ended, or must not be touched any more
}

// work carries out an operation. It may complete the execution by itself.
type work func(context.Context) (Response, error)

// execute runs work for the owner of a claim, and settles the claim whatever work does. The attempt is to be work's
// context.
func (r *Runner) execute(ctx context.Context, x *execution, a *attempt, work work) (Response, error) {
	if x.held.claim == nil {
		return x.runUnprotected(ctx, work)
	}
	a.Context = x.held.claim.Context(ctx)
	a.operation = Operation{x.key, x.held.record.Operation, x.held.record.Attempt}
	x.attempt = a
	defer x.settle() // also when work panics or calls runtime.Goexit, neither of which it stops
	switch {
	case x.leased() && time.Since(x.held.since) >= r.opts.Lease: // the store took longer to answer than the lease lasts
		err := refuse(x.release(ErrClaimLost)) // nothing has run: with Refuse too, it may be tried again
		x.event = Event{Outcome: OutcomeClaimLost, Err: err}
		return Response{}, err
	case x.leased():
		x.keeper.claim, x.keeper.attempt = x.held.claim, a
		r.leases.keep(&x.keeper, x.held.since)
	}
	return x.run(work)
}

// leased reports whether the claim has a lease; else its effects are bound to Complete.
func (x *execution) leased() bool { return x.held.claim != nil && !x.held.record.NoLease }

// runUnprotected runs work without a claim, as FailOpen allows.
func (x *execution) runUnprotected(ctx context.Context, work work) (Response, error) {
	x.event = Event{Outcome: OutcomeUnprotected, Err: x.unprotected}
	defer x.report(ctx)
	began := x.runner.events.now()
	resp, err := work(ctx)
	x.event.Status, x.event.Work = resp.Status, x.runner.events.since(began)
	return resp, err
}

func (x *execution) run(work work) (Response, error) {
	began := x.runner.events.now()
	resp, err := work(x.attempt)
	x.event.Status, x.event.Work, x.event.Err = resp.Status, x.runner.events.since(began), cmp.Or(x.event.Err, err)
	switch {
	case x.settled: // by work
		return resp, err
	case err == errGaveUp:
		return resp, refuse(ErrClaimLost) // as if it had not returned
	case err != nil:
		return resp, x.release(err)
	default:
		return resp, x.complete(resp)
	}
}

// complete stores the response. It returns nil if the response may be sent. That includes that the store failed: the
// effects exist, so the answer is true, and the claim is kept until its lease lapses rather than released.
func (x *execution) complete(resp Response) error {
	err := x.persist(x.lastStep(), resp)
	if err == nil && x.keeper.restored {
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
		return refuse(err)
	case errors.Is(err, ErrRolledBack):
		x.event.Outcome = OutcomeRolledBack
		return refuse(err)
	default:
		x.event.Outcome = OutcomeUnrecorded
	}
	return nil
}

// persist calls Complete, which may be repeated, until its outcome is known or the step must end.
func (x *execution) persist(ctx context.Context, resp Response) error {
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := x.held.claim.Complete(ctx, resp, x.runner.opts.TTL)
		if err == nil || errors.Is(err, ErrRestored) || errors.Is(err, ErrClaimLost) ||
			errors.Is(err, ErrRolledBack) || errors.Is(err, ErrRecordInvalid) {
			return err
		}
		if !sleep(ctx, pause, nil) {
			return err
		}
	}
}

// release ends the claim without a response, so that the operation may be tried again. It returns cause, or that
// another attempt has taken over. If the store fails, the lease lapses by itself.
func (x *execution) release(cause error) error {
	err := x.held.claim.Release(x.lastStep())
	if errors.Is(err, ErrClaimLost) {
		x.event.Outcome, x.event.Err = OutcomeClaimLost, errors.Join(err, cause)
		return refuse(fmt.Errorf("%w: %w", err, cause))
	}
	x.event.Outcome = OutcomeReleased
	if err != nil {
		x.event.Err = errors.Join(cause, err)
	}
	return cause
}

// lastStep stops the renewals, and begins the last step of the store, which is all that is left to do.
func (x *execution) lastStep() context.Context {
	x.keeper.stop()
	x.settled = true
	return x.runner.step(x.attempt)
}

// errInterrupted is the cause of a release when work did not return.
var errInterrupted = errors.New("idempotency: handler panicked or exited")

// settle ends the claim if work did not return, and reports the outcome.
func (x *execution) settle() {
	defer x.attempt.end(nil)
	if !x.settled {
		x.abandon(cmp.Or(x.event.Err, errInterrupted))
	}
	x.runner.wake(x.key)
	x.report(x.attempt)
}

// abandon ends the claim of work that has not returned, or has given up.
func (x *execution) abandon(cause error) {
	x.event.Err = cause
	if !x.leased() || x.runner.opts.Abandoned == ReExecute {
		_ = x.release(cause)
		return
	}
	// Nobody can say how far the handler came: the claim is left to lapse, as after a crash.
	x.keeper.stop()
	x.event.Outcome = OutcomeAbandoned
}

// refuse reports and returns that another record holds the key.
func (x *execution) refuse(ctx context.Context, err error) error {
	refusal := refuse(err)
	x.event = Event{Outcome: refusals[err], Err: err}
	if err == ErrNotReplayable {
		x.event.Status, refusal.OriginalStatus = x.held.record.Response.Status, x.held.record.Response.Status
	}
	x.report(ctx)
	return refusal
}

// report completes the event with what is known of the request.
func (x *execution) report(ctx context.Context) {
	e := &x.event
	e.Key, e.Operation, e.Attempt = x.key, x.held.record.Operation, x.held.record.Attempt
	e.Total, e.Waited = x.runner.events.since(x.began), x.waited
	x.runner.events.report(ctx, e)
}
