package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
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

// story has clients call the one function, and SQS deliver messages to the other.
func story() {
	payments, messages := payStory(), queueStory()
	fmt.Printf("%s. %s\n", payments, messages)
	if payments != "4 payments, 1 process killed: 4 charges" || messages != "10 messages, 18 deliveries: 10 charges" {
		log.Fatal("this is broken")
	}
}

// payStory has clients call the function behind API Gateway, and returns what came of it.
func payStory() (verdict string) {
	stop := cloud.Start()
	defer stop()
	bank, stop := provider.Start()
	defer stop()
	one, two := cloud.NewInstance("LEASE=2s", "SKEW=1s"), cloud.NewInstance("LEASE=2s", "SKEW=1s")
	defer one.Stop()
	defer two.Stop()

	fmt.Println("Alice pays, and does so again. Another instance gets the retry:")
	expect(post(one, "/payments", "a", patience), "201 paid by charge 1")
	expect(post(two, "/payments", "a", patience), "201 paid by charge 1, replayed")

	fmt.Println("She pays twice at a time, and the bank takes its time:")
	come, release := bank.Hold()
	running := inBackground(func() string { return post(one, "/payments", "b", patience) })
	<-come
	expect(post(two, "/payments", "b", patience), "409 in-progress")
	release()
	expect(running(), "201 paid by charge 2")
	expect(post(two, "/payments", "b", patience), "201 paid by charge 2, replayed")

	fmt.Println("The bank does not answer before the deadline. One handler gives up, the other one is killed:")
	_, release = bank.Hold()
	_, releaseOther := bank.Hold()
	running = inBackground(func() string { return post(one, "/payments", "c", impatience) })
	killed := inBackground(func() string { return post(two, "/heedless", "d", impatience) })
	expect(running(), "504 the bank is slow")
	expect(killed(), "timed out")
	expect(post(one, "/heedless", "d", patience), "409 in-progress")
	release()
	releaseOther()
	expect(post(one, "/payments", "c", patience), "201 paid by charge")
	fmt.Println("The claim of the process that was killed lapses:")
	expect(retry(two, "/heedless", "d"), "201 paid by charge")

	if bank.Calls() != 6 {
		log.Fatalf("this is broken: the bank was called %d times", bank.Calls())
	}
	return fmt.Sprintf("4 payments, %d process killed: %d charges", one.Timeouts+two.Timeouts, bank.Acts())
}

// expect prints what happens, which begins with what must happen.
func expect(got, want string) {
	fmt.Println(" ", got)
	if !strings.HasPrefix(got, want) {
		log.Fatal("this is broken: not ", want)
	}
}

// inBackground starts what takes a while. The function that it returns waits for it.
func inBackground(work func() string) (result func() string) {
	done := make(chan string, 1)
	go func() { done <- work() }()
	return func() string { return <-done }
}

// retry sends a request until no other attempt at it may be running.
func retry(function *cloud.Instance, path, key string) string {
	for {
		answer := post(function, path, key, patience)
		if !strings.HasPrefix(answer, "409 in-progress") {
			return answer
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// post has an instance work on the request of a client, and returns the answer in a line.
func post(function *cloud.Instance, path, key string, timeout time.Duration) string {
	event := events.APIGatewayV2HTTPRequest{
		Version: "2.0", RawPath: path, Headers: map[string]string{"idempotency-key": key}, Body: "amount=4200",
	}
	event.RequestContext.HTTP.Method = http.MethodPost
	event.RequestContext.Authorizer = &events.APIGatewayV2HTTPRequestContextAuthorizerDescription{
		JWT: &events.APIGatewayV2HTTPRequestContextAuthorizerJWTDescription{Claims: map[string]string{"sub": "alice"}},
	}
	told, err := function.Invoke(event, timeout)
	if errors.Is(err, cloud.ErrTimeout) {
		return err.Error()
	}
	demo.Check(err)
	return show(told)
}

func show(told []byte) string {
	var answer events.APIGatewayV2HTTPResponse
	demo.Check(json.Unmarshal(told, &answer))
	body := strings.TrimSpace(answer.Body)
	if answer.Headers["Content-Type"] == "application/problem+json" {
		_, code, _ := strings.Cut(body, "#")
		body, _, _ = strings.Cut(code, `"`)
	}
	if answer.Headers["Idempotent-Replayed"] == "true" {
		body += ", replayed"
	}
	return fmt.Sprintf("%d %s", answer.StatusCode, body)
}
