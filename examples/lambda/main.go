// Lambda has two functions of AWS Lambda that charge cards. The first function is behind an HTTP API of API Gateway. The second
// function receives batches of messages from a queue of SQS, see queue.go. The records are in DynamoDB.
//
// The program also emulates AWS: it starts itself as two instances of each function, sends the instances real events through a
// Runtime API, and runs an emulator of DynamoDB. One invocation gives up before its deadline, and another is killed at its
// deadline. One batch fails in part, one batch is delivered again during its processing, and one batch runs out of time. The
// program ends with the line
//
//	4 payments, 1 process killed: 4 charges. 10 messages, 18 deliveries: 10 charges
//
// Settings of a function behind API Gateway:
//
//   - Lambda kills the process at the timeout of the function, and ends the context of the invocation only then. So withEarlyEnd
//     ends the handler's context earlier. A handler that heeds its context answers 504, the middleware releases the claim, and a
//     retry runs at once. The release and the answer have StoreTimeout plus a second.
//   - Lambda kills a handler that ignores its context. The key is then blocked for Lease plus Skew, by default 40 seconds. Lease
//     may be shorter than the timeout of the function, because the middleware renews the lease while the handler runs, with one
//     request for each third of the lease.
//   - API Gateway waits for at most 30 seconds, and then answers 503 or 504 while the function continues. A retry gets 409, and
//     later the answer. So a timeout of the function slightly above 30 seconds does no harm.
//   - Between invocations the process is frozen, so nothing runs in the background. If the store does not accept an answer within
//     StoreTimeout, the answer is sent, and may never be stored.
//
// The adapter is algnhsa, whose only dependency is aws-lambda-go. Most programs use aws-lambda-go-api-proxy, which was archived
// in May 2025. AWS names the Lambda Web Adapter as the successor: a program beside the function that calls a normal HTTP server,
// with the deadline in the field X-Amzn-Lambda-Context. Package lambdaurl of aws-lambda-go is only for function URLs that stream.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/akrylysov/algnhsa"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/cloud"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/internal/provider"
	"github.com/idempotency-go/idempotency/stores/dynamodbstore"
)

func main() {
	switch {
	case !cloud.IsFunction():
		runScenarios()
	case os.Getenv("EVENTS") == "SQS":
		serveQueue()
	default:
		serveAPI()
	}
}

const (
	storeTimeout = 2 * time.Second
	reservedTime = storeTimeout + time.Second // the end of each invocation, to release the last claim and to answer
)

// newStore returns the store of the functions, and the lease. The scenarios set LEASE and SKEW to short durations. Without these
// variables, the defaults apply.
func newStore() (store *dynamodbstore.Store, lease time.Duration) {
	settings, err := config.LoadDefaultConfig(context.Background())
	demo.Check(err)
	lease, _ = time.ParseDuration(os.Getenv("LEASE"))
	skew, _ := time.ParseDuration(os.Getenv("SKEW"))
	return dynamodbstore.New(dynamodb.NewFromConfig(settings), dynamodbstore.Options{Skew: skew}), lease
}

// serveAPI handles invocations by API Gateway until Lambda ends the process.
func serveAPI() {
	store, lease := newStore()
	idem, err := idempotency.New(store, identifyUser, idempotency.Options{
		Required: true, Lease: lease, StoreTimeout: storeTimeout,
	})
	demo.Check(err)
	mux := http.NewServeMux()
	mux.Handle("POST /payments", idem.Handler(http.HandlerFunc(chargeCard)))
	mux.Handle("POST /heedless", idem.Handler(http.HandlerFunc(chargeCardIgnoringDeadline)))
	algnhsa.ListenAndServe(withEarlyEnd(mux), &algnhsa.Options{RequestType: algnhsa.RequestTypeAPIGatewayV2})
}

// identifyUser returns the user whom the JWT authorizer of the API has admitted.
func identifyUser(r *http.Request) (string, error) {
	event, ok := algnhsa.APIGatewayV2RequestFromContext(r.Context())
	if !ok || event.RequestContext.Authorizer == nil || event.RequestContext.Authorizer.JWT == nil {
		return "", errors.New("not authenticated")
	}
	return event.RequestContext.Authorizer.JWT.Claims["sub"], nil
}

// endEarly returns a context that ends reservedTime before the deadline of ctx, at which Lambda kills the process.
func endEarly(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, deadline.Add(-reservedTime))
}

// withEarlyEnd passes each request to next with the context of endEarly.
func withEarlyEnd(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := endEarly(r.Context())
		defer cancel()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// chargeCard charges a card. If the bank is slow, chargeCard gives up at the end of the request's context.
func chargeCard(w http.ResponseWriter, r *http.Request) {
	op, _ := idempotency.FromContext(r.Context())
	charge, err := provider.Call(r.Context(), provider.Request{Key: op.DownstreamKey("charge")})
	if err != nil {
		http.Error(w, "the bank is slow", http.StatusGatewayTimeout) // not stored, so a retry asks the bank again
		return
	}
	w.WriteHeader(http.StatusCreated)
	fmt.Fprint(w, "paid by charge ", charge)
}

// chargeCardIgnoringDeadline stands for a handler that ignores the end of its context.
func chargeCardIgnoringDeadline(w http.ResponseWriter, r *http.Request) {
	chargeCard(w, r.WithContext(context.WithoutCancel(r.Context())))
}
