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

// serveQueue handles invocations with batches of messages from a queue of SQS until Lambda ends the process. Each message asks
// for a payment, which is made once, however often SQS delivers the message.
//
// Settings of the queue and the function:
//
//   - FunctionResponseTypes of the event source contains ReportBatchItemFailures. Otherwise SQS ignores the answer, and deletes all
//     messages.
//   - The visibility timeout is at least the timeout of the function plus a Lease and a Skew, so that the claim of a killed process
//     has lapsed when SQS delivers its messages again. AWS recommends six times the timeout of the function.
//   - maxReceiveCount of the redrive policy is not small, because each delivery counts, even if another instance is working on the
//     message. A message that reuses an ID with different content fails at each delivery, until maxReceiveCount moves the message
//     to the dead-letter queue.
//   - TTL outlasts the last delivery: the retention period of the queue, plus the time after which messages are sent again from the
//     dead-letter queue.
func serveQueue() {
	store, lease := newStore()
	runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{
		TTL: 14 * 24 * time.Hour, Lease: lease, StoreTimeout: storeTimeout,
	})
	demo.Check(err)
	lambda.Start((&consumer{runner}).handleBatch)
}

type consumer struct{ runner *idempotency.Runner }

// payment is the content of a message.
type payment struct {
	ID     string `json:"id"` // assigned by the business: a message that the sender sends twice keeps its ID
	Amount int    `json:"amount"`
}

type receipt struct {
	Charge string `json:"charge"`
}

// handleBatch makes the payments of a batch, and reports each message that SQS must deliver again. handleBatch returns before
// Lambda kills the process, and reports the remaining messages as failed. With a FIFO queue, handleBatch would have to stop at
// the first failure, and report all later messages too.
func (c *consumer) handleBatch(ctx context.Context, batch events.SQSEvent) (events.SQSEventResponse, error) {
	ctx, cancel := endEarly(ctx)
	defer cancel()
	var answer events.SQSEventResponse
	for _, message := range batch.Records {
		if err := c.makePayment(ctx, message); err != nil {
			log.Printf("message %s: %v", message.MessageId, err)
			failed := events.SQSBatchItemFailure{ItemIdentifier: message.MessageId}
			answer.BatchItemFailures = append(answer.BatchItemFailures, failed)
		}
	}
	return answer, nil
}

// makePayment makes the payment of a message, unless an earlier delivery has made the payment. If your messages have no ID, use
// MessageId, which stays the same for all deliveries of a message.
func (c *consumer) makePayment(ctx context.Context, message events.SQSMessage) error {
	if err := ctx.Err(); err != nil {
		return err // too late to begin
	}
	var order payment
	if err := json.Unmarshal([]byte(message.Body), &order); err != nil {
		return err
	}
	key := idempotency.Key{User: "billing", Endpoint: message.EventSourceARN, ID: order.ID}
	_, _, err := idempotency.DoJSON(ctx, c.runner, key, []byte(message.Body), func(ctx context.Context) (receipt, error) {
		op, _ := idempotency.FromContext(ctx)
		charge, err := provider.Call(ctx, provider.Request{Key: op.DownstreamKey("charge")})
		return receipt{charge}, err
	})
	return err
}
