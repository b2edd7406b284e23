package traffic

import (
	"fmt"
	"maps"
	"sync"

	"github.com/idempotency-go/idempotency"
)

// Ledger counts the answers that clients have seen, and the work of the handler, independently of the metrics.
type Ledger struct {
	Requests   map[string]int // by outcome
	Recoveries map[string]int // by outcome
	Errors     map[string]int // by outcome and type: "rejected: key_invalid"
	FromCache  int            // replays from the cache
	LeasesLost int
	Runs       int // runs of the handler
	Waits      int // requests that have waited for another attempt
	Stored     int // bytes of the stored answers

	Resolutions int // operations that an operator has resolved as happened
}

// Sum returns the number of all requests.
func (l *Ledger) Sum() (n int) {
	for _, count := range l.Requests {
		n += count
	}
	return n
}

// sharedLedger is a Ledger for concurrent use.
type sharedLedger struct {
	mu      sync.Mutex
	current Ledger
}

// update calls entry with the current ledger, and holds the lock meanwhile.
func (l *sharedLedger) update(entry func(*Ledger)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current.Requests == nil {
		l.current = Ledger{Requests: map[string]int{}, Recoveries: map[string]int{}, Errors: map[string]int{}}
	}
	entry(&l.current)
}

// snapshot returns a copy of the current ledger.
func (l *sharedLedger) snapshot() (copied Ledger) {
	l.update(func(current *Ledger) {
		copied = *current
		copied.Requests, copied.Recoveries, copied.Errors =
			maps.Clone(current.Requests), maps.Clone(current.Recoveries), maps.Clone(current.Errors)
	})
	return copied
}

func (l *sharedLedger) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.current = Ledger{}
}

// countAnswer counts an answer with the given outcome, and the error type unless errorType is empty.
func (l *sharedLedger) countAnswer(outcome idempotency.Outcome, errorType string) {
	l.update(func(l *Ledger) {
		l.Requests[string(outcome)]++
		if errorType != "" {
			l.Errors[fmt.Sprintf("%s: %s", outcome, errorType)]++
		}
	})
}
