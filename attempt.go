package idempotency

import (
	"context"
	"sync"
)

// attempt is the context in which an operation is carried out. It ends when the attempt does, or its claim is lost.
// Most handlers never wait for that, so what it takes to cancel it is made only when somebody asks.
type attempt struct {
	context.Context // of the request, with what the store offers
	operation       Operation

	mu          sync.Mutex
	cancellable context.Context // nil: nobody has asked
	cancel      context.CancelCauseFunc
	ended       bool
}

// Value implements context.Context.
func (a *attempt) Value(key any) any {
	if key == (operationKey{}) {
		return &a.operation
	}
	return a.current().Value(key)
}

// Done implements context.Context.
func (a *attempt) Done() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.made().Done()
}

// Err implements context.Context.
func (a *attempt) Err() error { return a.current().Err() }

// current returns the context that stands for the attempt by now.
func (a *attempt) current() context.Context {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cancellable == nil && !a.ended {
		return a.Context
	}
	return a.made()
}

// made returns the context that can be cancelled.
func (a *attempt) made() context.Context {
	if a.cancellable == nil {
		a.cancellable, a.cancel = context.WithCancelCause(a.Context)
		if a.ended {
			a.cancel(nil)
		}
	}
	return a.cancellable
}

// end cancels the context, at the latest when somebody asks. If it was cancelled before, the first cause stays.
func (a *attempt) end(cause error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if cause != nil {
		a.made()
	}
	a.ended = true
	if a.cancel != nil {
		a.cancel(cause)
	}
}
