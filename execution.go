package idempotency

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/idempotency-go/idempotency/internal/backlog"
	"github.com/idempotency-go/idempotency/internal/checkpoint"
	"github.com/idempotency-go/idempotency/internal/polling"
)

// fate is what becomes of the record of an operation when an attempt at it ends.
//
// An attempt begins with the fate that a crash would give it: unknown, with nothing kept. What happens then overwrites
// it: how the handler ended, its verdict, and Storable (exchange.fate has the table). [execution.end] carries the fate
// out. For an answer that is kept and too large, exchange.outgrown does so before, if the store lets it.
//
//	fate      what end asks of the store    what the next attempt finds
//	unknown   Release, or with Refuse       the same as after failed; with Refuse, a lapsed
//	          nothing: the lease lapses     lease: outcome-unknown
//	failed    Release, kept for TTL         it may run, if it is the same request
//	freed     Release, not kept             a new operation, whatever the request; the same as after
//	                                        failed if an earlier attempt may have done something
//	kept      Complete                      the response
type fate int8

const (
	fateUnknown fate = iota
	fateFailed
	fateFreed
	fateKept
)

// execution is one attempt at an operation: from the question to the store to the end of the claim.
type execution struct {
	runner  *Runner
	key     Key
	request context.Context
	lasting context.Context // the same without an end; nil: not needed yet
	caller  caller          // nil in a Runner

	fingerprint Fingerprint // of the request
	record      Record
	claim       Claim     // nil: the attempt holds none, or none any more
	since       time.Time // the lease did not begin before

	*attempt // nil: no work runs, or has run
	fate     fate
	kept     Response // what is stored, if that is the fate
	event    Event
}

// attempt is what outlives an execution, because goroutines may use it that nobody waits for: those that the handler has
// left behind, and the last renewal.
type attempt struct {
	operation operationContext
	lease     lease
	steps     atomic.Pointer[checkpoint.Steps] // nil: none has begun yet
}

// Steps returns the steps of the attempt. Package step finds it in the context.
func (a *attempt) Steps() *checkpoint.Steps {
	if steps := a.steps.Load(); steps != nil {
		return steps
	}
	steps := &checkpoint.Steps{Claimed: a.lease.claim != nil}
	if _, ok := a.lease.claim.(Checkpointer); ok {
		steps.Keeper, steps.Timeout, steps.Again = a, a.lease.timeout, a.operation.attempt > 1
	}
	a.steps.CompareAndSwap(nil, steps)
	return a.steps.Load()
}

// CheckLease returns [ErrClaimLost] if the lease may have lapsed.
func (a *attempt) CheckLease() error { return a.lease.check() }

// Checkpoint asks the claim, and notes that the store had forgotten it.
func (a *attempt) Checkpoint(ctx context.Context, name string, data []byte) ([]byte, error) {
	stored, err := a.lease.claim.(Checkpointer).Checkpoint(ctx, name, data)
	if errors.Is(err, ErrRestored) {
		a.lease.restored.Store(true)
		return stored, nil
	}
	return stored, err
}

// Checkpoints asks the claim.
func (a *attempt) Checkpoints(ctx context.Context) (map[string][]byte, error) {
	return a.lease.claim.(Checkpointer).Checkpoints(ctx)
}

// CheckpointTx asks the claim. Package step calls it by its name.
func (a *attempt) CheckpointTx(ctx context.Context, step *TxStep) ([]byte, error) {
	claim, ok := a.lease.claim.(TxCheckpointer)
	if !ok {
		return nil, fmt.Errorf("the store has no transactions for steps: %w", errors.ErrUnsupported)
	}
	return claim.CheckpointTx(ctx, step)
}

// endSteps lets no step begin any more.
func (a *attempt) endSteps() {
	if !a.steps.CompareAndSwap(nil, checkpoint.Ended) {
		a.steps.Load().End()
	}
}

// caller is the HTTP request that an execution is to answer.
type caller interface {
	// mayWait is asked before the request waits for another attempt. If it may, waited is called afterwards.
	mayWait() bool
	waited()

	// mayReplay returns the refusal of a request that may not be answered with a response from the store.
	mayReplay(*Response) error
}

// errInterrupted is the cause of the end of an attempt when its work did not return.
var errInterrupted = errors.New("idempotency: handler panicked or exited")

// execute runs work, and settles the claim whatever work does. Without a claim, as FailOpen allows, it only runs work.
// The error is a refusal, to be answered instead of the response.
func (x *execution) execute(ctx context.Context, work func(context.Context)) (refusal error) {
	ctx = x.enter(ctx)
	if x.claim == nil {
		defer x.report(ctx)
		x.run(ctx, work)
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	x.event.Err = errInterrupted
	defer func() { refusal = x.end(ctx) }() // also when work panics or calls runtime.Goexit, neither of which it stops
	x.renew(cancel)
	x.run(ctx, work)
	return nil
}

// enter returns ctx with the operation. Without a claim, its attempt is 0.
func (x *execution) enter(ctx context.Context) context.Context {
	x.operation.key, x.operation.attempt, x.operation.store = x.key, x.record.Attempt, x.runner.store
	x.operation.fingerprint = x.fingerprint
	x.lease.leases, x.lease.claim = &x.runner.leases, x.claim
	return context.WithValue(ctx, checkpoint.Key{}, x.attempt)
}

// renew renews the lease from now on.
func (x *execution) renew(cancel context.CancelCauseFunc) {
	l := &x.lease
	l.ctx, l.cancel = x.detached(), cancel
	l.start(x.since)
}

// run runs work. It notes how long work ran, and the note of the operation, which work cannot change any more.
func (x *execution) run(ctx context.Context, work func(context.Context)) {
	began := x.runner.events.now()
	defer func() {
		x.event.Work = x.runner.events.since(began)
		x.event.Note = x.operation.noted()
		x.endSteps()
	}()
	work(ctx)
}

// conclude says what the handler has come to: its status, what the answer means for the record, and why.
func (x *execution) conclude(status int, f fate, kept Response, cause error) {
	x.event.Status = status
	if x.claim != nil {
		x.fate, x.kept, x.event.Err = f, kept, cause
	}
}

// end carries out the fate of the attempt, and reports the outcome. If the store panics, the fate is unknown.
func (x *execution) end(ctx context.Context) (refusal error) {
	defer x.closed(ctx)
	if x.claim == nil { // it was completed by an answer that was too large to be kept
		return nil
	}
	f := x.fate
	x.fate = fateUnknown
	switch f {
	case fateKept:
		refusal = x.complete()
		x.fate = fateKept
	case fateFreed:
		x.event.untouched = !x.hasSteps()
		refusal = x.free()
	case fateFailed:
		refusal = x.release(x.runner.opts.TTL)
	default:
		refusal = x.abandon()
	}
	return refusal
}

// closed is the last step of an attempt. If it still has its claim, the store has panicked, or has not taken the answer.
func (x *execution) closed(ctx context.Context) {
	if x.claim != nil && x.fate != fateKept {
		x.event.Err = cmp.Or(x.event.Err, errInterrupted)
		_ = x.abandon()
	}
	x.runner.wake(x.key)
	x.report(ctx)
	if x.claim != nil {
		x.completeLater()
	}
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

// letGo ends the hold on the claim, which it returns.
func (x *execution) letGo() Claim {
	claim := x.claim
	x.claim = nil
	if x.attempt != nil {
		x.lease.stop()
	}
	return claim
}

// complete stores what is kept. It returns nil if the response may be sent. That includes that the store failed: the
// effects exist, so the answer is true. The attempt then still has its claim.
func (x *execution) complete() (refusal error) {
	if !x.kept.Omitted {
		x.kept.Note = x.event.Note
	}
	began := x.runner.events.now()
	err := x.persist(x.runner.opts.StoreTimeout)
	x.event.Completion += x.runner.events.since(began)
	x.completed(err)
	if x.event.Outcome == OutcomeClaimLost {
		return refusalFor(err)
	}
	return nil
}

// settles reports whether Complete has said what became of the record.
func settles(err error) bool {
	return err == nil || errors.Is(err, ErrRestored) || errors.Is(err, ErrClaimLost) || errors.Is(err, ErrRecordInvalid)
}

// completed sets the event to what Complete has said, and ends the hold on the claim if that is settled.
func (x *execution) completed(err error) {
	if settles(err) {
		x.letGo()
	}
	if err == nil && x.lease.restored.Load() {
		err = ErrRestored
	}
	x.event.Err = err
	switch {
	case err == nil:
		x.event.Outcome = OutcomeExecuted
		x.event.keeps(&x.kept)
	case errors.Is(err, ErrRestored):
		x.event.Outcome = OutcomeRestored
		x.event.keeps(&x.kept)
	case errors.Is(err, ErrClaimLost):
		x.event.Outcome = OutcomeClaimLost
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
func (x *execution) persist(within time.Duration) error {
	until := time.Now().Add(within)
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		err := x.completeOnce(time.Until(until))
		if settles(err) || time.Until(until) < pause || !polling.Sleep(x.detached(), pause, nil) {
			return err
		}
	}
}

// completeOnce asks the store once to store the response.
func (x *execution) completeOnce(most time.Duration) error {
	ctx, cancel := x.step(most)
	defer cancel()
	return x.claim.Complete(ctx, x.kept, x.runner.opts.TTL)
}

// completeLater goes on to store the response in the background, and to renew the lease meanwhile. It gives up when the
// response would have expired, or at the end of a Shutdown.
func (x *execution) completeLater() {
	later, told := x.inBackground(), x.detached()
	later.kept = x.kept.Clone() // its body is in a buffer that serves the next request
	size := len(later.kept.Header) + len(later.kept.Trailer) + len(later.kept.Body)
	ok := x.runner.backlog.Run(backlog.MostAnswers, size, func() {
		defer later.lease.stop()
		began := later.runner.events.now()
		later.completed(later.persist(later.runner.opts.TTL))
		later.event.Completion += later.runner.events.since(began)
		switch later.event.Outcome {
		case OutcomeUnrecorded: // which is known
			return
		case OutcomeExecuted:
			later.event.Outcome = OutcomeRecorded
		}
		later.runner.wake(later.key)
		later.reportAlone(told)
	})
	if !ok {
		x.letGo()
	}
}

// releaseLater releases a claim that the store may have granted, although its reply was lost. Until then it would block
// the key for a lease, or with Refuse leave an outcome that nobody knows.
func (x *execution) releaseLater() {
	later, began, lasts := x.inBackground(), time.Now(), x.runner.opts.Lease
	if x.runner.opts.Abandoned == Refuse {
		lasts = x.runner.opts.TTL
	}
	x.runner.backlog.Run(backlog.MostReleases, 0, func() {
		var denied time.Time // when the store first said that it does not know the claim
		for pause := firstRetry; time.Since(began) < lasts; pause = min(2*pause, lastRetry) {
			err := later.releaseOnce(later.claim, later.retention())
			unknown := errors.Is(err, ErrClaimLost)
			if unknown && denied.IsZero() {
				denied = time.Now()
			}
			// The request for the claim may still be on its way, behind that for its release.
			never := unknown && time.Since(denied) > later.runner.opts.StoreTimeout
			if err == nil || never || !polling.Sleep(later.request, pause, nil) {
				break
			}
		}
		later.runner.wake(later.key)
	})
}

// inBackground returns an execution that goes on with the claim after the request, until the end of a Shutdown.
func (x *execution) inBackground() *execution {
	ctx := x.runner.backlog.Context
	return &execution{
		runner: x.runner, key: x.key, request: ctx, lasting: ctx,
		record: x.record, claim: x.claim, attempt: x.attempt, event: x.event,
	}
}

// hasSteps reports whether this attempt may have stored a step, which is an effect.
func (x *execution) hasSteps() bool { return x.attempt != nil && x.steps.Load().Kept() }

// free ends the claim of an attempt that has done nothing. The key is as if it had never been used, unless an earlier
// attempt may have done something: then the record stays, and only the same request may be tried again.
func (x *execution) free() (refusal error) {
	if x.record.Attempt == 1 && !x.hasSteps() {
		return x.release(0)
	}
	return x.release(x.retention())
}

// retention returns how long to keep the record of an attempt that has done nothing but may have stored a step. Earlier
// attempts may have had effects, so the record is kept for as long as without this attempt, or for TTL if that is not known,
// as after a lost reply (Attempt 0).
func (x *execution) retention() time.Duration {
	opts := &x.runner.opts
	if x.hasSteps() || x.record.Remaining == 0 {
		return opts.TTL
	}
	return max(x.record.Remaining, min(2*opts.Lease, opts.TTL))
}

// release ends the claim without a response, so that the operation may be tried again, and keeps the record for ttl. A
// ttl of zero frees the key. The result is a refusal if another attempt has taken over. If the store fails, the lease lapses by
// itself.
func (x *execution) release(ttl time.Duration) (refusal error) {
	began := x.runner.events.now()
	err := x.releaseOnce(x.letGo(), ttl)
	x.event.Completion += x.runner.events.since(began)
	x.event.Outcome = OutcomeReleased
	if err != nil {
		x.event.Err = errors.Join(err, x.event.Err)
	}
	if errors.Is(err, ErrClaimLost) {
		x.event.Outcome = OutcomeClaimLost
		return refusalFor(x.event.Err)
	}
	return nil
}

// releaseOnce asks the store once to release the claim.
func (x *execution) releaseOnce(claim Claim, ttl time.Duration) error {
	ctx, cancel := x.step(x.runner.opts.StoreTimeout)
	defer cancel()
	return claim.Release(ctx, ttl)
}

// abandon ends the claim of an attempt of which nobody can say how far it came. With Refuse, it is left to lapse, as
// after a crash.
func (x *execution) abandon() (refusal error) {
	if x.runner.opts.Abandoned == ReExecute {
		return x.release(x.runner.opts.TTL)
	}
	x.letGo()
	x.event.Outcome = OutcomeAbandoned
	return nil
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
	e.Key, e.Attempt, e.Total = x.key, x.record.Attempt, x.runner.events.since(e.Began)
	x.runner.events.report(ctx, e)
}
