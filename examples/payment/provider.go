package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
)

// provider is a payment provider. Its first answer never arrives.
type provider struct {
	guarded http.Handler
	charged chan struct{} // closed when the answer to the first request is due

	mu                sync.Mutex
	requests, charges int
	keys              map[string]bool
}

func newProvider() *provider {
	p := &provider{charged: make(chan struct{}), keys: make(map[string]bool)}
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	idem, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{Required: true})
	demo.Check(err)
	p.guarded = idem.Handler(http.HandlerFunc(p.charge))
	return p
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	fmt.Println("provider: request with key", r.Header.Get("Idempotency-Key"))
	if p.count(r) == 1 {
		p.guarded.ServeHTTP(httptest.NewRecorder(), r)
		close(p.charged)
		<-r.Context().Done() // the shop is dead
		return
	}
	p.guarded.ServeHTTP(w, r)
}

func (p *provider) count(r *http.Request) (requests int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests++
	p.keys[r.Header.Get("Idempotency-Key")] = true
	return p.requests
}

// charge charges a card each time it runs.
func (p *provider) charge(w http.ResponseWriter, _ *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.charges++
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "charge %d", p.charges)
}

func (p *provider) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return fmt.Sprintf("requests to the provider: %d, keys: %d, charges: %d", p.requests, len(p.keys), p.charges)
}
