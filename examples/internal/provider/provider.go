// Package provider is another system, such as a payment provider. It lives in the process that kills the service, and so
// it outlives the service.
package provider

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"time"

	"github.com/idempotency-go/idempotency/examples/internal/demo"
)

// Provider acts once for each key. A request without a key it carries out each time.
type Provider struct {
	lock  sync.Mutex
	acts  []act
	calls int
	lose  bool   // the answer to the next request
	holds []hold // of the next requests
}

// hold has a request wait.
type hold struct{ come, released chan struct{} }

// act is an entry of the journal.
type act struct{ key, reference string }

// Start starts a provider, which [Call] then calls, in this process and in those that it starts.
func Start() (p *Provider, stop func()) {
	p = new(Provider)
	server := httptest.NewServer(p)
	demo.Check(os.Setenv("PROVIDER_URL", server.URL))
	return p, server.Close
}

func (p *Provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.wait()
	time.Sleep(rand.N(2 * time.Millisecond)) // so that the service also dies before and after the act
	number := p.carryOut(act{r.Header.Get("Idempotency-Key"), r.Header.Get("Reference")})
	time.Sleep(rand.N(2 * time.Millisecond))
	if p.loses() {
		panic(http.ErrAbortHandler)
	}
	fmt.Fprint(w, number)
}

// carryOut returns the number of the act, which is an earlier one if the key is known.
func (p *Provider) carryOut(a act) (number int) {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.calls++
	for i, earlier := range p.acts {
		if a.key != "" && a.key == earlier.key {
			return i + 1
		}
	}
	p.acts = append(p.acts, a)
	return len(p.acts)
}

// Hold has the next request wait until release is called, and the one after it if it is called again. Come is closed when the
// request has come.
func (p *Provider) Hold() (come <-chan struct{}, release func()) {
	h := hold{make(chan struct{}), make(chan struct{})}
	p.lock.Lock()
	defer p.lock.Unlock()
	p.holds = append(p.holds, h)
	return h.come, func() { close(h.released) }
}

func (p *Provider) wait() {
	p.lock.Lock()
	holds := p.holds
	p.holds = holds[min(1, len(holds)):]
	p.lock.Unlock()
	if len(holds) > 0 {
		close(holds[0].come)
		<-holds[0].released
	}
}

// LoseAnswer has the provider act upon the next request, and then drop the connection.
func (p *Provider) LoseAnswer() {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.lose = true
}

func (p *Provider) loses() (now bool) {
	p.lock.Lock()
	defer p.lock.Unlock()
	now, p.lose = p.lose, false
	return now
}

// Acts returns how often the provider has acted.
func (p *Provider) Acts() int {
	p.lock.Lock()
	defer p.lock.Unlock()
	return len(p.acts)
}

// Calls returns how often the provider was called.
func (p *Provider) Calls() int {
	p.lock.Lock()
	defer p.lock.Unlock()
	return p.calls
}

// ActsFor returns how often it has acted with a reference.
func (p *Provider) ActsFor(reference string) (times int) {
	p.lock.Lock()
	defer p.lock.Unlock()
	for _, act := range p.acts {
		if act.reference == reference {
			times++
		}
	}
	return times
}

// Request is one to the provider.
type Request struct {
	Key       string // the provider acts once for it; may be empty
	Reference string // the provider only notes it; may be empty
}

// Call calls the provider, and returns the number of its act. It stands for the provider's SDK.
func Call(ctx context.Context, request Request) (number string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, os.Getenv("PROVIDER_URL"), nil)
	if err != nil {
		return "", err
	}
	if request.Key != "" {
		req.Header.Set("Idempotency-Key", request.Key)
	}
	req.Header.Set("Reference", request.Reference)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("provider: %s", resp.Status)
	}
	answer, err := io.ReadAll(resp.Body)
	return string(answer), err
}
