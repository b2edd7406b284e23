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

// waiters lets one request look into the store for all requests of this process that wait for the same key.
type waiters struct {
	mu    sync.Mutex
	polls map[Key]*poll
}

// poll is one request looking at a key until its state changes, or the request's own time is up.
type poll struct {
	woken chan struct{} // an attempt of this process has ended; holds one
	done  chan struct{} // closed at the end of the poll
	found *Record       // set before done is closed; nil: nobody knows yet, poll again
}

// await waits until the state of the key changes. If no other request of this process looks at the key, it calls look
// again and again until look reports a change, and returns polled. Otherwise it returns what the other one has found: nil
// if that one, or ctx, ended before.
func (w *waiters) await(ctx context.Context, key Key, look func() (*Record, bool)) (found *Record, polled bool) {
	p, polled := w.join(key)
	if !polled {
		return p.follow(ctx), false
	}
	defer func() { w.leave(key, p, found) }()
	return p.lead(ctx, look), true
}

// lead looks until the state of the key changes, or ctx ends. It returns what is of use to others: nobody else may use a
// claim that look has got.
func (p *poll) lead(ctx context.Context, look func() (*Record, bool)) *Record {
	for pause := firstPause; sleep(ctx, pause+rand.N(pause/4), p.woken); pause = min(2*pause, lastPause) {
		if record, changed := look(); changed {
			return record
		}
	}
	return nil
}

// follow waits for what the leader finds.
func (p *poll) follow(ctx context.Context) *Record {
	select {
	case <-p.done:
		return p.found
	case <-ctx.Done():
		return nil
	}
}

// join returns the poll for key, and whether the caller is the one to lead it.
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
	if found != nil {
		record := *found
		p.found = &record
	}
	close(p.done)
}

// wake lets the poll for key look at once.
func (w *waiters) wake(key Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.polls[key]; p != nil {
		select {
		case p.woken <- struct{}{}:
		default: // it will look anyway
		}
	}
}

// mostWaiting bounds the HTTP requests of one user that wait at a time: each of them holds a connection and a header, which
// may be large.
const mostWaiting = 128

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
