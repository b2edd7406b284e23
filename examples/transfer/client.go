package main

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"strings"

	"github.com/idempotency-go/idempotency/examples/internal/demo"
)

type client struct {
	baseURL      string
	requestCount int
}

// sendTransfer asks the service to move amount from alice to bob, and ends the program unless the answer has the given status.
func (c *client) sendTransfer(key string, amount, status int) {
	body := fmt.Sprintf(`{"to":"bob","amount":%d}`, amount)
	req, err := http.NewRequest(http.MethodPost, c.baseURL+"/transfers", strings.NewReader(body))
	demo.Check(err)
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, answer := sendRequest(req, "alice")
	c.requestCount++
	fmt.Printf("alice sends %3d, key %-9q: %s, replayed: %t, %s\n", amount, key, resp.Status,
		resp.Header.Get("Idempotent-Replayed") == "true", answer)
	if resp.StatusCode != status {
		log.Fatalf("this is broken: the status is not %d", status)
	}
}

func (c *client) readBalance(account string) string {
	req, err := http.NewRequest(http.MethodGet, c.baseURL+"/balance", nil)
	demo.Check(err)
	_, answer := sendRequest(req, account)
	return answer
}

func sendRequest(req *http.Request, account string) (*http.Response, string) {
	req.SetBasicAuth(account, "secret")
	resp, err := http.DefaultClient.Do(req)
	demo.Check(err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	demo.Check(err)
	return resp, strings.TrimSpace(string(body))
}
