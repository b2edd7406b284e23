// Kvstore keeps the records of a service in NATS JetStream KV, by package casstore and the table in package natskv. The service
// charges a card, and its client sends the request ten times at once. The program runs by itself, because it starts a
// nats-server in its own process, with a temporary directory. The program ends with the line
//
//	10 requests, 10 answers 201, 1 charge
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/internal/natsserver"
	"github.com/idempotency-go/idempotency/examples/kvstore/natskv"
	"github.com/idempotency-go/idempotency/stores/casstore"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	url, stop := natsserver.Start()
	defer stop()

	conn, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectBufSize(-1), nats.PingInterval(5*time.Second))
	demo.Check(err)
	defer conn.Close()
	js, err := jetstream.New(conn)
	demo.Check(err)
	table, err := natskv.Open(ctx, js, "idempotency", 1, 25*time.Hour)
	demo.Check(err)
	store := casstore.New(table, casstore.Options{})

	idem, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{Wait: 10 * time.Second})
	demo.Check(err)
	var charges atomic.Int32
	service := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		charges.Add(1)
		w.WriteHeader(http.StatusCreated)
	}))

	const sent = 10
	var created atomic.Int32
	var all sync.WaitGroup
	for range sent {
		all.Go(func() {
			r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/payments", strings.NewReader(`{"amount": 4200}`))
			r.Header.Set("Idempotency-Key", `"order-1"`)
			w := httptest.NewRecorder()
			service.ServeHTTP(w, r)
			if w.Code == http.StatusCreated {
				created.Add(1)
			}
		})
	}
	all.Wait()
	verdict := fmt.Sprintf("%d requests, %d answers 201, %d charge", sent, created.Load(), charges.Load())
	fmt.Println(verdict)
	if verdict != "10 requests, 10 answers 201, 1 charge" {
		log.Fatal("this is broken")
	}
}
