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
	steps   deadlines
	leases  leases
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
	return &Runner{
		store: store, opts: opts, events: reporter{opts.Observer, opts.Logger},
		steps: deadlines{timeout: opts.StoreTimeout}, leases: leases{lease: opts.Lease, timeout: opts.StoreTimeout},
	}, nil
}

// Do returns the response of the operation that key names: of work, if no attempt has completed before, else the
// stored one, with replayed set.
//
// Work runs with the operation in its context ([FromContext]), and with what the store offers. The context is
// cancelled with the cause [ErrClaimLost] if another attempt takes over. If work returns an error, nothing is stored,
// the operation may be tried again, and Do returns that error. If it panics or calls [runtime.Goexit], likewise; but
// with [Refuse] the claim is left to lapse, as after a crash.
//
// Payload is what the operation works on; a key that comes back with another payload is refused. A refusal is an
// [*Error] that wraps one of the sentinels of this package: [ErrInProgress], [ErrKeyReused], [ErrNotReplayable],
// [ErrOutcomeUnknown], [ErrClaimLost], [ErrRolledBack], [ErrKeyInvalid] for a key without ID, or [ErrUnavailable].
func (r *Runner) Do(ctx context.Context, key Key, payload []byte, work func(context.Context) (Response, error)) (resp Response, replayed bool, err error) {
	if key.ID == "" {
		err := fmt.Errorf("%w: no ID", ErrKeyInvalid)
		r.events.report(ctx, &Event{Outcome: OutcomeRejected, Err: err})
		return Response{}, false, refuse(err)
	}
	x := &execution{key: key}
	replay, err := r.admit(ctx, x, sha256.Sum256(payload))
	if err != nil {
		return Response{}, false, err
	}
	if replay != nil {
		return replay.Clone(), true, nil
	}
	resp, err = r.execute(ctx, x, new(attempt), func(ctx context.Context) (Response, error) {
		resp, err := work(ctx)
		return resp.Clone(), err // what is stored must not be work's to change
	})
	return resp.Clone(), false, err
}

// admit asks the store what is to be done: x is to be executed, unless there is a replay of it.
func (r *Runner) admit(ctx context.Context, x *execution, fp Fingerprint) (replay *Response, err error) {
	x.runner, x.began = r, r.events.now()
	err = r.claim(ctx, x, fp)
	switch {
	case err != nil && r.opts.FailOpen && x.waited == 0 && !errors.Is(err, ErrRecordInvalid):
		x.unprotected = err
		return nil, nil
	case err != nil:
		x.event = Event{Outcome: OutcomeUnavailable, Err: err}
		x.report(ctx)
		return nil, refuse(err)
	case x.held.claim != nil:
		return nil, nil
	}
	replay = x.held.record.Response
	if err := judge(&x.held.record, fp); err != nil {
		return nil, x.refuse(ctx, err)
	}
	x.event.Outcome, x.event.Status = OutcomeReplayed, replay.Status
	x.report(ctx)
	return replay, nil
}

// held is the answer of the store to Begin, and a time before which the lease did not begin.
type held struct {
	record Record
	claim  Claim
	since  time.Time
}

// begin asks the store once.
func (r *Runner) begin(ctx context.Context, key Key, fp Fingerprint, h *held) (err error) {
	ctx = r.step(ctx)
	h.since = time.Now()
	h.record, h.claim, err = r.store.Begin(ctx, key, ClaimRequest{
		Fingerprint: fp,
		Lease:       r.opts.Lease,
		TTL:         r.opts.TTL,
		TakeOver:    r.opts.Abandoned == ReExecute,
	})
	return err
}

// step returns the context of a step of the store that begins now.
func (r *Runner) step(ctx context.Context) context.Context {
	if _, ok := r.store.(*MemoryStore); ok { // which never waits
		return ctx
	}
	return r.steps.begin(ctx)
}

// judge says what a record that holds the key means for a request with fingerprint fp: nil that its response is the
// answer. That the key was reused outranks everything else.
func judge(rec *Record, fp Fingerprint) error {
	switch {
	case rec.Fingerprint != fp && rec.Fingerprint != Fingerprint{}:
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

var refusals = map[error]Outcome{
	ErrKeyReused:      OutcomeKeyReused,
	ErrNotReplayable:  OutcomeNotReplayable,
	ErrInProgress:     OutcomeInProgress,
	ErrOutcomeUnknown: OutcomeUnknown,
}
