//go:build unix

// Package orders sends orders to a service, kills the service again and again, and keeps what the clients are told.
package orders

import (
	"context"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency/client"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/internal/process"
)

// Orders are those that were sent. Number i, from 0 on, is an order of i+1 pieces. Each was sent by two clients at once,
// which tried again until they had an answer.
type Orders struct {
	WhenDead func()            // called after each death
	Keys     []string          // of all orders
	Answered map[string]Answer // by key; all requests with the key have got this answer

	service  *process.Service
	client   http.Client
	arriving chan Answer
}

// Answer is what a client is told.
type Answer struct {
	Status       int
	Header, Body string
	Replayed     bool

	key string
}

// New returns a service that does not run yet, without orders.
func New() *Orders {
	patient := &client.Transport{
		Hosts: []string{"127.0.0.1"}, MaxAttempts: 1000, MinDelay: 5 * time.Millisecond, MaxDelay: 50 * time.Millisecond,
	}
	return &Orders{
		WhenDead: func() {}, Answered: make(map[string]Answer),
		service: process.New(), client: http.Client{Transport: patient}, arriving: make(chan Answer),
	}
}

// DieAt sends an order. The service dies at each of the places in turn, where it calls [process.HaltAt], and is then
// started again.
func (o *Orders) DieAt(ctx context.Context, places ...string) {
	o.place(ctx, 1)
	for _, place := range places {
		o.service.Start(ctx, "HALT="+place)
		o.service.AwaitHalt()
		o.kill()
		fmt.Println("service killed:", place)
	}
	o.service.Start(ctx)
	o.await(2)
}

// DieAtRandom has the service die so many times, each time with ten orders under way.
func (o *Orders) DieAtRandom(ctx context.Context, times int) {
	o.service.Start(ctx)
	for range times {
		o.place(ctx, 10)
		early := rand.IntN(20)
		o.await(early)
		time.Sleep(rand.N(2 * time.Millisecond)) // the moment of the death is what is random here
		o.kill()
		o.service.Start(ctx)
		o.await(20 - early)
	}
	fmt.Println("service killed:", times, "times at random")
}

// Stop ends the service.
func (o *Orders) Stop() { o.service.Stop() }

func (o *Orders) kill() {
	o.service.Kill()
	o.WhenDead()
}

// String says how many orders and deaths there were.
func (o *Orders) String() string {
	return fmt.Sprintf("%d orders, %d deaths", len(o.Keys), o.service.Deaths)
}

// With returns the keys of the orders that were answered with a status.
func (o *Orders) With(status int) (keys []string) {
	for _, key := range o.Keys {
		if o.Answered[key].Status == status {
			keys = append(keys, key)
		}
	}
	return keys
}

// Replayed sends all orders once more, and returns how many answers are replays. Each must be the answer before.
func (o *Orders) Replayed(ctx context.Context) (replayed int) {
	for i, key := range o.Keys {
		answer := o.Send(ctx, key, i+1)
		o.keep(answer)
		if answer.Replayed {
			replayed++
		}
	}
	return replayed
}

// place sends n new orders.
func (o *Orders) place(ctx context.Context, n int) {
	for range n {
		key := uuid.NewString()
		o.Keys = append(o.Keys, key)
		pieces := len(o.Keys)
		for range 2 {
			go func() { o.arriving <- o.Send(ctx, key, pieces) }()
		}
	}
}

// await waits for n answers.
func (o *Orders) await(n int) {
	for range n {
		o.keep(<-o.arriving)
	}
}

func (o *Orders) keep(a Answer) {
	a.Replayed = false
	first, ok := o.Answered[a.key]
	if ok && a != first {
		log.Fatalf("this is broken: order %s was answered with %v and with %v", a.key, first, a)
	}
	o.Answered[a.key] = a
}

// Send sends an order until it has the whole answer.
func (o *Orders) Send(ctx context.Context, key string, pieces int) Answer {
	for {
		req, err := http.NewRequestWithContext(client.WithKey(ctx, key), http.MethodPost, o.service.URL+"/orders",
			strings.NewReader(strconv.Itoa(pieces)))
		demo.Check(err)
		req.SetBasicAuth("alice", "secret")
		resp, err := o.client.Do(req)
		demo.Check(err)
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			continue // the service has died as it wrote this
		}
		replayed := resp.Header.Get("Idempotent-Replayed") == "true"
		resp.Header.Del("Idempotent-Replayed")
		resp.Header.Del("Date")
		return Answer{resp.StatusCode, fmt.Sprint(resp.Header), string(body), replayed, key}
	}
}
