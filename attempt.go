package idempotency

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"
)

// work is what an attempt runs. The attempt is nil if nothing protects it; else work may complete it by itself.
type work func(context.Context, *attempt) (Response, error)

// attempt is the execution of an operation by the owner of its claim, and the context in which it runs.
type attempt struct {
	context.Context
	operation Operation
	runner    *Runner
	adm       admission
	leased    bool // the claim has a lease; else its effects are bound to Complete
	keeper    keeper
	last      step // of the store
	event     Event
	settled   bool // the claim has ended, or must not be touched any more
}

// Value implements context.Context.
func (a *attempt) Value(key any) any {
	if key == (operationKey{}) {
		return &a.operation
	}
	return a.Context.Value(key)
}

// execute runs work for the owner of a claim, and settles the claim whatever work does.
func (r *Runner) execute(ctx context.Context, adm admission, work work) (Response, error) {
	if adm.held.claim == nil {
		return r.unprotected(ctx, adm, work)
	}
	leased := adm.held.record.LeaseLeft > 0
	ctx, cancel := context.WithCancelCause(adm.held.claim.Context(ctx))
	defer cancel(nil)
	a := &attempt{
		Context:   ctx,
		operation: Operation{adm.key, adm.held.record.Operation, adm.held.record.Attempt},
		runner:    r, adm: adm, leased: leased,
		keeper: keeper{ctx: ctx, claim: adm.held.claim, lease: r.opts.Lease, timeout: r.opts.StoreTimeout, lost: cancel},
	}
	defer a.settle() // also when work panics or calls runtime.Goexit, neither of which it stops
	switch {
	case leased && time.Since(adm.held.since) >= r.opts.Lease: // the store took longer to answer than the lease lasts
		err := refuse(a.release(ErrClaimLost)) // nothing has run: with Refuse too, it may be tried again
		a.event = Event{Outcome: OutcomeClaimLost, Err: err}
		return Response{}, err
	case leased:
		a.keeper.start(adm.held.since)
	}
	return a.run(work)
}

// unprotected runs work without a claim, as FailOpen allows.
func (r *Runner) unprotected(ctx context.Context, adm admission, work work) (Response, error) {
	event := Event{Outcome: OutcomeUnprotected, Err: adm.err}
	defer func() { r.report(ctx, adm, event) }()
	began := r.events.now()
	resp, err := work(ctx, nil)
	event.Status, event.Work = resp.Status, r.events.since(began)
	return resp, err
}

func (a *attempt) run(work work) (Response, error) {
	began := a.runner.events.now()
	resp, err := work(a, a)
	a.event.Status, a.event.Work, a.event.Err = resp.Status, a.runner.events.since(began), cmp.Or(a.event.Err, err)
	switch {
	case a.settled: // by work
		return resp, err
	case err != nil:
		return resp, a.release(err)
	default:
		return resp, a.complete(resp)
	}
}

// complete stores the response. It returns nil if the response may be sent. That includes that the store failed: the
// effects exist, so the answer is true, and the claim is kept until its lease lapses rather than released.
func (a *attempt) complete(resp Response) error {
	defer a.end().end()
	err := a.persist(resp)
	if err == nil && a.keeper.restored {
		err = ErrRestored
	}
	a.event.Err = err
	switch {
	case err == nil:
		a.event.Outcome = OutcomeExecuted
	case errors.Is(err, ErrRestored):
		a.event.Outcome = OutcomeRestored
	case errors.Is(err, ErrClaimLost):
		a.event.Outcome = OutcomeClaimLost
		return refuse(err)
	case errors.Is(err, ErrRolledBack):
		a.event.Outcome = OutcomeRolledBack
		return refuse(err)
	default:
		a.event.Outcome = OutcomeUnrecorded
	}
	return nil
}

// persist calls Complete, which may be repeated, until its outcome is known or the step must end.
func (a *attempt) persist(resp Response) error {
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := a.adm.held.claim.Complete(&a.last, resp, a.runner.opts.TTL)
		if err == nil || errors.Is(err, ErrRestored) || errors.Is(err, ErrClaimLost) ||
			errors.Is(err, ErrRolledBack) || errors.Is(err, ErrRecordInvalid) {
			return err
		}
		if !sleep(&a.last, pause, nil) {
			return err
		}
	}
}

// release ends the claim without a response, so that the operation may be tried again. It returns cause, or that
// another attempt has taken over. If the store fails, the lease lapses by itself.
func (a *attempt) release(cause error) error {
	defer a.end().end()
	err := a.adm.held.claim.Release(&a.last)
	if errors.Is(err, ErrClaimLost) {
		a.event.Outcome, a.event.Err = OutcomeClaimLost, errors.Join(err, cause)
		return refuse(fmt.Errorf("%w: %w", err, cause))
	}
	a.event.Outcome = OutcomeReleased
	if err != nil {
		a.event.Err = errors.Join(cause, err)
	}
	return cause
}

// end stops the renewals, and begins the last step of the store, which is all that is left to do.
func (a *attempt) end() *step {
	a.keeper.stop()
	a.settled = true
	a.last.begin(a.Context, a.runner.opts.StoreTimeout)
	return &a.last
}

// errInterrupted is the cause of a release when work did not return.
var errInterrupted = errors.New("idempotency: handler panicked or exited")

// settle ends the claim if work did not return, and reports the outcome.
func (a *attempt) settle() {
	if !a.settled && a.leased && a.runner.opts.Abandoned == Refuse {
		// Nobody can say how far a handler came that panicked: the claim is left to lapse, as after a crash.
		a.end()
		a.event.Outcome, a.event.Err = OutcomeAbandoned, errInterrupted
	} else if !a.settled {
		a.event.Err = errInterrupted
		_ = a.release(errInterrupted)
	}
	a.runner.wake(a.adm.key)
	a.runner.report(a, a.adm, a.event)
}
