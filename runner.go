package idempotency

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Runner runs operations once for each key: the engine of [Middleware], without HTTP, for message consumers, jobs and
// other protocols. It is safe for concurrent use.
type Runner struct {
	store     Store
	recaller  Recaller // the store, if it is one
	immediate bool     // the store never waits for anything, so its steps need no deadline
	opts      RunnerOptions
	events    reporter
	waiters   waiters
	renewals  *renewals
	backlog   *backlog
}

// NewRunner returns a Runner on store. The error reports every fault of opts at once.
func NewRunner(store Store, opts RunnerOptions) (*Runner, error) {
	opts = opts.withDefaults()
	err := opts.validate()
	if store == nil {
		err = errors.Join(errors.New("idempotency: Store is nil"), err)
	}
	if isTransactional(store) {
		err = errors.Join(err, opts.validateTransactional())
	}
	if err != nil {
		return nil, err
	}
	recaller, _ := store.(Recaller)
	return &Runner{
		store: store, recaller: recaller, immediate: isImmediate(store), opts: opts, events: reporter{opts.Observer, opts.Logger},
		renewals: newRenewals(opts, isTransactional(store)), backlog: newBacklog(),
	}, nil
}

// Shutdown waits for the work in the background. This work stores the answers that the store did not take in time (see
// [OutcomeUnrecorded]), and releases the claims for which the store's reply was lost. When ctx ends, Shutdown gives up,
// and the error says how many operations are not settled. No new work goes to the background once Shutdown has been
// called.
//
// Call it when no more operations are running, and before the client of the store is closed.
func (r *Runner) Shutdown(ctx context.Context) error { return r.backlog.shutdown(ctx) }

// Do returns the response of the operation that key names. If an earlier attempt has completed the operation, Do
// returns the stored response, and replayed is true. Otherwise Do runs work, and stores and returns its response.
//
// The context of work has the operation ([FromContext]), and what the store offers, such as a transaction. It ends with
// ctx. It also ends if the claim is lost, or is about to lapse; its cause is then [ErrClaimLost].
//
// If work returns an error, nothing is stored, the operation may be tried again, and Do returns that error. The same
// holds if work panics or calls [runtime.Goexit]. With [Refuse], however, a panic or Goexit leaves the claim to lapse,
// as a crash does.
//
// [Decide] changes what a response or an error means. If the store does not take the response in time, Do returns it
// all the same. It is then stored in the background (see [Runner.Shutdown]).
//
// Payload is what the operation works on. A key that comes back with another payload is refused. A refusal is an
// [*Error] that wraps one of the sentinels of this package: [ErrInProgress], [ErrKeyReused], [ErrNotReplayable],
// [ErrOutcomeUnknown], [ErrClaimLost], [ErrRolledBack], [ErrKeyInvalid] for a key without ID, [ErrUserQuota], or
// [ErrUnavailable].
func (r *Runner) Do(ctx context.Context, key Key, payload []byte, work func(context.Context) (Response, error)) (resp Response, replayed bool, err error) {
	if key.ID == "" {
		err := fmt.Errorf("%w: no ID", ErrKeyInvalid)
		r.events.report(ctx, &Event{Outcome: OutcomeRejected, Err: err})
		return Response{}, false, refusalFor(err)
	}
	x := &execution{runner: r, key: key.bounded(), request: ctx}
	replay, err := x.admit(sha256.Sum256(payload))
	if err != nil {
		return Response{}, false, err
	}
	if replay != nil {
		return replay.Clone(), true, nil
	}
	var failure error
	_, err = r.execute(ctx, x, func(ctx context.Context) (Response, Verdict, error) {
		resp, failure = work(ctx)
		verdict := verdictOn(ctx, failure)
		if verdict == Tombstone {
			return resp.tombstone(), Keep, nil
		}
		return resp.Clone(), verdict, failure // what is stored must not be work's to change
	})
	return resp.Clone(), false, cmp.Or(err, failure)
}

// verdictOn says what it means that work has returned err.
func verdictOn(ctx context.Context, err error) Verdict {
	decided := undecided
	if op := operationIn(ctx); op != nil {
		decided = op.decided()
	}
	switch {
	case err != nil && (decided == Unknown || decided == Release):
		return decided
	case err != nil:
		return failed
	default:
		return cmp.Or(decided, Keep)
	}
}

// DoJSON is [Runner.Do] for work whose result is a value. The value is stored as JSON. What DoJSON returns is always
// decoded from that JSON, also the first time.
//
// A value that JSON cannot express completes the operation too. This call returns the error of [json.Marshal]. Later
// calls return [ErrNotReplayable], and work does not run again.
func DoJSON[T any](
	ctx context.Context, r *Runner, key Key, payload []byte, work func(context.Context) (T, error),
) (result T, replayed bool, err error) {
	var unfit error
	resp, replayed, err := r.Do(ctx, key, payload, func(ctx context.Context) (Response, error) {
		value, err := work(ctx)
		if err != nil {
			return Response{}, err
		}
		body, err := json.Marshal(value)
		unfit = err
		return Response{Body: body, Omitted: err != nil}, nil
	})
	if err == nil {
		err = unfit
	}
	if err != nil {
		return result, replayed, err
	}
	if err := json.Unmarshal(resp.Body, &result); err != nil {
		return result, replayed, fmt.Errorf("%w: %w", ErrRecordInvalid, err)
	}
	return result, replayed, nil
}

// admit asks the store what is to be done: x is to be executed, unless there is a replay of it or an error, which is a
// refusal.
func (x *execution) admit(fp Fingerprint) (replay *Response, refusal error) {
	r := x.runner
	x.asked = r.events.now()
	err := x.claim(fp)
	switch {
	case err != nil && r.failsOpen(err) && x.waited == 0:
		x.unprotected, x.begun = err, beginResult{} // a claim that was granted unknown to us keeps others away for a lease
		return nil, nil
	case err != nil:
		if x.begun.claim != nil {
			x.releaseLater()
		}
		x.event = Event{Outcome: outcomeOf(err), Err: err}
		x.report(x.request)
		return nil, refusalFor(err)
	case x.begun.claim != nil:
		return nil, nil
	}
	if err := judge(&x.begun.record, fp); err != nil {
		return nil, x.reportRefusal(err)
	}
	replay, x.event.Note = x.begun.record.Response.CutNote()
	x.event.keeps(replay)
	if x.caller != nil {
		if err := x.caller.mayReplay(replay); err != nil {
			x.event.Outcome, x.event.Status, x.event.Err = outcomeOf(err), replay.Status, err
			x.report(x.request)
			return nil, refusalFor(err)
		}
	}
	x.event.Outcome, x.event.Status = OutcomeReplayed, replay.Status
	x.report(x.request)
	return replay, nil
}

// failsOpen reports whether the handler runs without a claim, as the store has failed with err. A store that works, but
// has no room or no connection, is no reason: anybody may be able to bring that about.
func (r *Runner) failsOpen(err error) bool {
	works := errors.Is(err, ErrRecordInvalid) || errors.Is(err, ErrUserQuota) || errors.Is(err, ErrStoreFull) ||
		errors.Is(err, ErrStoreBusy)
	return r.opts.FailOpen && !works
}

// outcomeOf returns the outcome of a request that gets neither a claim nor a replay because of err.
func outcomeOf(err error) Outcome {
	switch {
	case errors.Is(err, ErrUserQuota):
		return OutcomeQuotaExceeded
	case errors.Is(err, ErrReplayRefused):
		return OutcomeReplayRefused
	default:
		return OutcomeUnavailable
	}
}

// beginResult is the answer of the store to Begin.
type beginResult struct {
	record Record
	claim  Claim
	since  time.Time // the lease did not begin before
}

// begin asks the store once. What is at hand needs no deadline, which would cost more than the rest of the step.
func (x *execution) begin(fp Fingerprint) (err error) {
	r := x.runner
	if r.recaller != nil {
		if record, ok := r.recaller.Recall(x.key); ok {
			x.begun = beginResult{record: record}
			x.fromCache = true
			return nil
		}
	}
	ctx, cancel := x.step(r.opts.StoreTimeout)
	defer cancel()
	x.begun.since = time.Now()
	x.begun.record, x.begun.claim, err = r.store.Begin(ctx, x.key, ClaimRequest{
		Fingerprint: fp,
		Lease:       r.opts.Lease,
		TTL:         r.opts.TTL,
		TakeOver:    r.opts.Abandoned == ReExecute,
	})
	return err
}

// claim begins an attempt. If another one is running, it waits for that to end.
func (x *execution) claim(fp Fingerprint) error {
	err := x.begin(fp)
	x.claimed = x.runner.events.since(x.asked)
	if x.runner.opts.Wait == 0 || !x.blocked(fp, err) {
		return err
	}
	if x.caller != nil {
		if !x.caller.mayWait() {
			return err
		}
		defer x.caller.waited()
	}
	began := time.Now()
	defer func() { x.waited = time.Since(began) }()
	ctx, cancel := context.WithTimeout(x.request, x.runner.opts.Wait)
	defer cancel()
	for x.blocked(fp, err) && ctx.Err() == nil {
		found, polled := x.runner.waiters.await(ctx, x.key, func() (found *Record, changed bool) {
			err = x.begin(fp)
			if err == nil && x.begun.claim == nil {
				found = &x.begun.record
			}
			return found, !x.blocked(fp, err)
		})
		switch {
		case polled || found == nil:
		case found.Fingerprint == fp:
			x.begun.record = *found
		default: // of another request: all that the record says of it is that its fingerprint is another one
			err = x.begin(fp)
		}
	}
	return err
}

// blocked reports whether the key is held by an attempt of the same request that goes on.
func (x *execution) blocked(fp Fingerprint, err error) bool {
	return err == nil && x.begun.claim == nil && judge(&x.begun.record, fp) == ErrInProgress
}

// wake lets a request of this process that waits for key look at once.
func (r *Runner) wake(key Key) {
	if r.opts.Wait > 0 {
		r.waiters.wake(key)
	}
}

// judge says what a record that holds the key means for a request with fingerprint fp: nil that its response is the
// answer. That the key was reused outranks everything else.
func judge(rec *Record, fp Fingerprint) error {
	switch {
	case rec.Fingerprint != fp && (rec.Fingerprint != Fingerprint{} || rec.Response != nil):
		return ErrKeyReused
	case rec.Response != nil && rec.Response.Omitted:
		return ErrNotReplayable
	case rec.Response != nil:
		return nil
	case rec.LeaseLeft > 0 || rec.NoLease:
		return ErrInProgress
	default:
		return ErrOutcomeUnknown
	}
}

var refusalOutcomes = map[error]Outcome{
	ErrKeyReused:      OutcomeKeyReused,
	ErrNotReplayable:  OutcomeNotReplayable,
	ErrInProgress:     OutcomeInProgress,
	ErrOutcomeUnknown: OutcomeUnknown,
}

// reportRefusal reports and returns that another record holds the key.
func (x *execution) reportRefusal(err error) error {
	refusal := refusalFor(err)
	x.event = Event{Outcome: refusalOutcomes[err], Err: err}
	record := &x.begun.record
	switch {
	case err == ErrNotReplayable:
		x.event.Status, refusal.OriginalStatus = record.Response.Status, record.Response.Status
		x.event.keeps(record.Response)
	case err == ErrInProgress && x.waited > 0 && x.request.Err() != nil:
		x.event = Event{Outcome: OutcomeClientLeft, Err: context.Cause(x.request)}
	case err == ErrInProgress:
		x.event.LeaseLeft = record.LeaseLeft
		if !record.NoLease && record.LeaseLeft < x.runner.opts.Lease/2 {
			refusal.RetryAfter = record.LeaseLeft // its owner has missed a renewal, and may be dead
		}
	}
	x.report(x.request)
	return refusal
}
