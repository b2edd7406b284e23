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

// Runner runs operations once for each key. Runner is the engine of [Middleware] without HTTP, for message consumers,
// jobs and further protocols. A Runner is safe for concurrent use.
type Runner struct {
	store             Store
	resolver          Resolver // nil without Reconcile
	isImmediate       bool     // the store never waits, so calls of the store need no deadline
	readsRemaining    bool     // replays tell until when the answer is kept
	opts              RunnerOptions
	eventReporter     eventReporter
	waitingRequests   waitingRequests
	reconciliations   reconciliations
	leaseSettings     leaseSettings
	settlementBacklog *backlog.Backlog
}

// waitingRequests are the requests that wait for the end of another attempt.
type waitingRequests struct {
	pollGroup  polling.Group[Key, Record]
	userShares bounds.Shares // limits the waiting requests of each user; unlimited for a Runner without HTTP
}

// NewRunner returns a Runner that keeps its records in store. The error lists all faults of opts, and of the options of
// the store.
func NewRunner(store Store, opts RunnerOptions) (*Runner, error) {
	opts = opts.withDefaults()
	err := errors.Join(validateStore(store, opts), opts.validate())
	var resolver Resolver
	if opts.Reconcile != nil && store != nil {
		found, missing := findAbility[Resolver](store, "Reconcile")
		resolver, err = found, errors.Join(err, missing)
	}
	if err != nil {
		return nil, err
	}
	return &Runner{
		store: store, resolver: resolver, isImmediate: isImmediateStore(store), opts: opts,
		eventReporter: eventReporter{opts.Observer, opts.Logger},
		leaseSettings: newLeaseSettings(opts), settlementBacklog: backlog.New(),
	}, nil
}

// isImmediateStore reports whether store says that calls never wait, see [Immediate].
func isImmediateStore(store Store) bool {
	s, ok := store.(Immediate)
	return ok && s.Immediate()
}

// Shutdown waits for the work in the background: storing the answers that the store did not take in time (see
// [OutcomeUnrecorded]), and releasing the claims for which the store's reply was lost. When ctx ends, Shutdown stops
// the work and returns an error with the number of unsettled operations. After the call of Shutdown, no new work goes
// to the background.
//
// Call Shutdown after all operations have ended, and before closing the client of the store.
func (r *Runner) Shutdown(ctx context.Context) error { return r.settlementBacklog.Shutdown(ctx) }

// Do returns the response of the operation with the given key. If an earlier attempt has completed the operation, Do
// returns the stored response, and replayed is true. Otherwise Do runs work, stores the response of work, and returns
// the response.
//
// The context of work is derived from ctx and carries the operation, see [FromContext]. If the claim is lost, or the
// lease is about to lapse, the context ends with the cause [ErrClaimLost].
//
// If work returns an error, Do stores no response and returns the error, and the operation may be tried again. A panic
// or [runtime.Goexit] of work has the same effect on the operation. But with [Refuse], a panic or Goexit leaves the
// operation abandoned, as a crash does, and the lease ends at once.
//
// A response with invalid Fields, or with a status that is neither zero nor an HTTP status, cannot be stored. The
// operation is completed without the response: Do returns an error, and later calls return [ErrNotReplayable].
//
// [Decide] changes the meaning of a response or an error. If the store does not take the response in time, Do returns
// the response all the same, and the response is stored in the background (see [Runner.Shutdown]).
//
// The payload is the input of the operation. A key used again with another payload is refused. A refusal is an
// [*Error] that wraps one of these errors:
//
//   - [ErrInProgress]: another attempt is running, and has not ended within RunnerOptions.Wait.
//   - [ErrKeyReused]: the key was used with another payload.
//   - [ErrNotReplayable]: the operation is completed, but its response was not kept.
//   - [ErrOutcomeUnknown]: an earlier attempt was abandoned, and RunnerOptions.Abandoned is [Refuse].
//   - [ErrClaimLost]: the lease lapsed or may have lapsed, before or while work ran.
//   - [ErrKeyInvalid]: the key has no ID.
//   - [ErrUserQuota]: the user has used up a share of the store.
//   - [ErrUnavailable]: the store has failed.
func (r *Runner) Do(
	ctx context.Context, key Key, payload []byte, work func(context.Context) (Response, error),
) (resp Response, replayed bool, err error) {
	if key.ID == "" {
		err := fmt.Errorf("%w: no ID", ErrKeyInvalid)
		r.eventReporter.deliverEvent(ctx, &Event{Outcome: OutcomeRejected, Err: err})
		return Response{}, false, refusalFor(err)
	}
	s := &settlement{admission: admission{request: request{
		runner: r, key: key.Bounded().cloneParts(), fingerprint: sha256.Sum256(payload), ctx: ctx,
	}}}
	replay, err := s.admitRequest()
	if err != nil {
		return Response{}, false, err
	}
	if replay != nil {
		s.reportEvent(ctx)
		return replay.Clone(), true, nil
	}
	var failure error
	s.attempt = new(attempt)
	err = s.executeAttempt(ctx, func(ctx context.Context) {
		resp, failure = work(ctx)
		failure = s.outcome.judgeWork(resp, failure, s.operation.loadVerdict())
	})
	resp.Note = s.event.Note // a replay has the note, too
	return resp.Clone(), false, cmp.Or(err, failure)
}

// judgeWork sets the outcome by the results of work and the verdict, and returns the error for the caller of Do.
func (o *attemptOutcome) judgeWork(resp Response, failure error, verdict Verdict) error {
	stored := resp.Clone() // work may go on changing its own response
	if verdict == Tombstone {
		stored = resp.toTombstone()
	}
	action := chooseWorkAction(verdict, failure)
	if invalid := resp.checkStorable(); invalid != nil && action == actionComplete {
		stored, failure = Response{Omitted: true}, fmt.Errorf("idempotency: the response of work cannot be stored: %v", invalid)
	}
	cause := failure
	if failure == nil && action != actionComplete {
		cause = errNotKept
	}
	*o = attemptOutcome{
		ending: endingAnswered, status: resp.Status, recordAction: action, storedResponse: stored, notStoredCause: cause,
	}
	return failure
}

// chooseWorkAction returns the action on the record after work has returned err. An error is never stored.
func chooseWorkAction(verdict Verdict, err error) recordAction {
	switch {
	case verdict == Unknown:
		return actionAbandon
	case verdict == Free:
		return actionFree
	case err != nil:
		return actionRelease
	default:
		return actionComplete
	}
}

// DoJSON is [Runner.Do] for work with a value as the result. The value is stored as JSON. DoJSON always returns a value
// decoded from the stored JSON, even the first time.
//
// If JSON cannot encode the value, the operation is completed all the same. The first call returns the error of
// [json.Marshal]. Later calls return [ErrNotReplayable] without running work again.
func DoJSON[T any](
	ctx context.Context, r *Runner, key Key, payload []byte, work func(context.Context) (T, error),
) (result T, replayed bool, err error) {
	var encodeErr error
	resp, replayed, err := r.Do(ctx, key, payload, func(ctx context.Context) (Response, error) {
		value, err := work(ctx)
		if err != nil {
			return Response{}, err
		}
		body, err := json.Marshal(value)
		encodeErr = err
		return Response{Body: body, Omitted: err != nil}, nil
	})
	if err == nil {
		err = encodeErr
	}
	if err != nil {
		return result, replayed, err
	}
	if err := json.Unmarshal(resp.Body, &result); err != nil {
		return result, replayed, fmt.Errorf("%w: %w", ErrRecordInvalid, err)
	}
	return result, replayed, nil
}
