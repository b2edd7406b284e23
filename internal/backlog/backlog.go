// Package backlog runs in the background what a store did not take in time.
package backlog

import (
	"context"
	"fmt"
	"sync"
)

// Backlog settles answers that the store did not store, and claims that it may have granted without the owner knowing. It
// is bounded, because a store may be down for long. It is safe for concurrent use.
type Backlog struct {
	Context context.Context // ends when the tasks must
	stop    context.CancelFunc

	mu     sync.Mutex
	tasks  int
	bytes  int64
	closed bool
	group  sync.WaitGroup
}

// What a Backlog holds at most. Beyond it, an answer counts as unrecorded for good, and a claim is left to lapse.
// Anybody can cause releases, by requests that are refused: half of the room is for answers alone.
const (
	MostAnswers  = 2048 // tasks
	MostReleases = MostAnswers / 2
	mostBytes    = 32 << 20 // of answers
)

// New returns an empty backlog.
func New() *Backlog {
	ctx, stop := context.WithCancel(context.Background())
	return &Backlog{Context: ctx, stop: stop}
}

// Run runs a task that holds so many bytes, unless there are most tasks already. It reports whether there was room.
func (b *Backlog) Run(most, size int, task func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.tasks >= most || b.bytes+int64(size) > mostBytes {
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

func (b *Backlog) done(size int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tasks--
	b.bytes -= int64(size)
}

// Shutdown waits for the tasks. When ctx ends it ends them too.
func (b *Backlog) Shutdown(ctx context.Context) error {
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
