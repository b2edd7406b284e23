package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/idempotency-go/idempotency/examples/internal/cloud"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/internal/provider"
)

const (
	patience   = time.Minute           // the timeout of invocations that end in time
	impatience = reserve + time.Second // the timeout of those that do not
)

// story has SQS deliver messages.
func story() {
	stop := cloud.Start()
	defer stop()
	bank, stop := provider.Start()
	defer stop()
	one, two := cloud.NewInstance("LEASE=2s", "SKEW=1s"), cloud.NewInstance("LEASE=2s", "SKEW=1s")
	defer one.Stop()
	defer two.Stop()

	fmt.Println("The bank charges for the first message, but its answer is lost:")
	bank.LoseAnswer()
	expect(deliver(one, "abcd", patience), "failed: a")
	expect(deliver(two, "a", patience), "failed: none")

	fmt.Println("The bank takes its time, and SQS delivers the batch again, to another instance:")
	come, release := bank.Hold()
	running := make(chan string)
	go func() { running <- deliver(one, "ef", patience) }()
	<-come
	expect(deliver(two, "ef", patience), "failed: e")
	release()
	expect(<-running, "failed: none")
	expect(deliver(two, "e", patience), "failed: none")

	fmt.Println("The bank does not answer before the deadline:")
	_, release = bank.Hold()
	expect(deliver(one, "ghij", impatience), "failed: ghij")
	release()
	expect(deliver(two, "ghij", patience), "failed: none")

	verdict := fmt.Sprintf("10 messages, 18 deliveries: %d charges", bank.Acts())
	fmt.Println(verdict)
	if verdict != "10 messages, 18 deliveries: 10 charges" {
		log.Fatal("this is broken")
	}
}

// expect prints what happens.
func expect(got, want string) {
	fmt.Println(" ", got)
	if !strings.HasSuffix(got, want) {
		log.Fatal("this is broken: not ", want)
	}
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
	return fmt.Sprintf("delivered: %s, failed: %s", names, cmp.Or(failed, "none"))
}
