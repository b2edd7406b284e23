package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/idempotency-go/idempotency/examples/internal/demo"
)

// customer sends the requests of a customer on the page, without retries.
type customer struct {
	baseURL    string
	httpClient http.Client
}

func newCustomer(url string) *customer {
	return &customer{baseURL: url, httpClient: http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
}

// answer is the answer to a payment.
type answer struct {
	status   int
	isReplay bool
	receipt  receipt
}

// sendPayment pays €42.00 for purchase. The ID of the purchase is the key, so all payments for a purchase have the same
// key.
func (c *customer) sendPayment(ctx context.Context, side, purchase, fault string) (answer, error) {
	body, err := json.Marshal(payment{purchase, 4200, currency})
	if err != nil {
		return answer{}, err
	}
	path := fmt.Sprintf("%s/shop/%s/payments", c.baseURL, side)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, path, bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.GetBody = nil // keeps net/http from repeating the request, because the presses are counted
	req.Header.Set("Idempotency-Key", purchase)
	if fault != "" {
		req.Header.Set(faultHeader, fault)
	}
	resp, err := c.httpClient.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	a := answer{status: resp.StatusCode, isReplay: resp.Header.Get("Idempotent-Replayed") == "true"}
	if a.status == http.StatusCreated {
		err = json.NewDecoder(resp.Body).Decode(&a.receipt)
	}
	return a, err
}

// killShop makes the supervisor kill the shop as soon as the shop holds the given number of answers.
func (c *customer) killShop(ctx context.Context, held int) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("%s/kill?held=%d", c.baseURL, held), nil)
	demo.Check(err)
	resp, err := c.httpClient.Do(req)
	demo.Check(err)
	resp.Body.Close()
}

// fetchBooks returns the charges for purchase, or all charges if purchase is empty.
func (c *customer) fetchBooks(ctx context.Context, purchase string) (b books) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.baseURL+"/ledger?purchase="+purchase, nil)
	demo.Check(err)
	resp, err := c.httpClient.Do(req)
	demo.Check(err)
	defer resp.Body.Close()
	demo.Check(json.NewDecoder(resp.Body).Decode(&b))
	return b
}
