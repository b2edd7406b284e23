package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
)

// clients send transfers, and keep what they are answered.
type clients struct {
	http      http.Client
	url       string
	transfers []string          // the keys
	answers   chan answer       // that have arrived
	answered  map[string]answer // by key
}

type answer struct {
	key, body, header string
	status            int
	replayed          bool
}

func newClients(url string) *clients {
	patient := &idempotency.Transport{
		Hosts: []string{"127.0.0.1"}, MaxAttempts: 1000, MinDelay: 5 * time.Millisecond, MaxDelay: 50 * time.Millisecond,
	}
	return &clients{
		http: http.Client{Transport: patient}, url: url, answers: make(chan answer), answered: make(map[string]answer),
	}
}

// transfer begins n transfers of 1, 2, 3 and so on. Each is sent by two clients at the same time.
func (c *clients) transfer(ctx context.Context, n int) {
	for range n {
		key := uuid.NewString()
		c.transfers = append(c.transfers, key)
		c.sendTwice(ctx, key, len(c.transfers))
	}
}

// overdraw sends a transfer of more than alice can have, and returns how it is answered.
func (c *clients) overdraw(ctx context.Context) answer {
	key := uuid.NewString()
	c.sendTwice(ctx, key, 2_000_000)
	c.await(2)
	return c.answered[key]
}

func (c *clients) sendTwice(ctx context.Context, key string, amount int) {
	for range 2 {
		go func() { c.answers <- c.send(ctx, key, amount) }()
	}
}

// await waits for n answers. All answers to a key must be the same.
func (c *clients) await(n int) {
	for range n {
		answer := <-c.answers
		c.compare(answer)
	}
}

func (c *clients) compare(a answer) {
	a.replayed = false
	first, ok := c.answered[a.key]
	if ok && a != first {
		log.Fatalf("this is broken: transfer %s was answered with %v and with %v", a.key, first, a)
	}
	c.answered[a.key] = a
}

// replay sends all transfers once more, and returns how many were answered with a replay of the answer before.
func (c *clients) replay(ctx context.Context) (replayed int) {
	for i, key := range c.transfers {
		answer := c.send(ctx, key, i+1)
		c.compare(answer)
		if answer.replayed {
			replayed++
		}
	}
	return replayed
}

// send sends a transfer until it has the whole answer.
func (c *clients) send(ctx context.Context, key string, amount int) answer {
	for {
		ctx := idempotency.WithKey(ctx, key)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, strings.NewReader(strconv.Itoa(amount)))
		demo.Check(err)
		resp, err := c.http.Do(req)
		demo.Check(err)
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			continue // the service has died as it wrote this
		}
		if resp.StatusCode != http.StatusCreated && resp.StatusCode != http.StatusUnprocessableEntity {
			log.Fatalf("this is broken: %s: %s", resp.Status, body)
		}
		replayed := resp.Header.Get("Idempotent-Replayed") == "true"
		resp.Header.Del("Idempotent-Replayed")
		resp.Header.Del("Date")
		return answer{key, string(body), fmt.Sprint(resp.Header), resp.StatusCode, replayed}
	}
}
