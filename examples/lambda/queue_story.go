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

// queueStory has SQS deliver messages, and returns what came of it.
func queueStory() (verdict string) {
	stop := cloud.Start()
	defer stop()
	bank, stop := provider.Start()
	defer stop()
	one, two := cloud.NewInstance("EVENTS=SQS", "LEASE=2s", "SKEW=1s"), cloud.NewInstance("EVENTS=SQS", "LEASE=2s", "SKEW=1s")
	defer one.Stop()
	defer two.Stop()

	fmt.Println("The bank charges for the first message, but its answer is lost:")
	bank.LoseAnswer()
	expect(deliver(one, "abcd", patience), "delivered: abcd, failed: a.")
	expect(deliver(two, "a", patience), "delivered: a, failed: none.")

	fmt.Println("The bank takes its time, and SQS delivers the batch again, to another instance:")
	come, release := bank.Hold()
	running := inBackground(func() string { return deliver(one, "ef", patience) })
	<-come
	expect(deliver(two, "ef", patience), "delivered: ef, failed: e.")
	release()
	expect(running(), "delivered: ef, failed: none.")
	expect(deliver(two, "e", patience), "delivered: e, failed: none.")

	fmt.Println("The bank does not answer before the deadline:")
	_, release = bank.Hold()
	expect(deliver(one, "ghij", impatience), "delivered: ghij, failed: ghij.")
	release()
	expect(deliver(two, "ghij", patience), "delivered: ghij, failed: none.")

	return fmt.Sprintf("10 messages, 18 deliveries: %d charges", bank.Acts())
}

// deliver has an instance work on a batch of messages, whose names are letters. It returns which of them have failed.
func deliver(function *cloud.Instance, names string, timeout time.Duration) string {
	var batch events.SQSEvent
	for _, name := range strings.Split(names, "") {
		body, err := json.Marshal(payment{ID: name, Amount: 4200})
		demo.Check(err)
		batch.Records = append(batch.Records, events.SQSMessage{
			MessageId: name, Body: string(body), EventSourceARN: "arn:aws:sqs:eu-central-1:123456789012:payments",
		})
	}
	told, err := function.Invoke(batch, timeout)
	demo.Check(err)
	var answer events.SQSEventResponse
	demo.Check(json.Unmarshal(told, &answer))
	failed := ""
	for _, failure := range answer.BatchItemFailures {
		failed += failure.ItemIdentifier
	}
	return fmt.Sprintf("delivered: %s, failed: %s.", names, cmp.Or(failed, "none"))
}
