//go:build unix

// Package orders sends orders to a service, kills the service again and again, and keeps the answers that the clients get.
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

// Orders are the orders that were sent to a service. Order i, counted from 0, is for i+1 pieces. Two clients send each order at
// the same time, and retry until they have an answer.
type Orders struct {
	WhenDead func()            // called after each death
	Keys     []string          // the keys of all orders
	Answered map[string]Answer // by key: the answer to all requests with the key

	service         *process.Service
	httpClient      http.Client
	arrivingAnswers chan Answer
}

// Answer is the answer that a client gets.
type Answer struct {
	Status       int
	Header, Body string
	Replayed     bool

	key string
}

// New returns Orders that are empty, with a service that does not run yet.
func New() *Orders {
	patient := &client.Transport{
		Hosts: []string{"127.0.0.1"}, MaxAttempts: 1000, MinDelay: 5 * time.Millisecond, MaxDelay: 50 * time.Millisecond,
	}
	return &Orders{
		WhenDead: func() {}, Answered: make(map[string]Answer),
		service: process.New(), httpClient: http.Client{Transport: patient}, arrivingAnswers: make(chan Answer),
	}
}

// DieAt sends an order, and kills the service at each of places in turn. A place is where the service calls [process.HaltAt].
// After each kill, DieAt starts the service again, so the retries of the clients reach the next place.
func (o *Orders) DieAt(ctx context.Context, places ...string) {
	o.placeOrders(ctx, 1)
	for _, place := range places {
		o.service.Start(ctx, "HALT="+place)
		o.service.AwaitHalt()
		o.killService()
		fmt.Println("service killed:", place)
	}
	o.service.Start(ctx)
	o.awaitAnswers(2)
}

// DieAtRandom runs the given number of rounds. Each round sends ten orders, kills the service before all clients have their
// answers, starts the service again, and waits for the answers that are left.
func (o *Orders) DieAtRandom(ctx context.Context, times int) {
	o.service.Start(ctx)
	for range times {
		o.placeOrders(ctx, 10)
		early := rand.IntN(20)
		o.awaitAnswers(early)
		time.Sleep(rand.N(2 * time.Millisecond)) // makes the moment of the death random
		o.killService()
		o.service.Start(ctx)
		o.awaitAnswers(20 - early)
	}
	fmt.Println("service killed:", times, "times at random")
}

// Stop stops the service.
func (o *Orders) Stop() { o.service.Stop() }

func (o *Orders) killService() {
	o.service.Kill()
	o.WhenDead()
}

// String returns the numbers of orders and deaths.
func (o *Orders) String() string {
	return fmt.Sprintf("%d orders, %d deaths", len(o.Keys), o.service.Deaths)
}

// With returns the keys of the orders whose answer has the given status.
func (o *Orders) With(status int) (keys []string) {
	for _, key := range o.Keys {
		if o.Answered[key].Status == status {
			keys = append(keys, key)
		}
	}
	return keys
}

// Replayed sends all orders once more, and returns the number of replays among the answers. Replayed ends the program if an
// answer differs from the earlier answer to the same order.
func (o *Orders) Replayed(ctx context.Context) (replayed int) {
	for i, key := range o.Keys {
		answer := o.Send(ctx, key, i+1)
		o.keepAnswer(answer)
		if answer.Replayed {
			replayed++
		}
	}
	return replayed
}

// placeOrders sends n new orders.
func (o *Orders) placeOrders(ctx context.Context, n int) {
	for range n {
		key := uuid.NewString()
		o.Keys = append(o.Keys, key)
		pieces := len(o.Keys)
		for range 2 {
			go func() { o.arrivingAnswers <- o.Send(ctx, key, pieces) }()
		}
	}
}

// awaitAnswers waits for n answers.
func (o *Orders) awaitAnswers(n int) {
	for range n {
		o.keepAnswer(<-o.arrivingAnswers)
	}
}

// keepAnswer stores a. All answers to an order must be equal, apart from Replayed.
func (o *Orders) keepAnswer(a Answer) {
	a.Replayed = false
	first, ok := o.Answered[a.key]
	if ok && a != first {
		log.Fatalf("this is broken: order %s was answered with %v and with %v", a.key, first, a)
	}
	o.Answered[a.key] = a
}

// Send repeats an order until the whole answer has arrived.
func (o *Orders) Send(ctx context.Context, key string, pieces int) Answer {
	for {
		req, err := http.NewRequestWithContext(client.WithKey(ctx, key), http.MethodPost, o.service.URL+"/orders",
			strings.NewReader(strconv.Itoa(pieces)))
		demo.Check(err)
		req.SetBasicAuth("alice", "secret")
		resp, err := o.httpClient.Do(req)
		demo.Check(err)
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			continue // the service died while it wrote the answer
		}
		replayed := resp.Header.Get("Idempotent-Replayed") == "true"
		resp.Header.Del("Idempotent-Replayed")
		resp.Header.Del("Date")
		return Answer{resp.StatusCode, fmt.Sprint(resp.Header), string(body), replayed, key}
	}
}
