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

// attempt is what a handler may use for as long as it likes: the operation, the lease and the steps. Goroutines that the handler
// has left behind use the attempt after its end, and so does the last renewal.
type attempt struct {
	operation operationContext
	lease     lease
	steps     atomic.Pointer[checkpoint.Steps] // nil: no step has begun
}

// errInterrupted is the cause of the end of an attempt whose handler did not return.
var errInterrupted = errors.New("idempotency: handler panicked or exited")

// crashed is the outcome with which each attempt begins, because a crash would give it that one.
var crashed = attemptOutcome{ending: interrupted, fate: fateUnknown, cause: errInterrupted}

// executeAttempt runs work as an attempt at the operation, and settles the outcome that work sets. A panic or
// runtime.Goexit of work is settled, too, and goes on afterwards. Without a claim, as FailOpen allows, executeAttempt only runs work. The
// error is a refusal, to be answered instead of the response.
func (s *settlement) executeAttempt(ctx context.Context, work func(context.Context)) (refusal error) {
	ctx = s.attempt.enter(ctx, &s.admission)
	s.outcome = crashed
	if s.claim == nil {
		defer s.reportUnprotected(ctx)
		s.runWork(ctx, work)
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer func() { refusal = s.settle(ctx) }()
	s.lease.ctx, s.lease.cancel = s.detachedContext(), cancel
	s.lease.start(s.requestedAt)
	s.runWork(ctx, work)
	return nil
}

// enter fills the attempt from admitted, and returns ctx with it. Without a claim, the number of the attempt is 0.
func (a *attempt) enter(ctx context.Context, admitted *admission) context.Context {
	runner := admitted.runner
	a.operation.key, a.operation.attempt, a.operation.store = admitted.key, admitted.record.Attempt, runner.store
	a.operation.fingerprint = admitted.fingerprint
	a.lease.leases, a.lease.claim = &runner.leases, admitted.claim
	return context.WithValue(ctx, checkpoint.Key{}, a)
}

// runWork runs work, and notes how long it ran and the note of the operation. Work cannot change the note any more, nor begin a
// step.
func (s *settlement) runWork(ctx context.Context, work func(context.Context)) {
	began := s.runner.events.now()
	defer func() {
		s.event.Work = s.runner.events.since(began)
		s.event.Note = s.attempt.operation.noted()
		s.endSteps()
	}()
	work(ctx)
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

// Checkpoint asks the claim. It notes [ErrRestored], and does not return it.
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

// leases is what the leases of all claims of a Runner have in common.
type leases struct {
	lasts    time.Duration
	interval time.Duration // between two renewals
	timeout  time.Duration // of a renewal
	slots    chan struct{} // taken by the renewals under way: after a stall, all leases are due at once
}

// mostRenewals bounds how many renewals a Runner asks the store for at a time.
const mostRenewals = 64

func newLeases(opts RunnerOptions) leases {
	return leases{
		lasts: opts.Lease, interval: opts.Lease / 3, timeout: min(opts.StoreTimeout, opts.Lease/3),
		slots: make(chan struct{}, mostRenewals),
	}
}

// span is how long an owner relies on a lease. The margin is for what it takes the owner to hear that it must stop.
func (l *leases) span() time.Duration { return l.lasts - l.lasts/16 }

// hasLapsed reports whether the owner of a lease, which did not begin before since, must have stopped to rely on it.
func (l *leases) hasLapsed(since time.Time) bool { return time.Since(since) >= l.span() }

// lease renews the lease of a claim until the claim is settled. An owner that may have lost its lease must stop acting
// as one: the attempt is lost when the store says so, or when no renewal has succeeded until shortly before the lease
// must have lapsed, by the process's own clock.
type lease struct {
	*leases
	claim    Claim
	ctx      context.Context         // for the store
	cancel   context.CancelCauseFunc // of the attempt
	restored atomic.Bool             // the store had forgotten the claim

	mu      sync.Mutex
	since   time.Time          // the lease did not begin before
	timer   *time.Timer        // of the next renewal; nil: the claim is settled
	abandon context.CancelFunc // of the renewal under way
}

// start begins to renew the lease, which did not begin before since.
func (l *lease) start(since time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.since = since
	l.timer = time.AfterFunc(time.Until(since.Add(l.interval)), l.renew)
}

// renew renews the lease. If the store does not answer, it tries again until the lease lapses. The owner is told of that
// by a timer, since a driver may take no notice of its context.
func (l *lease) renew() {
	ctx, lapses, ok := l.begin()
	if !ok {
		return
	}
	defer l.abandon()
	alarm := time.AfterFunc(time.Until(lapses), l.lose)
	defer alarm.Stop()
	for ctx.Err() == nil {
		since := time.Now()
		switch err := l.extend(ctx); {
		case err == nil, errors.Is(err, ErrRestored):
			if err != nil {
				l.restored.Store(true)
			}
			l.again(since)
			return
		case errors.Is(err, ErrClaimLost):
			l.lose()
			return
		}
		polling.Sleep(ctx, l.lasts/20, nil)
	}
	l.lose() // the alarm may be late; and after a standstill the lease has lapsed before the first try
}

// begin returns the context of a renewal, and when the lease lapses without it. The claim may be settled already.
func (l *lease) begin() (ctx context.Context, lapses time.Time, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer == nil {
		return nil, lapses, false
	}
	lapses = l.since.Add(l.span())
	ctx, l.abandon = context.WithDeadline(l.ctx, lapses)
	return ctx, lapses, true
}

func (l *lease) extend(ctx context.Context) error {
	select {
	case l.slots <- struct{}{}:
		defer func() { <-l.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	return l.claim.Extend(ctx, l.lasts)
}

// again waits for the next renewal of a lease that did not begin before since.
func (l *lease) again(since time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.since = since
	if l.timer != nil {
		l.timer.Reset(time.Until(since.Add(l.interval)))
	}
}

// lose tells the owner that its claim is lost, unless it has settled it.
func (l *lease) lose() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.cancel(ErrClaimLost)
	}
}

// check returns [ErrClaimLost] if the lease may have lapsed. It looks at the clock, because the timers that end the context
// of the owner are late after the process has stood still.
func (l *lease) check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil && l.hasLapsed(l.since) {
		return ErrClaimLost
	}
	return nil
}

// stop ends the renewals. It does not wait for one that is under way.
func (l *lease) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer == nil {
		return
	}
	l.timer.Stop()
	l.timer = nil
	if l.abandon != nil {
		l.abandon()
	}
}
