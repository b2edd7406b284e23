// Package polling lets one caller poll for all callers that wait for a change of the same key.
package polling

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// The pause between two calls of look begins with firstPause, and doubles up to lastPause. The pauses are for keys that
// another process works on, because a change within this process wakes the poll.
const (
	firstPause = 10 * time.Millisecond
	lastPause  = 250 * time.Millisecond
)

// Group is a set of polls, one for each key with waiting callers. The zero value is ready for use. A Group is safe for
// concurrent use.
type Group[K comparable, V any] struct {
	mu        sync.Mutex
	pollByKey map[K]*poll[V]
}

// poll is one caller looking at a key until the state of the key changes, or until the caller's own time is up.
type poll[V any] struct {
	wakeSignal chan struct{} // holds at most one signal
	endSignal  chan struct{} // closed at the end of the poll
	foundValue *V            // set before endSignal is closed; nil if the followers must ask for themselves
}

// Await waits until the state of key changes. Only one caller for each key polls: Await calls look repeatedly if the
// caller is the first, and returns polled = true with the value that look found. All other callers wait for the end of
// the poll and get the same value, or nil if ctx ends first or the poll ended without a value. Callers share the value,
// so the value must not be modified.
func (g *Group[K, V]) Await(ctx context.Context, key K, look func() (*V, bool)) (found *V, polled bool) {
	p, polled := g.joinPoll(key)
	if !polled {
		return p.awaitEnd(ctx), false
	}
	defer func() { g.endPoll(key, p, found) }()
	return p.pollUntilChanged(ctx, look), true
}

// pollUntilChanged calls look until look reports a change, or ctx ends.
func (p *poll[V]) pollUntilChanged(ctx context.Context, look func() (*V, bool)) *V {
	for pause := firstPause; Sleep(ctx, pause+rand.N(pause/4), p.wakeSignal); pause = min(2*pause, lastPause) {
		if found, changed := look(); changed {
			return found
		}
	}
	return nil
}

// awaitEnd waits for the end of the poll, and returns the value found.
func (p *poll[V]) awaitEnd(ctx context.Context) *V {
	select {
	case <-p.endSignal:
		return p.foundValue
	case <-ctx.Done():
		return nil
	}
}

// joinPoll returns the poll for key, and reports whether the caller is the first and has to poll.
func (g *Group[K, V]) joinPoll(key K) (p *poll[V], isFirst bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p := g.pollByKey[key]; p != nil {
		return p, false
	}
	if g.pollByKey == nil {
		g.pollByKey = make(map[K]*poll[V])
	}
	p = &poll[V]{wakeSignal: make(chan struct{}, 1), endSignal: make(chan struct{})}
	g.pollByKey[key] = p
	return p, true
}

// endPoll ends a poll of the caller and passes found to the followers.
func (g *Group[K, V]) endPoll(key K, p *poll[V], found *V) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.pollByKey, key)
	p.foundValue = found
	close(p.endSignal)
}

// Wake makes the poll for key call look at once.
func (g *Group[K, V]) Wake(key K) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p := g.pollByKey[key]; p != nil {
		select {
		case p.wakeSignal <- struct{}{}:
		default: // an earlier signal is still pending
		}
	}
}

// Sleep pauses for d, or until a signal of woken, and returns true. If ctx ends first, Sleep returns false.
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
