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
	tasks  int
	bytes  int
	closed bool
	group  sync.WaitGroup
}

// What the backlog holds at most. Beyond it, an answer counts as unrecorded for good, and a claim is left to lapse.
const (
	mostTasks   = 1024
	mostBacklog = 32 << 20 // bytes of answers
)

func newBacklog() *backlog {
	b := new(backlog)
	b.ctx, b.stop = context.WithCancel(context.Background())
	return b
}

// add runs a task that holds size bytes, and reports whether there is room for it.
func (b *backlog) add(size int, task func(context.Context)) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.tasks == mostTasks || b.bytes+size > mostBacklog {
		return false
	}
	b.tasks++
	b.bytes += size
	b.group.Go(func() {
		defer b.done(size)
		task(b.ctx)
	})
	return true
}

func (b *backlog) done(size int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tasks--
	b.bytes -= size
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
		if b.tasks == 0 {
			return nil
		}
		return fmt.Errorf("idempotency: %d operations are not settled: %w", b.tasks, context.Cause(ctx))
	}
}
