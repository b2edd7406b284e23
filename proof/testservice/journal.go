package testservice

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// Journal collects the events of a middleware.
type Journal struct {
	mu     sync.Mutex
	events []idempotency.Event
}

// Observe adds an event. Observe is a value for Options.Observer.
func (j *Journal) Observe(_ context.Context, e idempotency.Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.events = append(j.events, e)
}

// All returns all events in order.
func (j *Journal) All() []idempotency.Event {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]idempotency.Event(nil), j.events...)
}

// Outcomes returns the outcomes of all events in order.
func (j *Journal) Outcomes() []idempotency.Outcome {
	var outcomes []idempotency.Outcome
	for _, e := range j.All() {
		outcomes = append(outcomes, e.Outcome)
	}
	return outcomes
}

// Last returns the newest event.
func (j *Journal) Last(t *testing.T) idempotency.Event {
	t.Helper()
	events := j.All()
	require.NotEmpty(t, events)
	return events[len(events)-1]
}
