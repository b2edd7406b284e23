// Connect guards a unary Connect RPC, whose handler is an http.Handler like any other. Its answers are replayed as they
// were, its errors with their code, message and details included. What the middleware refuses is an error of Connect
// too: see package refusal. It ends with the line
//
//	calls: 6, executions: 3, charges: 1
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/client"
	"github.com/idempotency-go/idempotency/examples/connect/refusal"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
)

// A service would have generated types and names. Well-known types do for one that needs no generator.
type (
	amount  = wrapperspb.Int64Value
	receipt = wrapperspb.StringValue
)

const procedure = "/payments.v1.PaymentService/Charge"

func main() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	idem, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{
		Required:     true,
		ErrorHandler: refusal.Write, // refusals are errors of Connect, gRPC or gRPC-Web
	})
	demo.Check(err)
	service := new(payments)
	mux := http.NewServeMux()
	mux.Handle(procedure, idem.Handler(connect.NewUnaryHandler(procedure, service.charge)))
	server := httptest.NewServer(mux)
	defer server.Close()

	httpClient := &http.Client{Transport: &client.Transport{MaxAttempts: 1}} // to see each call
	rpc := connect.NewClient[amount, receipt](httpClient, server.URL+procedure)
	call := func(what, key string, cents int64) outcome {
		ctx := client.WithKey(context.Background(), key)
		resp, err := rpc.CallUnary(ctx, connect.NewRequest(&amount{Value: cents}))
		out := newOutcome(resp, err)
		out.print(what)
		return out
	}

	first, again := call("charge", "1", 4200), call("charge", "1", 4200)
	refused, refusedAgain := call("refuse", "2", 990000), call("refuse", "2", 990000)
	busy := call("busy", "3", 0)
	reused := call("reuse", "1", 9900)

	if first.receipt != "charge 1" || !again.replays(first) {
		log.Fatal("this is broken: an answer is replayed")
	}
	if refused.code != connect.CodeFailedPrecondition || len(refused.details) != 1 || !refusedAgain.replays(refused) {
		log.Fatal("this is broken: an error is replayed as it was")
	}
	if reused.code != connect.CodeFailedPrecondition || reused.replayed {
		log.Fatal("this is broken: a refusal is an error of Connect")
	}
	verdict := fmt.Sprintf("calls: 6, executions: %d, charges: %d", service.executions.Load(), service.charges.Load())
	fmt.Println(verdict)
	if verdict != "calls: 6, executions: 3, charges: 1" || busy.code != connect.CodeUnavailable {
		log.Fatal("this is broken")
	}
}

// payments implements the service.
type payments struct{ executions, charges atomic.Int64 }

func (p *payments) charge(_ context.Context, req *connect.Request[amount]) (*connect.Response[receipt], error) {
	p.executions.Add(1)
	switch {
	case req.Msg.GetValue() == 0:
		// HTTP status 503: not stored, may be tried again with the same key.
		return nil, connect.NewError(connect.CodeUnavailable, errors.New("come back later"))
	case req.Msg.GetValue() > 10000:
		// HTTP status 400: stored, and replayed.
		err := connect.NewError(connect.CodeFailedPrecondition, errors.New("over the daily limit"))
		detail, detailErr := connect.NewErrorDetail(durationpb.New(time.Hour))
		if detailErr != nil {
			return nil, detailErr
		}
		err.AddDetail(detail)
		return nil, err
	}
	number := fmt.Sprint(p.charges.Add(1))
	resp := connect.NewResponse(&receipt{Value: "charge " + number})
	resp.Header().Set("Charge-Number", number)
	return resp, nil
}

// outcome is what a client sees of a call.
type outcome struct {
	receipt  string
	number   string
	code     connect.Code // of the error; zero if there is none
	message  string
	details  []string
	replayed bool
}

func newOutcome(resp *connect.Response[receipt], err error) outcome {
	if err == nil {
		return outcome{
			receipt: resp.Msg.GetValue(), number: resp.Header().Get("Charge-Number"),
			replayed: resp.Header().Get("Idempotent-Replayed") == "true",
		}
	}
	failure, ok := errors.AsType[*connect.Error](err)
	if !ok {
		log.Fatal(err)
	}
	out := outcome{
		code: failure.Code(), message: failure.Message(),
		replayed: failure.Meta().Get("Idempotent-Replayed") == "true",
	}
	for _, detail := range failure.Details() {
		value, err := detail.Value()
		demo.Check(err)
		text, err := proto.Marshal(value)
		demo.Check(err)
		out.details = append(out.details, fmt.Sprintf("%s %x", detail.Type(), text))
	}
	return out
}

// replays reports whether o is first once more.
func (o outcome) replays(first outcome) bool {
	first.replayed = true
	return fmt.Sprintf("%#v", o) == fmt.Sprintf("%#v", first)
}

func (o outcome) print(what string) {
	answer := o.receipt
	if o.code != 0 {
		answer = o.code.String() + ": " + o.message
	}
	fmt.Printf("%-6s  replayed: %-5t  %s\n", what, o.replayed, answer)
}
