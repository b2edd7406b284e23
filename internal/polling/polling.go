// Package polling lets one caller look for all who wait for the same thing.
package polling

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// The pauses between two looks at a key that another process works on. Whoever works on it in this process wakes its waiters.
const (
	firstPause = 10 * time.Millisecond
	lastPause  = 250 * time.Millisecond
)

// Group lets one caller look for all that wait for the same key. The zero value is ready. It is safe for concurrent use.
type Group[K comparable, V any] struct {
	mu        sync.Mutex
	pollByKey map[K]*poll[V]
}

// poll is one caller looking at a key until its state changes, or the caller's own time is up.
type poll[V any] struct {
	wakeSignal chan struct{} // holds one
	endSignal  chan struct{} // closed at the end of the poll
	foundValue *V            // set before done is closed; nil: nobody knows yet, poll again
}

// Await waits until the state of the key changes. If nobody else looks at the key, it calls look again and again until
// look reports a change, and returns polled. Otherwise it returns what the other one has found: nil if that one, or ctx,
// ended before. What look finds is shared: nobody modifies it. Nil is of no use to others.
func (w *Group[K, V]) Await(ctx context.Context, key K, look func() (*V, bool)) (found *V, polled bool) {
	p, polled := w.joinPoll(key)
	if !polled {
		return p.awaitEnd(ctx), false
	}
	defer func() { w.endPoll(key, p, found) }()
	return p.pollUntilChanged(ctx, look), true
}

// lead looks until the state of the key changes, or ctx ends.
func (p *poll[V]) pollUntilChanged(ctx context.Context, look func() (*V, bool)) *V {
	for pause := firstPause; Sleep(ctx, pause+rand.N(pause/4), p.wakeSignal); pause = min(2*pause, lastPause) {
		if found, changed := look(); changed {
			return found
		}
	}
	return nil
}

// follow waits for what the leader finds.
func (p *poll[V]) awaitEnd(ctx context.Context) *V {
	select {
	case <-p.endSignal:
		return p.foundValue
	case <-ctx.Done():
		return nil
	}
}

// join returns the poll for key, and whether the caller is the one to lead it.
func (w *Group[K, V]) joinPoll(key K) (p *poll[V], leads bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.pollByKey[key]; p != nil {
		return p, false
	}
	if w.pollByKey == nil {
		w.pollByKey = make(map[K]*poll[V])
	}
	p = &poll[V]{wakeSignal: make(chan struct{}, 1), endSignal: make(chan struct{})}
	w.pollByKey[key] = p
	return p, true
}

// leave ends the poll that the caller leads.
func (w *Group[K, V]) endPoll(key K, p *poll[V], found *V) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.pollByKey, key)
	p.foundValue = found
	close(p.endSignal)
}

// Wake lets the poll for key look at once.
func (w *Group[K, V]) Wake(key K) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.pollByKey[key]; p != nil {
		select {
		case p.wakeSignal <- struct{}{}:
		default: // it will look anyway
		}
	}
}

// Sleep reports whether it slept for d, or was woken, rather than being ended by ctx.
func Sleep(ctx context.Context, d time.Duration, woken <-chan struct{}) bool {
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
