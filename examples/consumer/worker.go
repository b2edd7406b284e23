package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/kvstore/natskv"
	"github.com/idempotency-go/idempotency/stores/casstore"
)

const (
	streamName    = "payments"
	consumerName  = "billing" // the same after a restart, so that JetStream delivers unacknowledged messages again
	effectsBucket = "effects"

	lease = 3 * time.Second // how long a dead worker blocks a message
	skew  = time.Second     // between the clocks of workers, which share a clock in this example
)

// worker consumes the messages of a stream.
type worker struct {
	consumer jetstream.Consumer
	runner   *idempotency.Runner
	effects  jetstream.KeyValue // stands for a table with a unique key
}

func newWorker(ctx context.Context, js jetstream.JetStream) *worker {
	consumer, err := js.CreateOrUpdateConsumer(ctx, streamName, jetstream.ConsumerConfig{
		Durable:   consumerName,
		AckPolicy: jetstream.AckExplicitPolicy,
		AckWait:   lease + skew + time.Second, // so that the message of a dead worker comes again when its lease is over
	})
	demo.Check(err)
	effects, err := js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: effectsBucket})
	demo.Check(err)
	table, err := natskv.Open(ctx, js, "idempotency", 1, 2*time.Hour)
	demo.Check(err)
	runner, err := idempotency.NewRunner(casstore.New(table, casstore.Options{Skew: skew}), idempotency.RunnerOptions{
		TTL:          time.Hour, // longer than the time until the last delivery of a message
		Lease:        lease,
		StoreTimeout: lease, // keeps the failures of a slow disk out of the example
	})
	demo.Check(err)
	return &worker{consumer, runner, effects}
}

// consumeStream returns when all messages are handled.
func (w *worker) consumeStream(ctx context.Context) {
	for {
		batch, err := w.consumer.Fetch(1, jetstream.FetchMaxWait(time.Second))
		demo.Check(err)
		for message := range batch.Messages() {
			w.handleMessage(ctx, message)
		}
		demo.Check(batch.Error())
		info, err := w.consumer.Info(ctx)
		demo.Check(err)
		if info.NumPending == 0 && info.NumAckPending == 0 {
			return
		}
	}
}

// payment is the content of a message.
type payment struct {
	ID     string `json:"id"` // assigned by the business: a message that the sender sends twice keeps its ID
	Amount int    `json:"amount"`
}

// receipt is the stored result of a payment.
type receipt struct {
	Revision uint64 `json:"revision"`
}

// handleMessage makes the payment of message, unless an earlier attempt has done so. The outcome decides whether JetStream
// delivers message again.
func (w *worker) handleMessage(ctx context.Context, message jetstream.Msg) {
	fmt.Println("delivery")
	var order payment
	if err := json.Unmarshal(message.Data(), &order); err != nil {
		demo.Check(message.TermWithReason(err.Error()))
		return
	}
	key := idempotency.Key{User: consumerName, Endpoint: streamName, ID: order.ID}
	_, _, err := idempotency.DoJSON(ctx, w.runner, key, message.Data(), func(ctx context.Context) (receipt, error) {
		return w.pay(ctx, order, message)
	})
	switch {
	case err == nil, errors.Is(err, idempotency.ErrNotReplayable): // done, now or by an earlier attempt
		haltAt("recorded, not acknowledged", order)
		demo.Check(message.DoubleAck(ctx))
	case errors.Is(err, idempotency.ErrKeyReused), errors.Is(err, idempotency.ErrOutcomeUnknown): // a person has to look
		fmt.Println("parked")
		demo.Check(message.TermWithReason(err.Error()))
	default: // in progress elsewhere, or failed
		demo.Check(message.NakWithDelay(time.Second))
	}
}

// pay creates the effect of order, which must happen once only.
func (w *worker) pay(ctx context.Context, order payment, message jetstream.Msg) (receipt, error) {
	fmt.Println("execution")
	if about, err := message.Metadata(); err != nil || order.Amount == 17 && about.NumDelivered == 1 {
		return receipt{}, errors.Join(err, errors.New("the bank does not answer"))
	}
	// The ID of the operation is the unique key, so the effect of an earlier attempt stays as it is.
	op, _ := idempotency.FromContext(ctx)
	_, err := w.effects.Create(ctx, op.ID.String(), []byte(order.ID))
	if err != nil && !errors.Is(err, jetstream.ErrKeyExists) {
		return receipt{}, err
	}
	haltAt("effect exists, not recorded", order)
	effect, err := w.effects.Get(ctx, op.ID.String())
	if err != nil {
		return receipt{}, err
	}
	return receipt{effect.Revision()}, nil
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

// halting is the line that a worker prints when it waits to be killed.
const halting = "halting"

// haltAt halts the worker if the variable HALT names place and order.
func haltAt(place string, order payment) {
	if here := (haltPoint{place, order.Amount}); here.String() == os.Getenv("HALT") {
		fmt.Println(halting)
		select {}
	}
}
