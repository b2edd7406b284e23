package killtest

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/idempotency-go/idempotency"
)

// Provider is a payment provider. It charges once for each key that it is given, and keeps a journal. It is a server in
// the process of the test, which nobody kills.
type Provider struct {
	url string

	mu      sync.Mutex
	calls   int
	charges map[string]chargeOf // by key
	journal map[string][]string // keys by operation, as the client names it
}

// chargeOf is what the provider has done for a key.
type chargeOf struct{ operation, receipt string }

// NewProvider returns one that has charged nothing, for the time of a test.
func NewProvider(t interface {
	Cleanup(end func())
	Fatal(why ...any)
}) *Provider {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Provider{
		url: "http://" + listener.Addr().String(), charges: make(map[string]chargeOf), journal: make(map[string][]string),
	}
	server := http.Server{Handler: http.HandlerFunc(p.serve)}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		_ = server.Close()
		serving.Wait()
	})
	return p
}

// providerVariable is the environment variable with the address of the provider.
const providerVariable = "KILLTEST_PROVIDER"

// Env returns what a process that calls [Charge] is started with.
func (p *Provider) Env() string { return providerVariable + "=" + p.url }

// Charge has the provider charge for the operation of ctx. A handler calls it before it has another effect.
func Charge(ctx context.Context) error {
	_, err := charge(ctx, os.Getenv(providerVariable))
	return err
}

// charge has the provider at url charge for the operation of ctx, and returns the receipt.
func charge(ctx context.Context, url string) (receipt string, err error) {
	op, _ := idempotency.FromContext(ctx)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(op.Key.ID))
	if err != nil {
		return "", err
	}
	r.Header.Set("Idempotency-Key", op.DownstreamKey("charge"))
	resp, err := client.Do(r)
	if err != nil {
		return "", cmp.Or(context.Cause(ctx), err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("the provider answers %s: %s", resp.Status, text)
	}
	return string(text), err
}

var client = http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

// Charge is what the function Charge is, for a handler in the process of the test.
func (p *Provider) Charge(ctx context.Context) error {
	op, _ := idempotency.FromContext(ctx)
	_, err := p.charge(op.Key.ID, op.DownstreamKey("charge"))
	return err
}

func (p *Provider) serve(w http.ResponseWriter, r *http.Request) {
	operation, err := io.ReadAll(r.Body)
	receipt := ""
	if err == nil {
		receipt, err = p.charge(string(operation), r.Header.Get("Idempotency-Key"))
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	_, _ = io.WriteString(w, receipt)
}

// charge charges, unless the key was used already, and returns the receipt of the key.
func (p *Provider) charge(operation, key string) (receipt string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls++
	known, isKnown := p.charges[key]
	switch {
	case !isKnown:
		known = chargeOf{operation, rand.Text()}
		p.charges[key] = known
		p.journal[operation] = append(p.journal[operation], key)
	case known.operation != operation:
		return "", fmt.Errorf("%s comes with the key of %s", operation, known.operation)
	}
	return known.receipt, nil
}

// operations returns the operations that the provider has charged for.
func (p *Provider) operations() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.journal))
}

// Explain returns an error if an operation has come with two keys, and so was charged twice, or if one was answered and
// not charged.
func (p *Provider) Explain(answered ...string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var faults []error
	for operation, keys := range p.journal {
		if len(keys) > 1 {
			faults = append(faults, fmt.Errorf("%s was charged %d times, with the keys %v", operation, len(keys), keys))
		}
	}
	for _, operation := range answered {
		if len(p.journal[operation]) == 0 {
			faults = append(faults, fmt.Errorf("%s was answered and not charged", operation))
		}
	}
	return errors.Join(faults...)
}

// Counts returns how many operations the provider knows, how often it was called for them, and how often it has charged.
func (p *Provider) Counts() (operations, calls, charges int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.journal), p.calls, len(p.charges)
}

// String tells the counts.
func (p *Provider) String() string {
	operations, calls, charges := p.Counts()
	return fmt.Sprintf("%d calls of the provider for %d operations: %d charges", calls, operations, charges)
}
