package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
)

const (
	group    = "billing"
	consumer = "worker-1" // the same after a restart, which gets back what it has not acknowledged
)

// worker consumes a stream.
type worker struct {
	client *redis.Client
	stream string
	runner *idempotency.Runner
}

func newWorker(stream, addr string) *worker {
	client := redis.NewClient(&redis.Options{Addr: addr})
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: stream + ":record:"})
	runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{
		TTL:          time.Hour,        // longer than a message may take to be delivered again
		Lease:        time.Second,      // how long a message waits when its worker has died
		StoreTimeout: time.Second,      // so that a slow disk is none of the failures that are shown here
		Wait:         10 * time.Second, // for the lease of a worker that has died
	})
	demo.Check(err)
	return &worker{client, stream, runner}
}

// work handles the messages that an earlier run has left behind, then the new ones, until there are no more.
func (w *worker) work(ctx context.Context) {
	from := "0"
	for {
		messages := w.read(ctx, from)
		for _, message := range messages {
			w.handle(ctx, message)
		}
		switch {
		case len(messages) == 0 && from == ">":
			return
		case len(messages) == 0:
			from = ">"
		case from != ">":
			from = messages[len(messages)-1].ID
		}
	}
}

func (w *worker) read(ctx context.Context, from string) []redis.XMessage {
	streams, err := w.client.XReadGroup(ctx, &redis.XReadGroupArgs{
		Group: group, Consumer: consumer, Streams: []string{w.stream, from}, Count: 5, Block: -1,
	}).Result()
	if err == redis.Nil {
		return nil
	}
	demo.Check(err)
	return streams[0].Messages
}

// receipt is the result of a message.
type receipt struct{ Number int64 }

// handle works on a message, unless that was done before, and acknowledges it. On an error it stays pending, for
// the next run or for XAUTOCLAIM.
func (w *worker) handle(ctx context.Context, message redis.XMessage) {
	demo.Check(w.client.Incr(ctx, w.stream+":tries").Err())
	payload, err := json.Marshal(message.Values)
	demo.Check(err)
	key := idempotency.Key{User: group, Endpoint: w.stream, ID: message.ID}
	_, _, err = idempotency.DoJSON(ctx, w.runner, key, payload, func(ctx context.Context) (receipt, error) {
		return w.pay(ctx, message)
	})
	if err != nil {
		log.Printf("message %s: %v", message.ID, err)
		return
	}
	haltAt("recorded, not acknowledged", message)
	demo.Check(w.client.XAck(ctx, w.stream, group, message.ID).Err())
}

// effects is where the effects of the messages are: in the place of a table with a unique key.
func effects(stream string) string { return stream + ":effects" }

// pay has the effect that must not happen twice.
func (w *worker) pay(ctx context.Context, message redis.XMessage) (receipt, error) {
	op, _ := idempotency.FromContext(ctx)
	if err := w.client.Incr(ctx, w.stream+":executions").Err(); err != nil {
		return receipt{}, err
	}
	// The ID of the operation is the unique key. An earlier attempt may have come this far: then nothing happens.
	if err := w.client.HSetNX(ctx, effects(w.stream), op.ID.String(), message.ID).Err(); err != nil {
		return receipt{}, err
	}
	haltAt("effect exists, not recorded", message)
	number, err := w.client.HLen(ctx, effects(w.stream)).Result()
	return receipt{number}, err
}

// halt is where a worker stops and waits to be killed.
type halt struct {
	place  string
	amount int
}

func (h halt) String() string {
	if h.place == "" {
		return ""
	}
	return fmt.Sprintf("%d: %s", h.amount, h.place)
}

func haltAt(place string, message redis.XMessage) {
	here := fmt.Sprintf("%s: %s", message.Values["amount"], place)
	if here == os.Getenv("HALT") {
		fmt.Println(here)
		select {}
	}
}
