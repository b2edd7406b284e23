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
	longTimeout  = time.Minute                // for invocations that end in time
	shortTimeout = reservedTime + time.Second // for invocations that run out of time
)

// runScenarios calls both functions, and checks the number of charges.
func runScenarios() {
	payments, messages := runAPIScenario(), runQueueScenario()
	fmt.Printf("%s. %s\n", payments, messages)
	if payments != "4 payments, 1 process killed: 4 charges" || messages != "10 messages, 18 deliveries: 10 charges" {
		log.Fatal("this is broken")
	}
}

// runAPIScenario sends requests to the function behind API Gateway, and returns a summary.
func runAPIScenario() (verdict string) {
	stop := cloud.Start()
	defer stop()
	bank, stop := provider.Start()
	defer stop()
	one, two := cloud.NewInstance("LEASE=2s", "SKEW=1s"), cloud.NewInstance("LEASE=2s", "SKEW=1s")
	defer one.Stop()
	defer two.Stop()

	fmt.Println("Alice pays, and does so again. Another instance gets the retry:")
	expectLine(sendRequest(one, "/payments", "a", longTimeout), "201 paid by charge 1")
	expectLine(sendRequest(two, "/payments", "a", longTimeout), "201 paid by charge 1, replayed")

	fmt.Println("She pays twice at a time, and the bank takes its time:")
	arrived, release := bank.Hold()
	running := inBackground(func() string { return sendRequest(one, "/payments", "b", longTimeout) })
	<-arrived
	expectLine(sendRequest(two, "/payments", "b", longTimeout), "409 in-progress")
	release()
	expectLine(running(), "201 paid by charge 2")
	expectLine(sendRequest(two, "/payments", "b", longTimeout), "201 paid by charge 2, replayed")

	fmt.Println("The bank does not answer before the deadline. One handler gives up, the other one is killed:")
	_, release = bank.Hold()
	_, releaseOther := bank.Hold()
	running = inBackground(func() string { return sendRequest(one, "/payments", "c", shortTimeout) })
	killed := inBackground(func() string { return sendRequest(two, "/heedless", "d", shortTimeout) })
	expectLine(running(), "504 the bank is slow")
	expectLine(killed(), "timed out")
	expectLine(sendRequest(one, "/heedless", "d", longTimeout), "409 in-progress")
	release()
	releaseOther()
	expectLine(sendRequest(one, "/payments", "c", longTimeout), "201 paid by charge")
	fmt.Println("The claim of the process that was killed lapses:")
	expectLine(retryRequest(two, "/heedless", "d"), "201 paid by charge")

	if bank.Calls() != 6 {
		log.Fatalf("this is broken: the bank was called %d times", bank.Calls())
	}
	return fmt.Sprintf("4 payments, %d process killed: %d charges", one.Timeouts+two.Timeouts, bank.Acts())
}

// expectLine prints got, and ends the program unless got begins with want.
func expectLine(got, want string) {
	fmt.Println(" ", got)
	if !strings.HasPrefix(got, want) {
		log.Fatal("this is broken: not ", want)
	}
}

// inBackground starts work in a goroutine. The function result waits for the result of work.
func inBackground(work func() string) (result func() string) {
	done := make(chan string, 1)
	go func() { done <- work() }()
	return func() string { return <-done }
}

// retryRequest repeats a request while the answer is 409 in-progress.
func retryRequest(function *cloud.Instance, path, key string) string {
	for {
		answer := sendRequest(function, path, key, longTimeout)
		if !strings.HasPrefix(answer, "409 in-progress") {
			return answer
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// sendRequest passes the request of a client to function, and returns the answer as a line.
func sendRequest(function *cloud.Instance, path, key string, timeout time.Duration) string {
	event := events.APIGatewayV2HTTPRequest{
		Version: "2.0", RawPath: path, Headers: map[string]string{"idempotency-key": key}, Body: "amount=4200",
	}
	event.RequestContext.HTTP.Method = http.MethodPost
	event.RequestContext.Authorizer = &events.APIGatewayV2HTTPRequestContextAuthorizerDescription{
		JWT: &events.APIGatewayV2HTTPRequestContextAuthorizerJWTDescription{Claims: map[string]string{"sub": "alice"}},
	}
	output, err := function.Invoke(event, timeout)
	if errors.Is(err, cloud.ErrTimeout) {
		return err.Error()
	}
	demo.Check(err)
	return formatAnswer(output)
}

func formatAnswer(output []byte) string {
	var answer events.APIGatewayV2HTTPResponse
	demo.Check(json.Unmarshal(output, &answer))
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
