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
	url  string
	sent int
}

// transfer sends an amount from alice to bob.
func (c *client) transfer(key string, amount, status int) {
	body := fmt.Sprintf(`{"to":"bob","amount":%d}`, amount)
	req, err := http.NewRequest(http.MethodPost, c.url+"/transfers", strings.NewReader(body))
	demo.Check(err)
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, answer := do(req, "alice")
	c.sent++
	fmt.Printf("alice sends %3d, key %-9q: %s, replayed: %t, %s\n", amount, key, resp.Status,
		resp.Header.Get("Idempotent-Replayed") == "true", answer)
	if resp.StatusCode != status {
		log.Fatalf("this is broken: the status is not %d", status)
	}
}

func (c *client) balance(account string) string {
	req, err := http.NewRequest(http.MethodGet, c.url+"/balance", nil)
	demo.Check(err)
	_, answer := do(req, account)
	return answer
}

func do(req *http.Request, account string) (*http.Response, string) {
	req.SetBasicAuth(account, "secret")
	resp, err := http.DefaultClient.Do(req)
	demo.Check(err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	demo.Check(err)
	return resp, strings.TrimSpace(string(body))
}
