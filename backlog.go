package idempotency

import (
	"context"
	"fmt"
	"sync"
)

// backlog settles in the background what the store did not take in time: answers that it did not store, and claims that
// it may have granted without the owner knowing. It is bounded, because a store may be down for long.
type backlog struct {
	ctx  context.Context // ends when the tasks must
	stop context.CancelFunc

	mu     sync.Mutex
	tasks  int
	bytes  int64
	closed bool
	group  sync.WaitGroup
}

// What the backlog holds at most. Beyond it, an answer counts as unrecorded for good, and a claim is left to lapse.
// Anybody can cause releases, by requests that are refused: half of the room is for answers alone.
const (
	mostLater      = 2048 // tasks
	mostReleases   = mostLater / 2
	mostLaterBytes = 32 << 20 // of answers
)

func newBacklog() *backlog {
	ctx, stop := context.WithCancel(context.Background())
	return &backlog{ctx: ctx, stop: stop}
}

// run runs a task that holds so many bytes, unless there are most tasks already. It reports whether there was room.
func (b *backlog) run(most, size int, task func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.tasks >= most || b.bytes+int64(size) > mostLaterBytes {
		return false
	}
	b.tasks++
	b.bytes += int64(size)
	b.group.Go(func() {
		defer b.done(size)
		task()
	})
	return true
}

func (b *backlog) done(size int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tasks--
	b.bytes -= int64(size)
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
