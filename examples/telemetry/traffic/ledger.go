package traffic

import (
	"fmt"
	"maps"
	"sync"

	"github.com/idempotency-go/idempotency"
)

// Ledger is what clients have seen, and what the handler has done. It knows nothing of metrics.
type Ledger struct {
	Requests   map[string]int // by outcome
	Recoveries map[string]int // by outcome
	Errors     map[string]int // by outcome and type: "rejected: key_invalid"
	FromCache  int            // replays
	LeasesLost int
	Runs       int // of the handler
	Waits      int
	Stored     int // bytes

	Resolutions int // by an operator: the operation has happened
}

// Sum returns the number of all requests.
func (l *Ledger) Sum() (n int) {
	for _, count := range l.Requests {
		n += count
	}
	return n
}

// book is a ledger that many write to.
type book struct {
	mu     sync.Mutex
	ledger Ledger
}

func (b *book) write(entry func(*Ledger)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ledger.Requests == nil {
		b.ledger = Ledger{Requests: map[string]int{}, Recoveries: map[string]int{}, Errors: map[string]int{}}
	}
	entry(&b.ledger)
}

// read returns a copy.
func (b *book) read() (l Ledger) {
	b.write(func(own *Ledger) {
		l = *own
		l.Requests, l.Recoveries, l.Errors = maps.Clone(l.Requests), maps.Clone(l.Recoveries), maps.Clone(l.Errors)
	})
	return l
}

func (b *book) clear() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ledger = Ledger{}
}

// mark writes down an answer, and how it came about.
func (b *book) mark(outcome idempotency.Outcome, errorType string) {
	b.write(func(l *Ledger) {
		l.Requests[string(outcome)]++
		if errorType != "" {
			l.Errors[fmt.Sprintf("%s: %s", outcome, errorType)]++
		}
	})
}
