package idempotency

import (
	"context"
	"fmt"
	"sync"
)

// backlog settles in the background what the store did not take in time: answers that it did not store, and claims that
// it may have granted without the owner knowing. It is bounded, for a store may be down for long. Answers and releases
// are counted apart: anybody can cause releases, by requests that are refused, and must not take the room of answers by
// that.
type backlog struct {
	ctx  context.Context // ends when the tasks must
	stop context.CancelFunc

	answers, releases shares
	bytes             shares // of the answers

	mu     sync.Mutex
	tasks  int
	closed bool
	group  sync.WaitGroup
}

// What the backlog holds at most, and which part of it each user of a Middleware may take. A Runner has callers of its own
// service only. Beyond it, an answer counts as unrecorded for
// good, and a claim is left to lapse.
const (
	mostLater      = 1024 // answers, and as many releases
	mostLaterBytes = 32 << 20
	laterParts     = 8
)

func newBacklog() *backlog {
	b := &backlog{
		answers:  shares{total: mostLater, each: mostLater},
		releases: shares{total: mostLater, each: mostLater},
		bytes:    shares{total: mostLaterBytes, each: mostLaterBytes},
	}
	b.ctx, b.stop = context.WithCancel(context.Background())
	return b
}

// divide leaves each user a part of the backlog. It is called before the first use.
func (b *backlog) divide() {
	for _, s := range []*shares{&b.answers, &b.releases, &b.bytes} {
		s.each = s.total / laterParts
	}
}

// place is the room of a task in the backlog. Whoever has one must run a task in it.
type place struct {
	backlog *backlog
	kind    *shares // answers or releases
	user    string
	size    int64
}

// forAnswer returns a place for a task that stores an answer of size bytes, or nil if there is no room for it.
func (b *backlog) forAnswer(user string, size int) *place {
	return b.reserve(&place{b, &b.answers, user, int64(size)})
}

// forRelease returns a place for a task that releases a claim, or nil if there is no room for it.
func (b *backlog) forRelease(user string) *place { return b.reserve(&place{b, &b.releases, user, 0}) }

func (b *backlog) reserve(p *place) *place {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || !p.kind.take(p.user, 1) {
		return nil
	}
	if !b.bytes.take(p.user, p.size) {
		p.kind.giveBack(p.user, 1)
		return nil
	}
	b.tasks++
	b.group.Add(1)
	return p
}

func (p *place) run(task func(context.Context)) {
	go func() {
		defer p.free()
		task(p.backlog.ctx)
	}()
}

func (p *place) free() {
	b := p.backlog
	b.mu.Lock()
	defer b.mu.Unlock()
	p.kind.giveBack(p.user, 1)
	b.bytes.giveBack(p.user, p.size)
	b.tasks--
	b.group.Done()
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
