// Lambda has two functions of AWS Lambda, which charge cards: one behind an HTTP API of API Gateway, and one that gets batches
// of messages from a queue of SQS, see queue.go. Their records are in DynamoDB. Here, the same program plays AWS too: it starts
// itself as two instances of each function, which get real events from a Runtime API, and find their table in an emulator.
// One invocation is cut short before its deadline, another one is killed at its deadline. One batch fails in part, one is
// delivered again while it is being worked on, and one is cut short. It ends with the line
//
//	4 payments, 1 process killed: 4 charges. 10 messages, 18 deliveries: 10 charges
//
// What to set for a function behind API Gateway:
//
//   - Lambda kills the process at the timeout of the function, and the context of the invocation ends only then. So a handler's
//     context must end earlier, as withEarlyEnd has it: a handler that heeds it answers 504, its claim is released, and a retry
//     runs at once. The time that is kept for that is StoreTimeout and a second.
//   - A handler that does not heed it is killed. Its key is blocked for Lease and Skew, by default 40 seconds. Lease need not be
//     as long as the timeout: it is renewed while the handler runs, one request for each third of it.
//   - API Gateway waits for at most 30 seconds. It then answers 503 or 504 itself, while the function goes on: a retry gets
//     409, and then the answer. So a timeout of the function that is a little longer than that does no harm.
//   - Between invocations the process is frozen, and nothing runs in the background. An answer that the store does not take
//     within StoreTimeout is sent, and may never be stored.
//
// The adapter is algnhsa, which depends only on aws-lambda-go. The one that most programs have, aws-lambda-go-api-proxy, has
// been archived since May 2025. AWS names its Lambda Web Adapter as the successor: a program beside the function, which
// calls a common HTTP server, with the deadline in the field X-Amzn-Lambda-Context. Package lambdaurl of aws-lambda-go is only
// for function URLs that stream.
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
		story()
	case os.Getenv("EVENTS") == "SQS":
		serveQueue()
	default:
		serveAPI()
	}
}

const (
	storeTimeout = 2 * time.Second
	reserve      = storeTimeout + time.Second // of each invocation, to release the last claim and to answer
)

// newStore returns the store of the functions, and the lease. The story sets a short LEASE and SKEW. Without them both are the
// defaults.
func newStore() (store *dynamodbstore.Store, lease time.Duration) {
	settings, err := config.LoadDefaultConfig(context.Background())
	demo.Check(err)
	lease, _ = time.ParseDuration(os.Getenv("LEASE"))
	skew, _ := time.ParseDuration(os.Getenv("SKEW"))
	return dynamodbstore.New(dynamodb.NewFromConfig(settings), dynamodbstore.Options{Skew: skew}), lease
}

// serveAPI serves invocations by API Gateway until Lambda ends the process.
func serveAPI() {
	store, lease := newStore()
	idem, err := idempotency.New(store, subject, idempotency.Options{
		Required: true, Lease: lease, StoreTimeout: storeTimeout,
	})
	demo.Check(err)
	mux := http.NewServeMux()
	mux.Handle("POST /payments", idem.Handler(http.HandlerFunc(pay)))
	mux.Handle("POST /heedless", idem.Handler(http.HandlerFunc(payHeedlessly)))
	algnhsa.ListenAndServe(withEarlyEnd(mux), &algnhsa.Options{RequestType: algnhsa.RequestTypeAPIGatewayV2})
}

// subject is the user whom the JWT authorizer of the API has let in.
func subject(r *http.Request) (string, error) {
	event, ok := algnhsa.APIGatewayV2RequestFromContext(r.Context())
	if !ok || event.RequestContext.Authorizer == nil || event.RequestContext.Authorizer.JWT == nil {
		return "", errors.New("not authenticated")
	}
	return event.RequestContext.Authorizer.JWT.Claims["sub"], nil
}

// endEarly returns a context that ends before Lambda kills the process.
func endEarly(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, deadline.Add(-reserve))
}

// withEarlyEnd gives each request a context of endEarly.
func withEarlyEnd(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := endEarly(r.Context())
		defer cancel()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// pay charges a card. If the bank is slow, it gives up when its context ends.
func pay(w http.ResponseWriter, r *http.Request) {
	op, _ := idempotency.FromContext(r.Context())
	charge, err := provider.Call(r.Context(), provider.Request{Key: op.DownstreamKey("charge")})
	if err != nil {
		http.Error(w, "the bank is slow", http.StatusGatewayTimeout) // not stored: a retry asks the bank again
		return
	}
	w.WriteHeader(http.StatusCreated)
	fmt.Fprint(w, "paid by charge ", charge)
}

// payHeedlessly stands for a handler that does not know how to give up.
func payHeedlessly(w http.ResponseWriter, r *http.Request) {
	pay(w, r.WithContext(context.WithoutCancel(r.Context())))
}
