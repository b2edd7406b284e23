package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/idempotency-go/idempotency/examples/internal/cloud"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/internal/provider"
)

// runQueueScenario delivers batches of messages as SQS does, and returns a summary.
func runQueueScenario() (verdict string) {
	stop := cloud.Start()
	defer stop()
	bank, stop := provider.Start()
	defer stop()
	one, two := cloud.NewInstance("EVENTS=SQS", "LEASE=2s", "SKEW=1s"), cloud.NewInstance("EVENTS=SQS", "LEASE=2s", "SKEW=1s")
	defer one.Stop()
	defer two.Stop()

	fmt.Println("The bank charges for the first message, but its answer is lost:")
	bank.LoseAnswer()
	expectLine(deliverBatch(one, "abcd", longTimeout), "delivered: abcd, failed: a.")
	expectLine(deliverBatch(two, "a", longTimeout), "delivered: a, failed: none.")

	fmt.Println("The bank takes its time, and SQS delivers the batch again, to another instance:")
	arrived, release := bank.Hold()
	running := inBackground(func() string { return deliverBatch(one, "ef", longTimeout) })
	<-arrived
	expectLine(deliverBatch(two, "ef", longTimeout), "delivered: ef, failed: e.")
	release()
	expectLine(running(), "delivered: ef, failed: none.")
	expectLine(deliverBatch(two, "e", longTimeout), "delivered: e, failed: none.")

	fmt.Println("The bank does not answer before the deadline:")
	_, release = bank.Hold()
	expectLine(deliverBatch(one, "ghij", shortTimeout), "delivered: ghij, failed: ghij.")
	release()
	expectLine(deliverBatch(two, "ghij", longTimeout), "delivered: ghij, failed: none.")

	return fmt.Sprintf("10 messages, 18 deliveries: %d charges", bank.Acts())
}

// deliverBatch delivers a batch to function, and returns the messages that have failed. Each letter of names is a message.
func deliverBatch(function *cloud.Instance, names string, timeout time.Duration) string {
	var batch events.SQSEvent
	for _, name := range strings.Split(names, "") {
		body, err := json.Marshal(payment{ID: name, Amount: 4200})
		demo.Check(err)
		batch.Records = append(batch.Records, events.SQSMessage{
			MessageId: name, Body: string(body), EventSourceARN: "arn:aws:sqs:eu-central-1:123456789012:payments",
		})
	}
	output, err := function.Invoke(batch, timeout)
	demo.Check(err)
	var answer events.SQSEventResponse
	demo.Check(json.Unmarshal(output, &answer))
	failed := ""
	for _, failure := range answer.BatchItemFailures {
		failed += failure.ItemIdentifier
	}
	return fmt.Sprintf("delivered: %s, failed: %s.", names, cmp.Or(failed, "none"))
}
