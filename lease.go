package idempotency

import (
	"context"
	"errors"
	"sync"
	"time"
)

// leases renews the leases of all claims that a Runner holds. They last equally long, so those that were begun first
// are due first: one queue and one timer do, and an attempt that ends before its lease is due costs no timer.
type leases struct {
	lease   time.Duration
	timeout time.Duration // of a renewal

	mu          sync.Mutex
	first, last *keeper
	timer       *time.Timer
	armed       bool
}

// keeper renews the lease of a claim for as long as the handler runs. An owner that may have lost its lease must stop
// acting as one: the attempt is lost when the store says so, or when no renewal has succeeded for as long as the lease
// lasts by the process's own clock. The zero value keeps nothing.
type keeper struct {
	leases   *leases
	claim    Claim
	attempt  *attempt
	restored bool // the store had forgotten the claim

	// Under the lock of leases.
	since      time.Time // the lease did not begin before
	queued     bool
	prev, next *keeper
	stopped    bool
	abort      context.CancelFunc // of the renewal under way
	ended      chan struct{}      // closed when it has ended
}

// keep begins to renew the lease of claim, which did not begin before since.
func (l *leases) keep(k *keeper, since time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k.leases = l
	l.enqueue(k, since)
}

// enqueue puts k where it is due.
func (l *leases) enqueue(k *keeper, since time.Time) {
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

func (l *leases) dequeue(k *keeper) {
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
func (l *leases) due(k *keeper) time.Time { return k.since.Add(l.lease / 3) }

// arm sets the timer, unless it is set: it does no harm that it fires too early, and costs less than to stop it.
func (l *leases) arm() {
	if l.armed || l.first == nil {
		return
	}
	l.armed = true
	left := time.Until(l.due(l.first))
	if l.timer == nil {
		l.timer = time.AfterFunc(left, l.renewDue)
	} else {
		l.timer.Reset(left)
	}
}

// renewDue is called by the timer.
func (l *leases) renewDue() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.armed = false
	for k := l.first; k != nil && !time.Now().Before(l.due(k)); k = l.first {
		l.dequeue(k)
		var ctx context.Context
		ctx, k.abort = context.WithDeadline(context.WithoutCancel(k.attempt), k.since.Add(l.lease))
		k.ended = make(chan struct{})
		go k.renew(ctx)
	}
	l.arm()
}

// renew renews the lease. If the store does not answer, it tries again until the lease must have lapsed.
func (k *keeper) renew(ctx context.Context) {
	defer close(k.ended)
	defer k.abort()
	for ctx.Err() == nil {
		since := time.Now()
		err := k.extend(ctx)
		if err == nil || errors.Is(err, ErrRestored) {
			k.restored = k.restored || err != nil
			k.again(since)
			return
		}
		if errors.Is(err, ErrClaimLost) {
			k.attempt.end(ErrClaimLost)
			return
		}
		sleep(ctx, k.leases.lease/10, nil)
	}
	if ctx.Err() == context.DeadlineExceeded {
		k.attempt.end(ErrClaimLost)
	}
}

func (k *keeper) extend(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, k.leases.timeout)
	defer cancel()
	return k.claim.Extend(ctx, k.leases.lease)
}

func (k *keeper) again(since time.Time) {
	k.leases.mu.Lock()
	defer k.leases.mu.Unlock()
	if !k.stopped {
		k.leases.enqueue(k, since)
	}
}

// stop ends the renewals; when it returns, none is under way.
func (k *keeper) stop() {
	if k.leases == nil {
		return
	}
	if ended := k.halt(); ended != nil {
		<-ended
	}
}

func (k *keeper) halt() (ended chan struct{}) {
	k.leases.mu.Lock()
	defer k.leases.mu.Unlock()
	k.stopped = true
	if k.queued {
		k.leases.dequeue(k)
		return nil
	}
	if k.abort != nil {
		k.abort()
	}
	return k.ended
}
