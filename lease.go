package idempotency

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// renewals renews the leases of all claims that a Runner holds. They last equally long, so those that began first are
// due first: one queue and one timer serve them all. Most handlers are done before their lease is due, and a timer for
// each of them would cost two allocations. Transactions are asked likewise whether they still hold their keys.
//
// The queue is ordered by the start of the leases.
type renewals struct {
	lease    time.Duration
	interval time.Duration // between the renewals of a lease
	timeout  time.Duration // of a renewal
	slots    chan struct{} // taken by the renewals under way: after a stall, all leases are due at once
	unleased bool          // the claims are transactions, which do not lapse

	mu          sync.Mutex
	first, last *renewer
	timer       *time.Timer
	fires       time.Time // when the timer fires; zero: it is not set
}

// mostRenewals bounds how many renewals a Runner asks the store for at a time.
const mostRenewals = 64

// watchInterval is how often a transaction is asked whether it still holds the key. When its session dies, the next
// attempt may begin at once.
const watchInterval = time.Second

func newRenewals(opts RunnerOptions, transactional bool) *renewals {
	interval := opts.Lease / 3
	if transactional {
		interval = min(interval, watchInterval)
	}
	return &renewals{
		lease: opts.Lease, interval: interval, timeout: min(opts.StoreTimeout, opts.Lease/3),
		slots: make(chan struct{}, mostRenewals), unleased: transactional,
	}
}

// renewer renews the lease of a claim until the claim is settled. An owner that may have lost its lease must stop acting
// as one: the attempt is lost when the store says so, or when no renewal has succeeded until shortly before the lease
// must have lapsed, by the process's own clock.
type renewer struct {
	renewals *renewals // nil: there is nothing to renew
	claim    Claim
	ctx      context.Context         // for the store
	cancel   context.CancelCauseFunc // of the attempt
	restored atomic.Bool             // the store had forgotten the claim

	// Under the lock of renewals.
	since      time.Time // the lease did not begin before
	queued     bool
	prev, next *renewer
	stopped    bool
	abort      context.CancelFunc // of the renewal under way
}

// add begins to renew the lease of k, which did not begin before since.
func (l *renewals) add(k *renewer, since time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k.renewals = l
	l.enqueue(k, since)
}

func (l *renewals) enqueue(k *renewer, since time.Time) {
	k.since, k.queued = since, true
	before := l.last
	for before != nil && before.since.After(since) {
		before = before.prev
	}
	k.prev = before
	if before == nil {
		k.next, l.first = l.first, k
	} else {
		k.next, before.next = before.next, k
	}
	if k.next == nil {
		l.last = k
	} else {
		k.next.prev = k
	}
	l.arm()
}

func (l *renewals) dequeue(k *renewer) {
	if k.prev == nil {
		l.first = k.next
	} else {
		k.prev.next = k.next
	}
	if k.next == nil {
		l.last = k.prev
	} else {
		k.next.prev = k.prev
	}
	k.prev, k.next, k.queued = nil, nil, false
}

// due returns when the lease is to be renewed.
func (l *renewals) due(k *renewer) time.Time { return k.since.Add(l.interval) }

// span is how long an owner relies on a lease. The margin is for what it takes the owner to hear that it must stop.
func (l *renewals) span() time.Duration { return l.lease - l.lease/16 }

// arm sets the timer for the first renewal. A timer that fires too early does no harm, and costs less than to stop it.
func (l *renewals) arm() {
	if l.first == nil {
		return
	}
	due := l.due(l.first)
	if !l.fires.IsZero() && !l.fires.After(due) {
		return
	}
	l.fires = due
	if l.timer == nil {
		l.timer = time.AfterFunc(time.Until(due), l.renewDue)
	} else {
		l.timer.Reset(time.Until(due))
	}
}

// renewDue is called by the timer.
func (l *renewals) renewDue() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fires = time.Time{}
	for k := l.first; k != nil && !time.Now().Before(l.due(k)); k = l.first {
		l.dequeue(k)
		lapses := k.since.Add(l.span())
		var ctx context.Context
		if l.unleased {
			ctx, k.abort = context.WithCancel(k.ctx)
		} else {
			ctx, k.abort = context.WithDeadline(k.ctx, lapses)
		}
		go k.renew(ctx, lapses)
	}
	l.arm()
}

// renew renews the lease. If the store does not answer, it tries again until the lease lapses. The owner is told of that
// by a timer, since a driver may take no notice of its context.
func (k *renewer) renew(ctx context.Context, lapses time.Time) {
	defer k.abort()
	if !k.renewals.unleased {
		alarm := time.AfterFunc(time.Until(lapses), k.lose)
		defer alarm.Stop()
	}
	for ctx.Err() == nil {
		since := time.Now()
		switch err := k.extend(ctx); {
		case err == nil, errors.Is(err, ErrRestored):
			if err != nil {
				k.restored.Store(true)
			}
			k.again(since)
			return
		case errors.Is(err, ErrClaimLost):
			k.lose()
			return
		}
		sleep(ctx, k.renewals.lease/20, nil)
	}
	k.lose() // the alarm may be late; and after a standstill the lease has lapsed before the first try
}

func (k *renewer) extend(ctx context.Context) error {
	select {
	case k.renewals.slots <- struct{}{}:
		defer func() { <-k.renewals.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, k.renewals.timeout)
	defer cancel()
	return k.claim.Extend(ctx, k.renewals.lease)
}

func (k *renewer) again(since time.Time) {
	k.renewals.mu.Lock()
	defer k.renewals.mu.Unlock()
	if !k.stopped {
		k.renewals.enqueue(k, since)
	}
}

// renewedSince reports whether the lease has begun, or was renewed, after t.
func (k *renewer) renewedSince(t time.Time) bool {
	k.renewals.mu.Lock()
	defer k.renewals.mu.Unlock()
	return k.since.After(t)
}

// lose tells the owner that its claim is lost, unless it has settled it.
func (k *renewer) lose() {
	k.renewals.mu.Lock()
	defer k.renewals.mu.Unlock()
	if !k.stopped {
		k.cancel(ErrClaimLost)
	}
}

// stop ends the renewals. It does not wait for one that is under way.
func (k *renewer) stop() {
	if k.renewals == nil {
		return
	}
	k.renewals.mu.Lock()
	defer k.renewals.mu.Unlock()
	k.stopped = true
	if k.queued {
		k.renewals.dequeue(k)
	}
	if k.abort != nil {
		k.abort()
	}
}
