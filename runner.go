package idempotency

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/idempotency-go/idempotency/internal/backlog"
	"github.com/idempotency-go/idempotency/internal/bounds"
	"github.com/idempotency-go/idempotency/internal/polling"
)

// Runner runs operations once for each key: the engine of [Middleware], without HTTP, for message consumers, jobs and
// other protocols. It is safe for concurrent use.
type Runner struct {
	store     Store
	resolver  Resolver // nil: there is no Reconcile
	immediate bool     // the store never waits for anything, so its steps need no deadline
	opts      RunnerOptions
	events    reporter
	waiters   waiters
	questions questions
	leases    leases
	backlog   *backlog.Backlog
}

// waiters are the requests that wait for another attempt.
type waiters struct {
	polls  polling.Group[Key, Record]
	shares bounds.Shares // of each user; a Runner without HTTP has no limit
}

// NewRunner returns a Runner on store. The error reports every fault of opts, and of the store's own options, at once.
func NewRunner(store Store, opts RunnerOptions) (*Runner, error) {
	opts = opts.withDefaults()
	err := errors.Join(validateStore(store, opts), opts.validate())
	var resolver Resolver
	if opts.Reconcile != nil && store != nil {
		found, missing := resolverOf(store)
		resolver, err = found, errors.Join(err, missing)
	}
	if err != nil {
		return nil, err
	}
	return &Runner{
		store: store, resolver: resolver, immediate: isImmediate(store), opts: opts,
		events: reporter{opts.Observer, opts.Logger},
		leases: newLeases(opts), backlog: backlog.New(),
	}, nil
}

func isImmediate(store Store) bool {
	s, ok := store.(Immediate)
	return ok && s.Immediate()
}

// Shutdown waits for the work in the background. This work stores the answers that the store did not take in time (see
// [OutcomeUnrecorded]), and releases the claims for which the store's reply was lost. When ctx ends, Shutdown gives up,
// and the error says how many operations are not settled. No new work goes to the background once Shutdown has been
// called.
//
// Call it when no more operations are running, and before the client of the store is closed.
func (r *Runner) Shutdown(ctx context.Context) error { return r.backlog.Shutdown(ctx) }

// Do returns the response of the operation that key names. If an earlier attempt has completed the operation, Do
// returns the stored response, and replayed is true. Otherwise Do runs work, and stores and returns its response.
//
// The context of work has the operation ([FromContext]). It ends with ctx. If the claim is lost, or its lease is about to lapse,
// the context also ends, with the cause [ErrClaimLost].
//
// If work returns an error, nothing is stored, the operation may be tried again, and Do returns that error. The same
// holds if work panics or calls [runtime.Goexit]. With [Refuse], however, a panic or Goexit leaves the claim to lapse,
// as a crash does.
//
// If work returns a response that no store can keep, with Fields of another form or with a status that is neither zero nor
// one of HTTP, the operation is completed without it: Do returns an error, and later calls [ErrNotReplayable].
//
// [Decide] changes what a response or an error means. If the store does not take the response in time, Do returns it
// all the same. It is then stored in the background (see [Runner.Shutdown]).
//
// Payload is what the operation works on. A key that comes back with another payload is refused. A refusal is an
// [*Error] that wraps one of the sentinels of this package: [ErrInProgress], [ErrKeyReused], [ErrNotReplayable],
// [ErrOutcomeUnknown], [ErrClaimLost], [ErrKeyInvalid] for a key without ID, [ErrUserQuota], or
// [ErrUnavailable].
func (r *Runner) Do(ctx context.Context, key Key, payload []byte, work func(context.Context) (Response, error)) (resp Response, replayed bool, err error) {
	if key.ID == "" {
		err := fmt.Errorf("%w: no ID", ErrKeyInvalid)
		r.events.report(ctx, &Event{Outcome: OutcomeRejected, Err: err})
		return Response{}, false, refusalFor(err)
	}
	s := &settlement{admission: admission{request: request{
		runner: r, key: key.bounded(), fingerprint: sha256.Sum256(payload), ctx: ctx,
	}}}
	replay, err := s.admit()
	if err != nil {
		return Response{}, false, err
	}
	if replay != nil {
		s.report(ctx)
		return replay.Clone(), true, nil
	}
	var failure error
	s.attempt = new(attempt)
	err = s.executeAttempt(ctx, func(ctx context.Context) {
		resp, failure = work(ctx)
		failure = s.outcome.judgeWork(resp, failure, s.operation.decided())
	})
	resp.Note = s.event.Note // as in a replay
	return resp.Clone(), false, cmp.Or(err, failure)
}

// judgeWork sets the outcome of work that has returned a response or failed, and returns the error for the caller of Do.
func (o *attemptOutcome) judgeWork(resp Response, failure error, decided Verdict) error {
	kept := resp.Clone() // because the response stays work's to change
	if decided == Tombstone {
		kept = resp.tombstone()
	}
	f := fateOfWork(decided, failure)
	if unfit := resp.checkStorable(); unfit != nil && f == fateKept {
		kept, failure = Response{Omitted: true}, fmt.Errorf("idempotency: the response of work cannot be stored: %v", unfit)
	}
	*o = attemptOutcome{ending: answered, status: resp.Status, fate: f, kept: kept, cause: failure}
	return failure
}

// fateOfWork returns what becomes of the record when work has returned err. An error is never stored.
func fateOfWork(decided Verdict, err error) fate {
	switch {
	case decided == Unknown:
		return fateUnknown
	case decided == Free:
		return fateFreed
	case err != nil:
		return fateFailed
	default:
		return fateKept
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
