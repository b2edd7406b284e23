// Downstream shows a shop that charges cards at a payment provider. The shop dies between the charge and its own
// answer; its client tries again. The provider is guarded by the same middleware, and gets the same key from both
// attempts. It ends with the line
//
//	attempts of the shop: 2, requests to the provider: 2, charges: 1
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
)

func main() {
	provider := new(provider)
	bank := httptest.NewServer(provider.count(guard(provider)))
	defer bank.Close()

	shop := &shop{provider: bank.URL}
	service := httptest.NewServer(guard(shop))
	defer service.Close()

	client := http.Client{Transport: &idempotency.Transport{Hosts: []string{"127.0.0.1"}}}
	resp, err := client.Post(service.URL+"/orders", "text/plain", strings.NewReader("4200"))
	demo.Check(err)
	answer, err := io.ReadAll(resp.Body)
	demo.Check(err)
	demo.Check(resp.Body.Close())
	fmt.Println("client:  ", resp.Status, string(answer))

	verdict := fmt.Sprintf("attempts of the shop: %d, requests to the provider: %d, charges: %d",
		shop.attempts.Load(), provider.requests.Load(), provider.charges.Load())
	fmt.Println(verdict)
	promise := "attempts of the shop: 2, requests to the provider: 2, charges: 1"
	if verdict != promise || string(answer) != "paid by charge 1" {
		log.Fatal("this is broken")
	}
}

// guard puts a handler behind a middleware with a store of its own.
func guard(handler http.Handler) http.Handler {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	idem, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{Required: true})
	demo.Check(err)
	return idem.Handler(handler)
}

// shop is the handler that calls another system.
type shop struct {
	provider string
	attempts atomic.Int64
}

func (s *shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	op, _ := idempotency.FromContext(r.Context())
	s.attempts.Add(1)

	receipt, err := s.charge(r.Context(), op.DownstreamKey("charge"), r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway) // not stored: the client may try again
		return
	}
	if op.Attempt == 1 {
		fmt.Println("shop:     dies after the provider has charged the card")
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(http.StatusCreated)
	fmt.Fprint(w, "paid by ", receipt)
}

// charge asks the provider for a charge. The key says which one, for as long as the provider remembers it.
func (s *shop) charge(ctx context.Context, key string, amount io.Reader) (receipt string, err error) {
	body, err := io.ReadAll(amount)
	if err != nil {
		return "", err
	}
	ctx = idempotency.WithKey(ctx, key)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.provider+"/charges", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	client := http.Client{Transport: &idempotency.Transport{Hosts: []string{"127.0.0.1"}}}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		return "", fmt.Errorf("provider: %s", resp.Status)
	}
	answer, err := io.ReadAll(resp.Body)
	return string(answer), err
}

// provider charges a card each time it runs.
type provider struct{ requests, charges atomic.Int64 }

func (p *provider) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	n := p.charges.Add(1)
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "charge %d", n)
}

func (p *provider) count(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.requests.Add(1)
		fmt.Println("provider: request with key", r.Header.Get("Idempotency-Key"))
		next.ServeHTTP(w, r)
	})
}
