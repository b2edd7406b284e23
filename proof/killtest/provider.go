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

// Provider is a fake payment provider, which charges once for each key and keeps a journal. The provider is a server
// in the process of the test, which is not killed.
type Provider struct {
	url string

	mu              sync.Mutex
	callCount       int
	chargeByKey     map[string]keyCharge
	keysByOperation map[string][]string // the client names the operation
}

// keyCharge is the charge for a key.
type keyCharge struct{ operation, receipt string }

// NewProvider starts a provider for the duration of the test t.
func NewProvider(t interface {
	Cleanup(end func())
	Fatal(why ...any)
}) *Provider {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Provider{
		url:         "http://" + listener.Addr().String(),
		chargeByKey: make(map[string]keyCharge), keysByOperation: make(map[string][]string),
	}
	server := http.Server{Handler: http.HandlerFunc(p.serveCharge)}
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

// Env returns the environment variable for processes that call [Charge].
func (p *Provider) Env() string { return providerVariable + "=" + p.url }

// Charge asks the provider of the environment to charge for the operation of ctx. A handler calls Charge before any
// other effect.
func Charge(ctx context.Context) error {
	_, err := requestCharge(ctx, os.Getenv(providerVariable))
	return err
}

// requestCharge asks the provider at url to charge for the operation of ctx, and returns the receipt.
func requestCharge(ctx context.Context, url string) (receipt string, err error) {
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

// Charge does the same as the function Charge, for a handler in the process of the test.
func (p *Provider) Charge(ctx context.Context) error {
	op, _ := idempotency.FromContext(ctx)
	_, err := p.chargeOnce(op.Key.ID, op.DownstreamKey("charge"))
	return err
}

func (p *Provider) serveCharge(w http.ResponseWriter, r *http.Request) {
	operation, err := io.ReadAll(r.Body)
	receipt := ""
	if err == nil {
		receipt, err = p.chargeOnce(string(operation), r.Header.Get("Idempotency-Key"))
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	_, _ = io.WriteString(w, receipt)
}

// chargeOnce charges unless key was used before, and returns the receipt of key.
func (p *Provider) chargeOnce(operation, key string) (receipt string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.callCount++
	known, isKnown := p.chargeByKey[key]
	switch {
	case !isKnown:
		known = keyCharge{operation, rand.Text()}
		p.chargeByKey[key] = known
		p.keysByOperation[operation] = append(p.keysByOperation[operation], key)
	case known.operation != operation:
		return "", fmt.Errorf("%s comes with the key of %s", operation, known.operation)
	}
	return known.receipt, nil
}

// knownOperations returns all charged operations in order.
func (p *Provider) knownOperations() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.keysByOperation))
}

// Explain returns an error if an operation came with two keys, and was therefore charged twice, or if one of the
// operations in answered was not charged.
func (p *Provider) Explain(answered ...string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var faults []error
	for operation, keys := range p.keysByOperation {
		if len(keys) > 1 {
			faults = append(faults, fmt.Errorf("%s was charged %d times, with the keys %v", operation, len(keys), keys))
		}
	}
	for _, operation := range answered {
		if len(p.keysByOperation[operation]) == 0 {
			faults = append(faults, fmt.Errorf("%s was answered and not charged", operation))
		}
	}
	return errors.Join(faults...)
}

// Counts returns the number of operations, of calls, and of charges.
func (p *Provider) Counts() (operations, calls, charges int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.keysByOperation), p.callCount, len(p.chargeByKey)
}

// String returns the counts as text.
func (p *Provider) String() string {
	operations, calls, charges := p.Counts()
	return fmt.Sprintf("%d calls of the provider for %d operations: %d charges", calls, operations, charges)
}
