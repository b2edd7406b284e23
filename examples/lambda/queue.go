package main

import (
	"context"
	"encoding/json"
	"log"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-lambda-go/lambda"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/internal/provider"
)

// serveQueue serves invocations with batches of messages from a queue of SQS until Lambda ends the process. Each message asks
// for a payment, and is done once, however often it is delivered.
//
// What to set:
//
//   - FunctionResponseTypes of the event source has ReportBatchItemFailures. Otherwise SQS takes no notice of the answer, and
//     deletes all messages.
//   - The visibility timeout is at least the timeout of the function, a Lease and a Skew. Then the claim of a process that was
//     killed has lapsed when its messages come back. AWS advises six times the timeout.
//   - A message that is in progress elsewhere comes back, and each time counts for maxReceiveCount of the redrive policy. So this
//     count must not be small. A message whose ID came with another content before fails each time, until that count sends it to
//     the dead-letter queue.
//   - TTL outlasts the last delivery: the retention period of the queue, and of what is sent again from the dead-letter queue.
func serveQueue() {
	store, lease := newStore()
	runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{
		TTL: 14 * 24 * time.Hour, Lease: lease, StoreTimeout: storeTimeout,
	})
	demo.Check(err)
	lambda.Start((&consumer{runner}).work)
}

type consumer struct{ runner *idempotency.Runner }

// payment is what a message asks for.
type payment struct {
	ID     string `json:"id"` // of the business, and the same if the sender sends the message twice
	Amount int    `json:"amount"`
}

type receipt struct {
	Charge string `json:"charge"`
}

// work works on a batch, and reports each message that must come again. It ends before Lambda kills the process, and what it
// has not come to has failed. A queue that keeps the order (FIFO) must not go on after the first failure, and must report
// all the messages that follow.
func (c *consumer) work(ctx context.Context, batch events.SQSEvent) (events.SQSEventResponse, error) {
	ctx, cancel := endEarly(ctx)
	defer cancel()
	var answer events.SQSEventResponse
	for _, message := range batch.Records {
		if err := c.do(ctx, message); err != nil {
			log.Printf("message %s: %v", message.MessageId, err)
			failed := events.SQSBatchItemFailure{ItemIdentifier: message.MessageId}
			answer.BatchItemFailures = append(answer.BatchItemFailures, failed)
		}
	}
	return answer, nil
}

// do does what a message asks for, unless that was done before. If your messages have no ID, take MessageId, which is the same
// for each delivery.
func (c *consumer) do(ctx context.Context, message events.SQSMessage) error {
	if err := ctx.Err(); err != nil {
		return err // there is no time left to begin
	}
	var asked payment
	if err := json.Unmarshal([]byte(message.Body), &asked); err != nil {
		return err
	}
	key := idempotency.Key{User: "billing", Endpoint: message.EventSourceARN, ID: asked.ID}
	_, _, err := idempotency.DoJSON(ctx, c.runner, key, []byte(message.Body), func(ctx context.Context) (receipt, error) {
		op, _ := idempotency.FromContext(ctx)
		charge, err := provider.Call(ctx, provider.Request{Key: op.DownstreamKey("charge")})
		return receipt{charge}, err
	})
	return err
}
