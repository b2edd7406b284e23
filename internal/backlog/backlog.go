// Package backlog finishes work in the background if a store fails while a request is served.
package backlog

import (
	"context"
	"fmt"
	"sync"
)

// Backlog stores answers that the store has failed to confirm, and releases claims whose reply was lost. A Backlog is
// bounded, because a store may be down for long. A Backlog is safe for concurrent use.
type Backlog struct {
	Context     context.Context // the context of the tasks; Shutdown ends the context
	cancelTasks context.CancelFunc

	mu        sync.Mutex
	taskCount int
	heldBytes int64
	isClosed  bool
	taskGroup sync.WaitGroup
}

// The bounds of a Backlog. An answer beyond the bounds stays unrecorded, and a claim beyond the bounds is left to
// lapse. Clients can cause any number of releases by requests that are refused, so half of the tasks are reserved for
// answers.
const (
	MostAnswers  = 2048            // tasks, while an answer may be added
	MostReleases = MostAnswers / 2 // tasks, while a release may be added
	maxBytes     = 32 << 20        // bytes of answers
)

// New returns an empty Backlog.
func New() *Backlog {
	ctx, stop := context.WithCancel(context.Background())
	return &Backlog{Context: ctx, cancelTasks: stop}
}

// Run starts task in the background and returns true. The task holds size bytes. If the Backlog has most tasks already,
// lacks room for size bytes, or was shut down, Run returns false.
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

// releaseRoom gives back the room of a task that has ended.
func (b *Backlog) releaseRoom(size int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.taskCount--
	b.heldBytes -= int64(size)
}

// Shutdown waits for the running tasks and refuses new tasks. When ctx ends first, Shutdown cancels the context of the
// tasks and returns an error with the number of unsettled operations.
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
