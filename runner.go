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
	adm, err := r.admit(ctx, key, sha256.Sum256(payload))
	if err != nil {
		return Response{}, false, err
	}
	if adm.replay != nil {
		return adm.replay.Clone(), true, nil
	}
	resp, err = r.execute(ctx, adm, func(ctx context.Context, _ *attempt) (Response, error) {
		resp, err := work(ctx)
		return resp.Clone(), err // what is stored must not be work's to change
	})
	return resp.Clone(), false, err
}

// admission is a request that the store has not refused: it is either answered or executed.
type admission struct {
	key    Key
	held   held
	replay *Response // the answer; nil: to be executed
	err    error     // why the execution is not protected
	began  time.Time // zero if nobody is to be told of the duration
	waited time.Duration
}

// admit asks the store what is to be done.
func (r *Runner) admit(ctx context.Context, key Key, fp Fingerprint) (admission, error) {
	adm := admission{key: key, began: r.events.now()}
	var err error
	adm.held, adm.waited, err = r.claim(ctx, key, fp)
	switch {
	case err != nil && r.opts.FailOpen && adm.waited == 0 && !errors.Is(err, ErrRecordInvalid):
		adm.err = err
		return adm, nil
	case err != nil:
		r.report(ctx, adm, Event{Outcome: OutcomeUnavailable, Err: err})
		return adm, refuse(err)
	case adm.held.claim != nil:
		return adm, nil
	}
	adm.replay = adm.held.record.Response
	if err := judge(adm.held.record, fp); err != nil {
		return adm, r.refuse(ctx, adm, err)
	}
	r.report(ctx, adm, Event{Outcome: OutcomeReplayed, Status: adm.replay.Status})
	return adm, nil
}

// refuse reports and returns that another record holds the key.
func (r *Runner) refuse(ctx context.Context, adm admission, err error) error {
	event, refusal := Event{Outcome: refusals[err], Err: err}, refuse(err)
	if err == ErrNotReplayable {
		event.Status, refusal.OriginalStatus = adm.replay.Status, adm.replay.Status
	}
	r.report(ctx, adm, event)
	return refusal
}

// report completes the event with what is known of the request.
func (r *Runner) report(ctx context.Context, adm admission, event Event) {
	event.Key = adm.key
	event.Operation, event.Attempt = adm.held.record.Operation, adm.held.record.Attempt
	event.Total, event.Waited = r.events.since(adm.began), adm.waited
	r.events.report(ctx, event)
}

// held is the answer of the store to Begin, and a time before which the lease did not begin.
type held struct {
	record Record
	claim  Claim
	since  time.Time
}

// begin asks the store once.
func (r *Runner) begin(ctx context.Context, key Key, fp Fingerprint) (held, error) {
	if _, ok := r.store.(*MemoryStore); !ok { // which never waits, and so needs no deadline
		step := new(step)
		step.begin(ctx, r.opts.StoreTimeout)
		defer step.end()
		ctx = step
	}
	since := time.Now()
	record, claim, err := r.store.Begin(ctx, key, Attempt{
		Fingerprint: fp,
		Lease:       r.opts.Lease,
		TTL:         r.opts.TTL,
		TakeOver:    r.opts.Abandoned == ReExecute,
	})
	return held{record, claim, since}, err
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
