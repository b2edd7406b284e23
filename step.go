package idempotency

import (
	"context"
	"sync"
	"time"
)

// step is the context of one step of the store. It has the values of the request, but ends by a deadline of its own
// and not with the request: a client that hangs up must not leave a claim behind. Most stores set a deadline on their
// connection or need none, so the timer is started only when somebody waits for it.
type step struct {
	context.Context // of the request
	deadline        time.Time

	mu     sync.Mutex
	timed  context.Context
	cancel context.CancelFunc
	ended  bool
}

func (s *step) begin(ctx context.Context, timeout time.Duration) {
	s.Context, s.deadline = ctx, time.Now().Add(timeout)
}

func (s *step) Deadline() (time.Time, bool) { return s.deadline, true }

func (s *step) Done() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timed == nil {
		s.timed, s.cancel = context.WithDeadline(context.WithoutCancel(s.Context), s.deadline)
		if s.ended {
			s.cancel()
		}
	}
	return s.timed.Done()
}

func (s *step) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.timed != nil:
		return s.timed.Err()
	case s.ended:
		return context.Canceled
	case !time.Now().Before(s.deadline):
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// end releases what Done has started. It is to be called when the step is over.
func (s *step) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	if s.cancel != nil {
		s.cancel()
	}
}
