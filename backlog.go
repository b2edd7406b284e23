package idempotency

import (
	"context"
	"fmt"
	"sync"
)

// backlog settles in the background what the store did not take in time: answers that it did not store, and claims that
// it may have granted without the owner knowing. It is bounded, for a store may be down for long.
type backlog struct {
	ctx  context.Context // ends when the tasks must
	stop context.CancelFunc

	mu     sync.Mutex
	held   load
	closed bool
	group  sync.WaitGroup
}

// load is what tasks hold. Answers and releases are counted apart: anybody can cause releases, by requests that are
// refused, and must not take the room of answers by that.
type load struct {
	answers  int
	size     int // of the answers, in bytes
	releases int
}

// mostLoad is what the backlog holds at most. Beyond it, an answer counts as unrecorded for good, and a claim is left to
// lapse.
var mostLoad = load{answers: 1024, size: 32 << 20, releases: 256}

func newBacklog() *backlog {
	b := new(backlog)
	b.ctx, b.stop = context.WithCancel(context.Background())
	return b
}

// addAnswer runs a task that stores an answer of size bytes, and reports whether there is room for it.
func (b *backlog) addAnswer(size int, task func(context.Context)) bool {
	return b.add(load{answers: 1, size: size}, task)
}

// addRelease runs a task that releases a claim, if there is room for it.
func (b *backlog) addRelease(task func(context.Context)) { b.add(load{releases: 1}, task) }

func (b *backlog) add(l load, task func(context.Context)) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	sum := load{b.held.answers + l.answers, b.held.size + l.size, b.held.releases + l.releases}
	if b.closed || sum.answers > mostLoad.answers || sum.size > mostLoad.size || sum.releases > mostLoad.releases {
		return false
	}
	b.held = sum
	b.group.Go(func() {
		defer b.done(l)
		task(b.ctx)
	})
	return true
}

func (b *backlog) done(l load) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held = load{b.held.answers - l.answers, b.held.size - l.size, b.held.releases - l.releases}
}

// shutdown waits for the tasks. When ctx ends it ends them too.
func (b *backlog) shutdown(ctx context.Context) error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	defer b.stop()
	idle := make(chan struct{})
	go func() {
		defer close(idle)
		b.group.Wait()
	}()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		b.mu.Lock()
		defer b.mu.Unlock()
		tasks := b.held.answers + b.held.releases
		if tasks == 0 {
			return nil
		}
		return fmt.Errorf("idempotency: %d operations are not settled: %w", tasks, context.Cause(ctx))
	}
}
