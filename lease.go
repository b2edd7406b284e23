package idempotency

import (
	"context"
	"errors"
	"sync"
	"time"
)

// keeper renews the lease of a claim for as long as the handler runs. Between renewals it is a timer, not a
// goroutine. An owner that may have lost its lease must stop acting as one: lost is called with ErrClaimLost when the
// store says so, or when no renewal has succeeded for as long as the lease lasts by the process's own clock.
type keeper struct {
	ctx     context.Context // of the request; renewals take its values, not its end
	claim   Claim
	lease   time.Duration
	timeout time.Duration
	lost    context.CancelCauseFunc

	renewing sync.Mutex // held during a renewal
	expires  time.Time  // when the lease has lapsed unless it is renewed
	restored bool       // the store had forgotten the claim

	mu      sync.Mutex
	timer   *time.Timer
	abort   context.CancelFunc // of the renewal under way
	stopped bool
}

// start begins to renew the lease, which did not begin before since.
func (k *keeper) start(since time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.expires = since.Add(k.lease)
	k.timer = time.AfterFunc(time.Until(since.Add(k.lease/3)), k.renew)
}

// stop ends the renewals; when it returns, none is under way.
func (k *keeper) stop() {
	k.mu.Lock()
	k.stopped = true
	if k.timer != nil {
		k.timer.Stop()
	}
	if k.abort != nil {
		k.abort()
	}
	k.mu.Unlock()

	k.renewing.Lock()
	defer k.renewing.Unlock()
}

// renew is called by the timer.
func (k *keeper) renew() {
	k.renewing.Lock()
	defer k.renewing.Unlock()

	ctx, cancel := context.WithDeadline(context.WithoutCancel(k.ctx), k.expires)
	defer cancel()
	if !k.begin(cancel) {
		return
	}
	since := time.Now()
	err := k.extend(ctx)
	switch {
	case err == nil || errors.Is(err, ErrRestored):
		k.expires, k.restored = since.Add(k.lease), k.restored || err != nil
		k.again(time.Until(since.Add(k.lease / 3)))
	case errors.Is(err, ErrClaimLost) || ctx.Err() == context.DeadlineExceeded:
		k.lost(ErrClaimLost)
	default: // the store does not answer: keep trying until the lease must have lapsed
		k.again(min(k.lease/10, time.Until(k.expires)))
	}
}

func (k *keeper) begin(abort context.CancelFunc) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.abort = abort
	return !k.stopped
}

func (k *keeper) extend(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	return k.claim.Extend(ctx, k.lease)
}

func (k *keeper) again(after time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.stopped {
		k.timer.Reset(after)
	}
}
