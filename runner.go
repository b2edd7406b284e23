package idempotency

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/idempotency-go/idempotency/internal/backlog"
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
	waiters   polling.Group[Key, Record]
	questions questions
	leases    leases
	backlog   *backlog.Backlog
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
// The context of work has the operation ([FromContext]). It ends with ctx. It also ends if the claim is lost, or is about to lapse; its cause is then [ErrClaimLost].
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
	x := &execution{runner: r, key: key.bounded(), request: ctx}
	replay, err := x.admit(sha256.Sum256(payload))
	if err != nil {
		return Response{}, false, err
	}
	if replay != nil {
		return replay.Clone(), true, nil
	}
	var failure error
	x.attempt = new(attempt)
	err = x.execute(ctx, func(ctx context.Context) {
		resp, failure = work(ctx)
		decided := x.operation.decided()
		kept := resp.Clone() // which is not work's to change
		if decided == Tombstone {
			kept = resp.tombstone()
		}
		f := fateOfWork(decided, failure)
		if unfit := resp.checkStorable(); unfit != nil && f == fateKept {
			kept, failure = Response{Omitted: true}, fmt.Errorf("idempotency: the response of work cannot be stored: %v", unfit)
		}
		x.conclude(resp.Status, f, kept, failure)
	})
	resp.Note = x.event.Note // as in a replay
	return resp.Clone(), false, cmp.Or(err, failure)
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

// admit asks the store what is to be done: x is to be executed, unless there is a replay of it or an error, which is a
// refusal.
func (x *execution) admit(fp Fingerprint) (replay *Response, refusal error) {
	x.fingerprint, x.event.Began = fp, x.runner.events.now()
	err := x.acquire(fp)
	abandoned := x.runner.resolver != nil && err == nil && x.claim == nil && judge(&x.record, fp) == ErrOutcomeUnknown
	if abandoned {
		if refusal := x.reconcile(); refusal != nil {
			return nil, refusal
		}
		err = x.acquire(fp)
	}
	switch {
	case err != nil && x.runner.failsOpen(err) && x.event.Waited == 0 && !abandoned:
		x.record, x.claim = Record{}, nil // a claim that was granted unknown to us keeps others away for a lease
		x.event.Outcome, x.event.Err = OutcomeUnprotected, err
		return nil, nil
	case err != nil:
		refusal = x.refuse(outcomeOf(err), err)
		if x.claim != nil {
			x.releaseLater()
		}
		return nil, refusal
	case x.claim != nil && x.runner.leases.hasLapsed(x.since):
		return nil, x.giveUp()
	case x.claim != nil:
		return nil, nil
	}
	if err := judge(&x.record, fp); err != nil {
		return nil, x.reportRefusal(err, fp)
	}
	return x.replay()
}

// giveUp releases a claim that was so long on its way that its lease may have lapsed.
func (x *execution) giveUp() (refusal error) {
	err := x.free() // with Refuse too, because the handler has not run
	return x.refuse(OutcomeClaimLost, cmp.Or(err, ErrClaimLost))
}

// refuse reports that the request is refused because of err.
func (x *execution) refuse(o Outcome, err error) (refusal error) {
	x.event.Outcome, x.event.Err = o, err
	x.report(x.request)
	return refusalFor(err)
}

// replay returns the stored response, if the request may get it.
func (x *execution) replay() (replay *Response, refusal error) {
	replay = x.record.Response
	x.event.Outcome, x.event.Status, x.event.Note = OutcomeReplayed, replay.Status, replay.Note
	x.event.FromCache = x.record.FromCache
	x.event.keeps(replay)
	if x.caller != nil {
		if err := x.caller.mayReplay(replay); err != nil {
			return nil, x.refuse(outcomeOf(err), err)
		}
	}
	x.report(x.request)
	return replay, nil
}

// failsOpen reports whether the handler runs without a claim, as the store has failed with err. A store that works, but
// has no room or no connection, is no reason: anybody may be able to bring that about. Nor is one that never works.
func (r *Runner) failsOpen(err error) bool {
	down := !errors.Is(err, ErrRecordInvalid) && !errors.Is(err, ErrUserQuota) && !errors.Is(err, ErrStoreFull) &&
		!errors.Is(err, ErrStoreBusy) && !errors.Is(err, errors.ErrUnsupported)
	return r.opts.FailOpen && down
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

// begin asks the store once. What is at hand needs no deadline, which would cost more than the rest of the step.
func (x *execution) begin(fp Fingerprint) (err error) {
	r := x.runner
	x.claim = nil
	ctx, cancel := x.step(r.opts.StoreTimeout)
	defer cancel()
	request := ClaimRequest{Fingerprint: fp, Lease: r.opts.Lease, TTL: r.opts.TTL, TakeOver: r.opts.Abandoned == ReExecute}
	x.since = time.Now()
	x.record, x.claim, err = r.store.Begin(ctx, x.key, request)
	return err
}

// reconcile asks Options.Reconcile what became of the abandoned operation in x.record, and has the store end the operation
// accordingly, as an operator does. The request holds no claim meanwhile. If there is no refusal, the request goes the
// usual way again: the operation was ended, or its record has changed.
func (x *execution) reconcile() (refusal error) {
	r := x.runner
	answered, first := r.questions.begin(x.key)
	if !first {
		return x.awaitAnswer(answered)
	}
	defer r.questions.end(x.key)
	entry, err := x.inspect()
	switch {
	case errors.Is(err, ErrNoRecord):
		return nil
	case err != nil:
		return x.refuse(outcomeOf(err), err)
	case entry.State != StateAbandoned || entry.Attempt != x.record.Attempt || !entry.Created.Equal(x.record.Created):
		return nil
	}
	resolution, err := x.ask(entry)
	if err != nil {
		return x.refuseUnknown(err)
	}
	switch err := x.resolve(entry, resolution); {
	case errors.Is(err, ErrEntryChanged), errors.Is(err, ErrInProgress), errors.Is(err, ErrNoRecord):
		return nil
	case err != nil:
		return x.refuse(outcomeOf(err), err)
	}
	x.reportResolution(entry, resolution)
	return nil
}

// awaitAnswer waits, as long as the request may, until another request of this process has heard what became of the
// operation. A request that may not wait is refused.
func (x *execution) awaitAnswer(answered <-chan struct{}) (refusal error) {
	waited := x.wait(func(ctx context.Context) {
		select {
		case <-answered:
		case <-ctx.Done():
		}
	})
	if !waited {
		return x.reportRefusal(ErrOutcomeUnknown, x.fingerprint)
	}
	return nil
}

// inspect returns the entry of the operation.
func (x *execution) inspect() (Entry, error) {
	ctx, cancel := x.step(x.runner.opts.StoreTimeout)
	defer cancel()
	return x.runner.resolver.Inspect(ctx, x.key)
}

// ask calls Reconcile, for half a lease at most, and returns the resolution that its answer means.
func (x *execution) ask(entry Entry) (Resolution, error) {
	opts := &x.runner.opts
	ctx, cancel := context.WithTimeout(x.detached(), opts.Lease/2)
	defer cancel()
	operation := Operation{Key: x.key, ID: x.key.OperationID(), Attempt: entry.Attempt, Fingerprint: x.fingerprint}
	resp, err := opts.Reconcile(ctx, operation)
	resolution := Resolution{Response: resp, At: time.Now(), TTL: opts.TTL}
	err = cmp.Or(err, ctx.Err())
	if err == nil {
		err = resolution.Validate()
	}
	return resolution, err
}

// resolve ends the operation of entry.
func (x *execution) resolve(entry Entry, resolution Resolution) error {
	ctx, cancel := x.step(x.runner.opts.StoreTimeout)
	defer cancel()
	return x.runner.resolver.Resolve(ctx, entry, resolution)
}

// refuseUnknown reports and returns that Reconcile has not found out what became of the operation. Whatever err is, the
// client is told no more than that.
func (x *execution) refuseUnknown(err error) *Error {
	refusal := refusalFor(ErrOutcomeUnknown)
	refusal.Err = fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	x.event.Outcome, x.event.Err = OutcomeUnknown, refusal.Err
	x.report(x.request)
	return refusal
}

// reportResolution reports that Reconcile has ended the operation. What becomes of the request is another event.
func (x *execution) reportResolution(entry Entry, resolution Resolution) {
	of, resolved := *x, resolution.Resolved(entry)
	of.event.Outcome, of.event.Resolved = OutcomeNotHappened, &resolved
	if resp := resolution.Response; resp != nil {
		of.event.Outcome, of.event.Status, of.event.Note = OutcomeHappened, resp.Status, resp.Note
		of.event.keeps(resp)
	}
	of.report(x.request)
}

// questions are those that Reconcile is asked at the moment: one for each operation at a time.
type questions struct {
	mu   sync.Mutex
	open map[Key]chan struct{} // closed at the end of the question
}

// begin begins the question about an operation, unless it is asked already: first is false then, and answered is closed
// when that question ends.
func (q *questions) begin(key Key) (answered <-chan struct{}, first bool) {
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

// acquire begins an attempt. If another one is running, it waits for that to end.
func (x *execution) acquire(fp Fingerprint) error {
	err := x.begin(fp)
	x.event.Claim = cmp.Or(x.event.Claim, x.runner.events.since(x.event.Began))
	if x.blocked(fp, err) {
		err = x.awaitTurn(fp, err)
	}
	return err
}

// awaitTurn waits, as long as the request may, for the end of the attempt that is running, and begins one then.
func (x *execution) awaitTurn(fp Fingerprint, err error) error {
	x.wait(func(ctx context.Context) {
		for x.blocked(fp, err) && ctx.Err() == nil {
			found, polled := x.runner.waiters.Await(ctx, x.key, func() (found *Record, changed bool) {
				err = x.begin(fp)
				if err == nil && x.claim == nil { // nobody else may use a claim
					record := x.record
					found = &record
				}
				return found, !x.blocked(fp, err)
			})
			switch {
			case polled || found == nil:
			case found.Fingerprint == fp:
				x.record = *found
			default: // of another request: all that the record says of it is that its fingerprint is another one
				err = x.begin(fp)
			}
		}
	})
	return err
}

// wait calls do with a context that ends with the request, or when the request has waited for Options.Wait. It returns
// false, and does not call do, if the request may not wait.
func (x *execution) wait(do func(context.Context)) bool {
	left := x.runner.opts.Wait - x.event.Waited
	if left <= 0 {
		return false
	}
	if x.caller != nil {
		if !x.caller.mayWait() {
			return false
		}
		defer x.caller.waited()
	}
	began := time.Now()
	defer func() { x.event.Waited += time.Since(began) }()
	ctx, cancel := context.WithTimeout(x.request, left)
	defer cancel()
	do(ctx)
	return true
}

// blocked reports whether the key is held by an attempt of the same request that goes on.
func (x *execution) blocked(fp Fingerprint, err error) bool {
	return err == nil && x.claim == nil && judge(&x.record, fp) == ErrInProgress
}

// wake lets a request of this process that waits for key look at once.
func (r *Runner) wake(key Key) {
	if r.opts.Wait > 0 {
		r.waiters.Wake(key)
	}
}

// judge says what a record that holds the key means for a request with fingerprint fp: nil that its response is the
// answer. That the key was reused outranks everything else.
func judge(rec *Record, fp Fingerprint) error {
	switch {
	case rec.Fingerprint != fp:
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

var refusalOutcomes = map[error]Outcome{
	ErrKeyReused:      OutcomeKeyReused,
	ErrNotReplayable:  OutcomeNotReplayable,
	ErrInProgress:     OutcomeInProgress,
	ErrOutcomeUnknown: OutcomeUnknown,
}

// reportRefusal reports and returns that another record holds the key.
func (x *execution) reportRefusal(err error, fp Fingerprint) error {
	refusal := refusalFor(err)
	x.event.Outcome, x.event.Err = refusalOutcomes[err], err
	switch {
	case err == ErrKeyReused:
		x.event.Fingerprints = &[2]Fingerprint{x.record.Fingerprint, fp}
	case err == ErrNotReplayable:
		x.event.Status, refusal.OriginalStatus = x.record.Response.Status, x.record.Response.Status
		x.event.keeps(x.record.Response)
	case (err == ErrInProgress || err == ErrOutcomeUnknown) && x.event.Waited > 0 && x.request.Err() != nil:
		x.event.Outcome, x.event.Err = OutcomeClientLeft, context.Cause(x.request)
	case err == ErrInProgress:
		x.event.LeaseLeft = x.record.LeaseLeft
		if x.record.LeaseLeft < x.runner.opts.Lease/2 {
			refusal.RetryAfter = x.record.LeaseLeft // its owner has missed a renewal, and may be dead
		}
	}
	x.report(x.request)
	return refusal
}
