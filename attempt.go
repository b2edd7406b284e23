package idempotency

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idempotency-go/idempotency/internal/checkpoint"
	"github.com/idempotency-go/idempotency/internal/polling"
)

// attempt is one run of a handler, with its operation, lease and steps. Goroutines that the handler left behind may use
// the attempt after the end of the request, and so may the last renewal. For that reason an attempt never goes back to
// a pool.
type attempt struct {
	operation operationContext
	lease     lease
	steps     atomic.Pointer[checkpoint.Steps] // nil before the first step
}

// errInterrupted is the reason to abandon an attempt whose handler panicked or called [runtime.Goexit].
var errInterrupted = errors.New("idempotency: the handler panicked or exited")

// crashOutcome is the outcome of an attempt until another outcome is set. A handler that panics, or calls
// [runtime.Goexit], leaves crashOutcome, unless overflowSettler has completed the record before.
var crashOutcome = attemptOutcome{ending: endingInterrupted, recordAction: actionAbandon, notStoredCause: errInterrupted}

// executeAttempt runs work as an attempt at the operation, and settles the claim by the outcome at the end of work, even
// if work panics or calls [runtime.Goexit]. The panic or Goexit goes on afterwards. Without a claim, as FailOpen allows, executeAttempt only runs work and reports. A refusal replaces the
// response of work.
func (s *settlement) executeAttempt(ctx context.Context, work func(context.Context)) (refusal error) {
	ctx = s.attempt.attachToContext(ctx, &s.admission)
	s.outcome = crashOutcome
	if s.claim == nil {
		defer s.reportUnprotected(ctx)
		s.runWork(ctx, work)
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer func() { refusal = s.settleClaim(ctx) }()
	s.lease.storeCtx, s.lease.cancelAttempt = s.detachedContext(), cancel
	s.lease.startRenewals(s.requestedAt)
	s.runWork(ctx, work)
	return nil
}

// attachToContext fills the attempt from the admission, and returns ctx with the attempt as a value. The attempt number
// is 0 without a claim.
func (a *attempt) attachToContext(ctx context.Context, admitted *admission) context.Context {
	runner := admitted.runner
	a.operation.key, a.operation.attemptNumber, a.operation.store = admitted.key, admitted.record.Attempt, runner.store
	a.operation.fingerprint = admitted.fingerprint
	a.lease.leaseSettings, a.lease.claim = &runner.leaseSettings, admitted.claim
	return context.WithValue(ctx, checkpoint.Key{}, a)
}

// runWork runs work, and notes in the event how long the run took and what the handler has annotated. After work has
// ended, no step can begin, even if work panics.
func (s *settlement) runWork(ctx context.Context, work func(context.Context)) {
	began := s.runner.eventReporter.currentTime()
	defer func() {
		s.event.Work = s.runner.eventReporter.elapsedSince(began)
		s.event.Note = s.attempt.operation.loadNote()
		s.endSteps()
	}()
	work(ctx)
}

// Steps returns the steps of the attempt. Package step finds the method by the value in the context.
func (a *attempt) Steps() *checkpoint.Steps {
	if steps := a.steps.Load(); steps != nil {
		return steps
	}
	steps := &checkpoint.Steps{HasClaim: a.lease.claim != nil}
	if _, ok := a.lease.claim.(Checkpointer); ok {
		steps.Keeper, steps.Timeout, steps.MustLoad = a, a.lease.renewTimeout, a.operation.attemptNumber > 1
	}
	a.steps.CompareAndSwap(nil, steps)
	return a.steps.Load()
}

// CheckLease returns [ErrClaimLost] if the lease may have lapsed.
func (a *attempt) CheckLease() error { return a.lease.checkLease() }

// Checkpoint stores a checkpoint by the claim. [ErrRestored] counts as success, and is noted for the outcome of the
// attempt.
func (a *attempt) Checkpoint(ctx context.Context, name string, data []byte) ([]byte, error) {
	stored, err := a.lease.claim.(Checkpointer).Checkpoint(ctx, name, data)
	if errors.Is(err, ErrRestored) {
		a.lease.wasRestored.Store(true)
		return stored, nil
	}
	return stored, err
}

// Checkpoints returns the stored checkpoints of the operation.
func (a *attempt) Checkpoints(ctx context.Context) (map[string][]byte, error) {
	return a.lease.claim.(Checkpointer).Checkpoints(ctx)
}

// CheckpointTx runs a step in a transaction of the claim. Package step finds the method by its name.
func (a *attempt) CheckpointTx(ctx context.Context, step *TxStep) ([]byte, error) {
	claim, ok := a.lease.claim.(TxCheckpointer)
	if !ok {
		return nil, fmt.Errorf("the store has no transactions for steps: %w", errors.ErrUnsupported)
	}
	return claim.CheckpointTx(ctx, step)
}

// endSteps keeps further steps from beginning.
func (a *attempt) endSteps() {
	if !a.steps.CompareAndSwap(nil, checkpoint.Ended) {
		a.steps.Load().End()
	}
}

// leaseSettings are shared by the leases of all claims of a Runner.
type leaseSettings struct {
	leaseDuration time.Duration
	renewInterval time.Duration // from one renewal to the next
	renewTimeout  time.Duration // the longest duration of one call of Extend
	renewSlots    chan struct{} // one for each running renewal, because all leases are due at once after a stall
}

// maxConcurrentRenewals bounds how many renewals of a Runner call the store at a time.
const maxConcurrentRenewals = 64

// newLeaseSettings returns the settings for opts. A lease is renewed after a third of its duration, so that a renewal can
// fail and be repeated before the lease lapses.
func newLeaseSettings(opts RunnerOptions) leaseSettings {
	return leaseSettings{
		leaseDuration: opts.Lease, renewInterval: opts.Lease / 3, renewTimeout: min(opts.StoreTimeout, opts.Lease/3),
		renewSlots: make(chan struct{}, maxConcurrentRenewals),
	}
}

// safeDuration is how long the owner acts on a lease without a renewal: the lease less a sixteenth. The margin gives
// the handler time to stop before another attempt can take over.
func (l *leaseSettings) safeDuration() time.Duration { return l.leaseDuration - l.leaseDuration/16 }

// mustStopActing reports whether safeDuration has passed since requestedAt. The store was asked for the lease at
// requestedAt, so the lease began later, and ends later than the owner assumes.
func (l *leaseSettings) mustStopActing(requestedAt time.Time) bool {
	return time.Since(requestedAt) >= l.safeDuration()
}

// lease renews the lease of a claim until the claim is settled. An owner that acts on a lapsed lease would run beside
// the next attempt. To prevent that, lease cancels the attempt
//
//   - when the store says that the claim is lost;
//   - when renewals have failed until shortly before the lease lapses, by the clock of the process.
type lease struct {
	*leaseSettings
	claim         Claim
	storeCtx      context.Context         // the parent of the contexts of renewals
	cancelAttempt context.CancelCauseFunc // ends the context of the handler
	wasRestored   atomic.Bool             // the store had lost the record and has restored the record

	mu            sync.Mutex
	requestedAt   time.Time          // when the store was asked for the current lease
	renewTimer    *time.Timer        // starts the next renewal; nil when the claim is settled
	cancelRenewal context.CancelFunc // ends the running or last renewal; nil before the first
}

// startRenewals begins to renew a lease that the store was asked for at requestedAt.
func (l *lease) startRenewals(requestedAt time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requestedAt = requestedAt
	l.renewTimer = time.AfterFunc(time.Until(requestedAt.Add(l.renewInterval)), l.renewLease)
}

// renewLease renews the lease, and repeats a failed renewal as long as the owner may act on the lease. A separate timer
// then cancels the attempt, because a database driver may ignore the deadline of its context.
func (l *lease) renewLease() {
	ctx, safeUntil, isClaimOpen := l.beginRenewal()
	if !isClaimOpen {
		return
	}
	defer l.cancelRenewal()
	alarm := time.AfterFunc(time.Until(safeUntil), l.loseClaim)
	defer alarm.Stop()
	for ctx.Err() == nil {
		requestedAt := time.Now()
		switch err := l.extendLease(ctx); {
		case err == nil, errors.Is(err, ErrRestored):
			if err != nil {
				l.wasRestored.Store(true)
			}
			l.scheduleRenewal(requestedAt)
			return
		case errors.Is(err, ErrClaimLost):
			l.loseClaim()
			return
		}
		polling.Sleep(ctx, l.leaseDuration/20, nil)
	}
	l.loseClaim() // the alarm may be late, or the process stood still for too long
}

// beginRenewal returns the context of a renewal, and until when the owner may act on the lease unless the renewal
// succeeds. If the claim is settled, isClaimOpen is false.
func (l *lease) beginRenewal() (ctx context.Context, safeUntil time.Time, isClaimOpen bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.renewTimer == nil {
		return nil, safeUntil, false
	}
	safeUntil = l.requestedAt.Add(l.safeDuration())
	ctx, l.cancelRenewal = context.WithDeadline(l.storeCtx, safeUntil)
	return ctx, safeUntil, true
}

// extendLease calls Extend once, after waiting for a free slot.
func (l *lease) extendLease(ctx context.Context) error {
	select {
	case l.renewSlots <- struct{}{}:
		defer func() { <-l.renewSlots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, l.renewTimeout)
	defer cancel()
	return l.claim.Extend(ctx, l.leaseDuration)
}

// scheduleRenewal starts the timer of the next renewal, after the store granted the lease requested at requestedAt.
func (l *lease) scheduleRenewal(requestedAt time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requestedAt = requestedAt
	if l.renewTimer != nil {
		l.renewTimer.Reset(time.Until(requestedAt.Add(l.renewInterval)))
	}
}

// loseClaim cancels the attempt with the cause [ErrClaimLost], unless the claim is settled.
func (l *lease) loseClaim() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.renewTimer != nil {
		l.cancelAttempt(ErrClaimLost)
	}
}

// checkLease returns [ErrClaimLost] if the lease may have lapsed. checkLease reads the clock, because the timers that
// cancel the attempt are late after the process has stood still.
func (l *lease) checkLease() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.renewTimer != nil && l.mustStopActing(l.requestedAt) {
		return ErrClaimLost
	}
	return nil
}

// stopRenewals ends the renewals without waiting for a running one.
func (l *lease) stopRenewals() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.renewTimer == nil {
		return
	}
	l.renewTimer.Stop()
	l.renewTimer = nil
	if l.cancelRenewal != nil {
		l.cancelRenewal()
	}
}
