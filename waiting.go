package idempotency

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// The pauses between two looks at a key that another process works on. An attempt of this process wakes its waiters.
const (
	firstPause = 10 * time.Millisecond
	lastPause  = 250 * time.Millisecond
)

// waiters lets one request poll the store for all requests of this process that wait for the same key.
type waiters struct {
	mu    sync.Mutex
	polls map[Key]*poll
}

// poll is one request looking at a key until its state changes, its own time is up, or it gets the claim.
type poll struct {
	woken chan struct{} // an attempt of this process has ended; holds one
	done  chan struct{} // closed at the end of the poll
	found *Record       // set before done is closed; nil: nobody knows yet, poll again
}

// join returns the poll for key, and whether the caller is the one to do it.
func (w *waiters) join(key Key) (p *poll, leads bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.polls[key]; p != nil {
		return p, false
	}
	if w.polls == nil {
		w.polls = make(map[Key]*poll)
	}
	p = &poll{woken: make(chan struct{}, 1), done: make(chan struct{})}
	w.polls[key] = p
	return p, true
}

// leave ends the poll that the caller leads.
func (w *waiters) leave(key Key, p *poll, found *Record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.polls, key)
	p.found = found
	close(p.done)
}

// wake lets the poll for key look at once.
func (r *Runner) wake(key Key) {
	if r.opts.Wait == 0 {
		return
	}
	w := &r.waiters
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.polls[key]; p != nil {
		select {
		case p.woken <- struct{}{}:
		default: // it will look anyway
		}
	}
}

// claim begins an attempt. If another one is running, it waits for that to end and says for how long.
func (r *Runner) claim(ctx context.Context, key Key, fp Fingerprint) (h held, waited time.Duration, err error) {
	h, err = r.begin(ctx, key, fp)
	if r.opts.Wait == 0 || !h.running(fp, err) {
		return h, 0, err
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, r.opts.Wait)
	defer cancel()
	for h.running(fp, err) && ctx.Err() == nil {
		p, leads := r.waiters.join(key)
		if leads {
			h, err = r.lead(ctx, p, h, key, fp)
		} else {
			h = p.follow(ctx, h)
		}
	}
	return h, time.Since(began), err
}

// running reports whether the key is held by an attempt of the same request that goes on.
func (h *held) running(fp Fingerprint, err error) bool {
	return err == nil && h.claim == nil && judge(&h.record, fp) == ErrInProgress
}

// lead polls until the attempt that h describes has ended, or ctx has.
func (r *Runner) lead(ctx context.Context, p *poll, h held, key Key, fp Fingerprint) (_ held, err error) {
	var found *Record
	defer func() { r.waiters.leave(key, p, found) }()
	for pause := firstPause; h.running(fp, err); pause = min(2*pause, lastPause) {
		if !sleep(ctx, pause+rand.N(pause/4), p.woken) {
			return h, nil
		}
		h, err = r.begin(ctx, key, fp)
	}
	if err == nil && h.claim == nil {
		found = &h.record
	}
	return h, err
}

// sleep reports whether it slept for d, or was woken, rather than being ended by ctx.
func sleep(ctx context.Context, d time.Duration, woken <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-woken:
		return true
	case <-ctx.Done():
		return false
	}
}

// follow waits for what the leader finds. It returns h if the poll, or ctx, ends before.
func (p *poll) follow(ctx context.Context, h held) held {
	select {
	case <-p.done:
	case <-ctx.Done():
		return h
	}
	if p.found == nil {
		return h
	}
	return held{record: *p.found}
}
