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

// ledger is a server that records the effects of the handlers of all processes, and holds requests at their stop points until the
// test releases them. If a later attempt has already had an effect, the ledger refuses the effect.
type ledger struct {
	t   testing.TB
	url string

	mu               sync.Mutex
	placeByName      map[string]*place   // by the name of the request
	lastAttemptByKey map[string]int      // the number of the last attempt with an effect
	answersByKey     map[string][]string // the answers of the attempts with an effect
	causeByName      map[string]string   // why the context of the handler has ended, by the name of the request
	fencedEffects    int
}

// place is the stop point of a request.
type place struct {
	arrived, released chan struct{} // closed when the request arrives, and when it may continue
	arriveOnce        sync.Once     // closes arrived
}

func newLedger(t testing.TB) *ledger {
	l := &ledger{
		t: t, placeByName: map[string]*place{}, lastAttemptByKey: map[string]int{}, answersByKey: map[string][]string{},
		causeByName: map[string]string{},
	}
	server := httptest.NewServer(http.HandlerFunc(l.serveRequest))
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	l.url = server.URL
	return l
}

func (l *ledger) serveRequest(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/stand":
		p := l.findPlace(r.Header.Get("Request-Name"))
		p.arriveOnce.Do(func() { close(p.arrived) })
		select {
		case <-p.released:
		case <-r.Context().Done():
		}
	case "/context-ended":
		l.mu.Lock()
		defer l.mu.Unlock()
		l.causeByName[r.Header.Get("Request-Name")] = r.Header.Get("Cause")
	case "/effect":
		l.recordEffect(r.Header.Get("Key"), r.Header.Get("Attempt"), r.Header.Get("Answer"))
	}
}

func (l *ledger) findPlace(name string) *place {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.placeByName[name] == nil {
		l.placeByName[name] = &place{arrived: make(chan struct{}), released: make(chan struct{})}
	}
	return l.placeByName[name]
}

func (l *ledger) recordEffect(key, attempt, answer string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, _ := strconv.Atoi(attempt)
	if n < l.lastAttemptByKey[key] {
		l.fencedEffects++
		return
	}
	l.lastAttemptByKey[key] = n
	l.answersByKey[key] = append(l.answersByKey[key], answer)
}

// hasArrived reports whether the request has arrived at its stop point.
func (l *ledger) hasArrived(name string) bool {
	select {
	case <-l.findPlace(name).arrived:
		return true
	default:
		return false
	}
}

func (l *ledger) awaitArrival(name string) {
	l.t.Helper()
	select {
	case <-l.findPlace(name).arrived:
	case <-time.After(time.Minute):
		assert.Fail(l.t, "it never came to its point", name)
	}
}

// releaseRequest lets the request continue.
func (l *ledger) releaseRequest(name string) { close(l.findPlace(name).released) }
