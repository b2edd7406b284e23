package idempotency

import (
	"context"
	"sync"
	"time"
)

// step is the context of one step of the store. It has the values of the request, but ends by a deadline of its own
// and not with the request: a client that hangs up must not leave a claim behind.
type step struct {
	context.Context // of the request
	deadline        time.Time
	deadlines       *deadlines

	mu   sync.Mutex
	done <-chan struct{}
}

func (s *step) Deadline() (time.Time, bool) { return s.deadline, true }

func (s *step) Done() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done == nil {
		s.done = s.deadlines.channel(s.deadline)
	}
	return s.done
}

func (s *step) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.done:
		return context.DeadlineExceeded
	default:
	}
	if time.Now().Before(s.deadline) {
		return nil
	}
	return context.DeadlineExceeded
}

func (s *step) Value(key any) any { return context.WithoutCancel(s.Context).Value(key) }

// AfterFunc lets package context derive a context without a goroutine that waits for this one.
func (s *step) AfterFunc(f func()) (stop func() bool) {
	return time.AfterFunc(time.Until(s.deadline), f).Stop
}

// deadlines makes the steps of a Runner. Drivers ask each step for a channel that closes at its deadline, and hardly
// ever wait for it: steps that begin shortly after one another share the channel of the first, and its timer.
type deadlines struct {
	timeout time.Duration

	mu   sync.Mutex
	at   time.Time // when done closes
	done chan struct{}
}

// begin returns the context of a step that begins now.
func (d *deadlines) begin(ctx context.Context) *step {
	return &step{Context: ctx, deadline: time.Now().Add(d.timeout), deadlines: d}
}

// channel returns a channel that closes at t, or a little earlier.
func (d *deadlines) channel(t time.Time) <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if early := t.Sub(d.at); early < 0 || early > d.timeout/16 {
		done := make(chan struct{})
		d.at, d.done = t, done
		time.AfterFunc(time.Until(t), func() { close(done) })
	}
	return d.done
}
