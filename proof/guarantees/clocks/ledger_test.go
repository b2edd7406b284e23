//go:build linux

package clocks_test

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// ledger is what the handlers of all processes have an effect on, and where requests ask for leave to go on. It refuses
// the effect of an attempt that comes after a later one.
type ledger struct {
	t   testing.TB
	url string

	mu       sync.Mutex
	places   map[string]*place   // by visitor
	attempts map[string]int      // the last one that had an effect, by key
	effects  map[string][]string // their answers, by key
	told     map[string]string   // why the context of a handler has ended, by visitor
	fenced   int
}

// place is where a visitor stands.
type place struct {
	taken, left chan struct{} // closed when it comes, and when it may go on
	once        sync.Once     // comes
}

func newLedger(t testing.TB) *ledger {
	l := &ledger{
		t: t, places: map[string]*place{}, attempts: map[string]int{}, effects: map[string][]string{},
		told: map[string]string{},
	}
	server := httptest.NewServer(http.HandlerFunc(l.serve))
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	l.url = server.URL
	return l
}

func (l *ledger) serve(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/stand":
		p := l.place(r.Header.Get("Visitor"))
		p.once.Do(func() { close(p.taken) })
		select {
		case <-p.left:
		case <-r.Context().Done():
		}
	case "/told":
		l.mu.Lock()
		defer l.mu.Unlock()
		l.told[r.Header.Get("Visitor")] = r.Header.Get("Told")
	case "/effect":
		l.effect(r.Header.Get("Key"), r.Header.Get("Attempt"), r.Header.Get("Answer"))
	}
}

func (l *ledger) place(visitor string) *place {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.places[visitor] == nil {
		l.places[visitor] = &place{taken: make(chan struct{}), left: make(chan struct{})}
	}
	return l.places[visitor]
}

func (l *ledger) effect(key, attempt, answer string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, _ := strconv.Atoi(attempt)
	if n < l.attempts[key] {
		l.fenced++
		return
	}
	l.attempts[key] = n
	l.effects[key] = append(l.effects[key], answer)
}

// stands reports whether a visitor has come to its point.
func (l *ledger) stands(visitor string) bool {
	select {
	case <-l.place(visitor).taken:
		return true
	default:
		return false
	}
}

func (l *ledger) awaitStanding(visitor string) {
	l.t.Helper()
	select {
	case <-l.place(visitor).taken:
	case <-time.After(time.Minute):
		assert.Fail(l.t, "it never came to its point", visitor)
	}
}

// release lets a visitor who stands go on.
func (l *ledger) release(visitor string) { close(l.place(visitor).left) }
