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
	Context     context.Context // ends when the tasks must
	cancelTasks context.CancelFunc

	mu        sync.Mutex
	taskCount int
	heldBytes int64
	isClosed  bool
	taskGroup sync.WaitGroup
}

// What a Backlog holds at most. Beyond it, an answer counts as unrecorded for good, and a claim is left to lapse.
// Anybody can cause releases, by requests that are refused: half of the room is for answers alone.
const (
	MostAnswers  = 2048 // tasks
	MostReleases = MostAnswers / 2
	maxBytes     = 32 << 20 // of answers
)

// New returns an empty backlog.
func New() *Backlog {
	ctx, stop := context.WithCancel(context.Background())
	return &Backlog{Context: ctx, cancelTasks: stop}
}

// Run runs a task that holds so many bytes, unless there are most tasks already. It reports whether there was room.
func (b *Backlog) Run(most, size int, task func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.isClosed || b.taskCount >= most || b.heldBytes+int64(size) > maxBytes {
		return false
	}
	b.taskCount++
	b.heldBytes += int64(size)
	b.taskGroup.Go(func() {
		defer b.releaseRoom(size)
		task()
	})
	return true
}

func (b *Backlog) releaseRoom(size int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.taskCount--
	b.heldBytes -= int64(size)
}

// Shutdown waits for the tasks. When ctx ends it ends them too.
func (b *Backlog) Shutdown(ctx context.Context) error {
	b.mu.Lock()
	b.isClosed = true
	b.mu.Unlock()
	defer b.cancelTasks()
	idle := make(chan struct{})
	go func() {
		defer close(idle)
		b.taskGroup.Wait()
	}()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.taskCount == 0 {
			return nil
		}
		return fmt.Errorf("idempotency: %d operations are not settled: %w", b.taskCount, context.Cause(ctx))
	}
}
