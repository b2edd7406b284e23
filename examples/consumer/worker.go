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
	consumer = "worker-1" // the same after a restart, so the worker gets back its unacknowledged messages
)

// worker consumes the messages of a stream.
type worker struct {
	redisClient *redis.Client
	streamName  string
	runner      *idempotency.Runner
}

func newWorker(stream, addr string) *worker {
	client := redis.NewClient(&redis.Options{Addr: addr})
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: stream + ":record:"})
	runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{
		TTL:          time.Hour,        // longer than the time until the last delivery of a message
		Lease:        time.Second,      // how long a dead worker blocks a message
		StoreTimeout: time.Second,      // keeps the failures of a slow disk out of the example
		Wait:         10 * time.Second, // outlasts the lease of a dead worker
	})
	demo.Check(err)
	return &worker{client, stream, runner}
}

// consumeStream handles the pending messages of an earlier run first, and the new messages after that. consumeStream returns
// when all messages are handled.
func (w *worker) consumeStream(ctx context.Context) {
	from := "0"
	for {
		messages := w.readMessages(ctx, from)
		for _, message := range messages {
			w.handleMessage(ctx, message)
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

func (w *worker) readMessages(ctx context.Context, from string) []redis.XMessage {
	streams, err := w.redisClient.XReadGroup(ctx, &redis.XReadGroupArgs{
		Group: group, Consumer: consumer, Streams: []string{w.streamName, from}, Count: 5, Block: -1,
	}).Result()
	if err == redis.Nil {
		return nil
	}
	demo.Check(err)
	return streams[0].Messages
}

// receipt is the stored result of a message.
type receipt struct{ Number int64 }

// handleMessage pays for message, unless an earlier attempt has done so, and acknowledges message. After an error, message
// stays pending for the next run or for XAUTOCLAIM.
func (w *worker) handleMessage(ctx context.Context, message redis.XMessage) {
	demo.Check(w.redisClient.Incr(ctx, w.streamName+":tries").Err())
	payload, err := json.Marshal(message.Values)
	demo.Check(err)
	key := idempotency.Key{User: group, Endpoint: w.streamName, ID: message.ID}
	_, _, err = idempotency.DoJSON(ctx, w.runner, key, payload, func(ctx context.Context) (receipt, error) {
		return w.payMessage(ctx, message)
	})
	if err != nil {
		log.Printf("message %s: %v", message.ID, err)
		return
	}
	haltAt("recorded, not acknowledged", message)
	demo.Check(w.redisClient.XAck(ctx, w.streamName, group, message.ID).Err())
}

// effectsKey returns the key of a hash with the effects of the messages. The hash stands for a table with a unique key.
func effectsKey(stream string) string { return stream + ":effects" }

// payMessage creates the effect of message, which must happen once only.
func (w *worker) payMessage(ctx context.Context, message redis.XMessage) (receipt, error) {
	op, _ := idempotency.FromContext(ctx)
	if err := w.redisClient.Incr(ctx, w.streamName+":executions").Err(); err != nil {
		return receipt{}, err
	}
	// The ID of the operation is the unique key, so the effect of an earlier attempt stays as it is.
	if err := w.redisClient.HSetNX(ctx, effectsKey(w.streamName), op.ID.String(), message.ID).Err(); err != nil {
		return receipt{}, err
	}
	haltAt("effect exists, not recorded", message)
	number, err := w.redisClient.HLen(ctx, effectsKey(w.streamName)).Result()
	return receipt{number}, err
}

// haltPoint is the point at which a worker stops and waits to be killed.
type haltPoint struct {
	place  string
	amount int
}

func (h haltPoint) String() string {
	if h.place == "" {
		return ""
	}
	return fmt.Sprintf("%d: %s", h.amount, h.place)
}

// haltAt halts the worker if the variable HALT names place and message.
func haltAt(place string, message redis.XMessage) {
	here := fmt.Sprintf("%s: %s", message.Values["amount"], place)
	if here == os.Getenv("HALT") {
		fmt.Println(here)
		select {}
	}
}
