// Package provider stands for another system, such as a payment provider. The provider runs in the process that kills the
// service, and so outlives the service.
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

// Provider acts once for each key, and acts on every request without a key.
type Provider struct {
	lock            sync.Mutex
	acts            []act
	callCount       int
	losesNextAnswer bool
	nextHolds       []hold // one for each of the next requests
}

// hold makes a request wait. arrived is closed when the request arrives, released when it may go on.
type hold struct{ arrived, released chan struct{} }

// act is an entry of the provider's journal.
type act struct{ key, reference string }

// Start starts a provider. After Start, [Call] calls this provider, in this process and in its children.
func Start() (p *Provider, stop func()) {
	p = new(Provider)
	server := httptest.NewServer(p)
	demo.Check(os.Setenv("PROVIDER_URL", server.URL))
	return p, server.Close
}

func (p *Provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.awaitRelease()
	time.Sleep(rand.N(2 * time.Millisecond)) // so that the service also dies before and after the act
	number := p.carryOut(act{r.Header.Get("Idempotency-Key"), r.Header.Get("Reference")})
	time.Sleep(rand.N(2 * time.Millisecond))
	if p.takeLoss() {
		panic(http.ErrAbortHandler)
	}
	fmt.Fprint(w, number)
}

// carryOut appends a to the journal, and returns the number of a. If the key is known, the earlier act counts instead.
func (p *Provider) carryOut(a act) (number int) {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.callCount++
	for i, earlier := range p.acts {
		if a.key != "" && a.key == earlier.key {
			return i + 1
		}
	}
	p.acts = append(p.acts, a)
	return len(p.acts)
}

// Hold makes the next request wait until release is called. A second call of Hold makes the request after the next wait.
// arrived is closed when the request arrives.
func (p *Provider) Hold() (arrived <-chan struct{}, release func()) {
	h := hold{make(chan struct{}), make(chan struct{})}
	p.lock.Lock()
	defer p.lock.Unlock()
	p.nextHolds = append(p.nextHolds, h)
	return h.arrived, func() { close(h.released) }
}

// awaitRelease waits if Hold was called for this request.
func (p *Provider) awaitRelease() {
	p.lock.Lock()
	holds := p.nextHolds
	p.nextHolds = holds[min(1, len(holds)):]
	p.lock.Unlock()
	if len(holds) > 0 {
		close(holds[0].arrived)
		<-holds[0].released
	}
}

// LoseAnswer makes the provider drop the connection of the next request after the act.
func (p *Provider) LoseAnswer() {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.losesNextAnswer = true
}

// takeLoss reports whether the provider must lose this answer, and resets losesNextAnswer.
func (p *Provider) takeLoss() (isLost bool) {
	p.lock.Lock()
	defer p.lock.Unlock()
	isLost, p.losesNextAnswer = p.losesNextAnswer, false
	return isLost
}

// Acts returns the number of acts.
func (p *Provider) Acts() int {
	p.lock.Lock()
	defer p.lock.Unlock()
	return len(p.acts)
}

// Calls returns the number of calls, repeated calls included.
func (p *Provider) Calls() int {
	p.lock.Lock()
	defer p.lock.Unlock()
	return p.callCount
}

// ActsFor returns the number of acts with the given reference.
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

// Request is a request to the provider.
type Request struct {
	Key       string // the provider acts once for each key; may be empty
	Reference string // the provider only records the reference; may be empty
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
