package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/idempotency-go/idempotency/examples/internal/demo"
)

// customer presses as the one of the page does. It does not try again by itself.
type customer struct {
	url    string
	client http.Client
}

func newCustomer(url string) *customer {
	return &customer{url: url, client: http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
}

// answer is what comes back, if anything does.
type answer struct {
	status   int
	replayed bool
	receipt  receipt
}

// pay pays 42.00 for a purchase. The key is that of the purchase, however often it is paid for.
func (c *customer) pay(ctx context.Context, side, purchase, fault string) (answer, error) {
	body, err := json.Marshal(payment{purchase, 4200})
	if err != nil {
		return answer{}, err
	}
	path := fmt.Sprintf("%s/shop/%s/payments", c.url, side)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, path, bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.GetBody = nil // the client must not send it again by itself: the presses are counted
	req.Header.Set("Idempotency-Key", purchase)
	if fault != "" {
		req.Header.Set(faultHeader, fault)
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	a := answer{status: resp.StatusCode, replayed: resp.Header.Get("Idempotent-Replayed") == "true"}
	if a.status == http.StatusCreated {
		err = json.NewDecoder(resp.Body).Decode(&a.receipt)
	}
	return a, err
}

// kill has the shop killed as soon as it holds so many answers.
func (c *customer) kill(ctx context.Context, held int) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("%s/kill?held=%d", c.url, held), nil)
	demo.Check(err)
	resp, err := c.client.Do(req)
	demo.Check(err)
	resp.Body.Close()
}

// ledger returns what was charged for a purchase, or for all if it is empty.
func (c *customer) ledger(ctx context.Context, purchase string) (b books) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+"/ledger?purchase="+purchase, nil)
	demo.Check(err)
	resp, err := c.client.Do(req)
	demo.Check(err)
	defer resp.Body.Close()
	demo.Check(json.NewDecoder(resp.Body).Decode(&b))
	return b
}
