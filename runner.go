package idempotency

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"
)

// Runner runs operations once for each key: the engine of [Middleware], without HTTP, for message consumers, jobs and
// other protocols. It is safe for concurrent use.
type Runner struct {
	store   Store
	opts    RunnerOptions
	events  reporter
	waiters waiters
}

// NewRunner returns a Runner on store. The error reports every fault of opts at once.
func NewRunner(store Store, opts RunnerOptions) (*Runner, error) {
	opts = opts.withDefaults()
	err := opts.validate()
	if store == nil {
		err = errors.Join(errors.New("idempotency: Store is nil"), err)
	}
	if err != nil {
		return nil, err
	}
	return &Runner{store: store, opts: opts, events: reporter{opts.Observer, opts.Logger}}, nil
}

// Do returns the response of the operation that key names: of work, if no attempt has completed before, else the
// stored one, with replayed set.
//
// Work runs with the operation in its context ([FromContext]), and with what the store offers. The context is
// cancelled with the cause [ErrClaimLost] if another attempt takes over. If work returns an error, nothing is stored,
// the operation may be tried again, and Do returns that error. If it panics or calls [runtime.Goexit], likewise.
//
// Payload is what the operation works on; a key that comes back with another payload is refused. A refusal is an
// [*Error] that wraps one of the sentinels of this package: [ErrInProgress], [ErrKeyReused], [ErrNotReplayable],
// [ErrOutcomeUnknown], [ErrClaimLost], [ErrRolledBack], [ErrKeyInvalid] for a key without ID, or [ErrUnavailable].
func (r *Runner) Do(ctx context.Context, key Key, payload []byte, work func(context.Context) (Response, error)) (resp Response, replayed bool, err error) {
	if key.ID == "" {
		err := fmt.Errorf("%w: no ID", ErrKeyInvalid)
		r.events.report(ctx, Event{Outcome: OutcomeRejected, Err: err})
		return Response{}, false, refuse(err)
	}
	res, err := r.run(ctx, key, sha256.Sum256(payload), func(ctx context.Context, _ *attempt) (Response, error) {
		resp, err := work(ctx)
		return resp.Clone(), err // what is stored and what is returned must not be work's to change
	})
	return res.response.Clone(), res.replayed, err
}

// work is what run runs. It may complete the attempt by itself.
type work func(context.Context, *attempt) (Response, error)

// result is the outcome of run. The response may be shared with others.
type result struct {
	response Response
	replayed bool
}

// run does what Do says, without copying responses.
func (r *Runner) run(ctx context.Context, key Key, fp Fingerprint, work work) (result, error) {
	began := r.events.now()
	event := Event{Key: key}
	defer func() {
		event.Total = r.events.since(began)
		r.events.report(ctx, event)
	}()

	held, err := r.claim(ctx, key, fp, &event)
	event.Operation, event.Attempt = held.record.Operation, held.record.Attempt
	switch {
	case err != nil && r.opts.FailOpen && !errors.Is(err, ErrRecordInvalid):
		event.Outcome, event.Err = OutcomeUnprotected, err
		return r.unprotected(ctx, work, &event)
	case err != nil:
		event.Outcome, event.Err = OutcomeUnavailable, err
		return result{}, refuse(err)
	case held.claim == nil:
		return r.answer(held.record, fp, &event)
	}
	return r.execute(ctx, held, work, &event)
}

// held is the answer of the store to Begin, and a time before which the lease did not begin.
type held struct {
	record Record
	claim  Claim
	since  time.Time
}

// begin asks the store once. It does not stop when the request ends: a claim must not be left behind by a client that
// hung up while the store was answering.
func (r *Runner) begin(ctx context.Context, key Key, fp Fingerprint) (held, error) {
	ctx, cancel := r.detached(ctx)
	defer cancel()
	since := time.Now()
	record, claim, err := r.store.Begin(ctx, key, Attempt{
		Fingerprint: fp,
		Lease:       r.opts.Lease,
		TTL:         r.opts.TTL,
		TakeOver:    r.opts.Abandoned == ReExecute,
	})
	return held{record, claim, since}, err
}

// detached returns a context for a step of the store, which ends by its own deadline and not with the request.
func (r *Runner) detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), r.opts.StoreTimeout)
}

// judge says what a record that holds the key means for a request with fingerprint fp: nil that its response is the
// answer. That the key was reused outranks everything else.
func judge(rec Record, fp Fingerprint) error {
	switch {
	case rec.Fingerprint != fp && rec.Fingerprint != Fingerprint{}:
		return ErrKeyReused
	case rec.Response != nil && rec.Response.Omitted:
		return ErrNotReplayable
	case rec.Response != nil:
		return nil
	case rec.LeaseLeft > 0:
		return ErrInProgress
	default:
		return ErrOutcomeUnknown
	}
}

var refusals = map[error]Outcome{
	ErrKeyReused:      OutcomeKeyReused,
	ErrNotReplayable:  OutcomeNotReplayable,
	ErrInProgress:     OutcomeInProgress,
	ErrOutcomeUnknown: OutcomeUnknown,
}

// answer answers from a record that holds the key.
func (r *Runner) answer(rec Record, fp Fingerprint, event *Event) (result, error) {
	err := judge(rec, fp)
	if err == nil {
		event.Outcome, event.Status = OutcomeReplayed, rec.Response.Status
		return result{response: *rec.Response, replayed: true}, nil
	}
	event.Outcome, event.Err = refusals[err], err
	refusal := refuse(err)
	if rec.Response != nil && err == ErrNotReplayable {
		event.Status, refusal.OriginalStatus = rec.Response.Status, rec.Response.Status
	}
	return result{}, refusal
}

func (r *Runner) unprotected(ctx context.Context, work work, event *Event) (result, error) {
	began := r.events.now()
	resp, err := work(ctx, nil)
	event.Status, event.Work = resp.Status, r.events.since(began)
	return result{response: resp}, err
}

// execute runs work for the owner of a claim, and settles the claim whatever work does.
func (r *Runner) execute(ctx context.Context, held held, work work, event *Event) (result, error) {
	if held.record.LeaseLeft > 0 && time.Since(held.since) >= r.opts.Lease {
		event.Outcome, event.Err = OutcomeClaimLost, ErrClaimLost // the store took longer to answer than the lease lasts
		return result{}, refuse(ErrClaimLost)
	}
	op := Operation{Key: event.Key, ID: held.record.Operation, Attempt: held.record.Attempt}
	ctx, cancel := context.WithCancelCause(contextWithOperation(held.claim.Context(ctx), &op))
	defer cancel(nil)

	a := &attempt{runner: r, claim: held.claim, event: event, leased: held.record.LeaseLeft > 0}
	a.keeper = keeper{ctx: ctx, claim: held.claim, lease: r.opts.Lease, timeout: r.opts.StoreTimeout, lost: cancel}
	if a.leased {
		a.keeper.start(held.since)
	}
	defer a.settle(ctx) // also when work panics or calls runtime.Goexit, neither of which it stops

	began := r.events.now()
	resp, err := work(ctx, a)
	a.returned = true
	event.Status, event.Work = resp.Status, r.events.since(began)
	if err == nil && !a.settled {
		err = a.complete(ctx, resp)
	}
	if err != nil && event.Err == nil {
		event.Err = err
	}
	return result{response: resp}, err
}

// attempt is the execution of an operation by the owner of its claim.
type attempt struct {
	runner   *Runner
	claim    Claim
	event    *Event
	leased   bool // the claim has a lease; else its effects are bound to Complete
	keeper   keeper
	returned bool // work came to its end
	settled  bool // the claim has ended, or must not be touched any more
}

// complete stores the response. It returns nil if the response may be sent. That includes that the store failed: the
// effects exist, so the answer is true, and the claim is kept until its lease lapses rather than released.
func (a *attempt) complete(ctx context.Context, resp Response) error {
	a.end()
	ctx, cancel := a.runner.detached(ctx)
	defer cancel()
	err := retry(ctx, func() error { return a.claim.Complete(ctx, resp, a.runner.opts.TTL) })
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

// end stops the renewals, after which nothing but one last step of the store is left to do.
func (a *attempt) end() {
	a.keeper.stop()
	a.settled = true
}

// settle ends a claim that was not completed, so that the operation may be tried again. If the store fails, the lease
// lapses by itself.
func (a *attempt) settle(ctx context.Context) {
	defer a.runner.waiters.wake(a.event.Key)
	if a.settled {
		return
	}
	a.end()
	if !a.returned && a.leased && a.runner.opts.Abandoned == Refuse {
		// Nobody can say how far a handler came that panicked: it is left to lapse, as after a crash.
		a.event.Outcome = OutcomeAbandoned
		return
	}
	a.event.Outcome = OutcomeReleased
	ctx, cancel := a.runner.detached(ctx)
	defer cancel()
	if err := a.claim.Release(ctx); err != nil {
		a.event.Err = errors.Join(a.event.Err, err)
	}
}

// retry repeats a step of the store that may be repeated until its outcome is known or ctx is done.
func retry(ctx context.Context, step func() error) error {
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := step()
		if err == nil || errors.Is(err, ErrRestored) || errors.Is(err, ErrClaimLost) ||
			errors.Is(err, ErrRolledBack) || errors.Is(err, ErrRecordInvalid) {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}
