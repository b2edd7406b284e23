// Connect guards a unary Connect RPC, whose handler is a usual http.Handler. The middleware replays answers unchanged, also
// errors with their code, message and details. Package refusal turns the refusals of the middleware into errors of Connect,
// too. The program ends with the line
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

// A real service has generated types and names. This example uses well-known types, and needs no generator.
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

	httpClient := &http.Client{Transport: &client.Transport{MaxAttempts: 1}} // shows the answer to each call
	rpc := connect.NewClient[amount, receipt](httpClient, server.URL+procedure)
	call := func(what, key string, cents int64) outcome {
		ctx := client.WithKey(context.Background(), key)
		resp, err := rpc.CallUnary(ctx, connect.NewRequest(&amount{Value: cents}))
		out := newOutcome(resp, err)
		out.printOutcome(what)
		return out
	}

	first, again := call("charge", "1", 4200), call("charge", "1", 4200)
	refused, refusedAgain := call("refuse", "2", 990000), call("refuse", "2", 990000)
	busy := call("busy", "3", 0)
	reused := call("reuse", "1", 9900)

	if first.receipt != "charge 1" || !again.isReplayOf(first) {
		log.Fatal("this is broken: an answer is replayed")
	}
	if refused.errorCode != connect.CodeFailedPrecondition || len(refused.errorDetails) != 1 || !refusedAgain.isReplayOf(refused) {
		log.Fatal("this is broken: an error is replayed as it was")
	}
	if reused.errorCode != connect.CodeFailedPrecondition || reused.isReplay {
		log.Fatal("this is broken: a refusal is an error of Connect")
	}
	verdict := fmt.Sprintf("calls: 6, executions: %d, charges: %d", service.executions.Load(), service.charges.Load())
	fmt.Println(verdict)
	if verdict != "calls: 6, executions: 3, charges: 1" || busy.errorCode != connect.CodeUnavailable {
		log.Fatal("this is broken")
	}
}

// payments implements the service.
type payments struct{ executions, charges atomic.Int64 }

func (p *payments) charge(_ context.Context, req *connect.Request[amount]) (*connect.Response[receipt], error) {
	p.executions.Add(1)
	switch {
	case req.Msg.GetValue() == 0:
		// HTTP status 503: not stored, so a retry with the same key runs again.
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

// outcome is the result of a call, as the client sees it.
type outcome struct {
	receipt      string
	chargeNumber string
	errorCode    connect.Code // zero for success
	errorMessage string
	errorDetails []string
	isReplay     bool
}

func newOutcome(resp *connect.Response[receipt], err error) outcome {
	if err == nil {
		return outcome{
			receipt: resp.Msg.GetValue(), chargeNumber: resp.Header().Get("Charge-Number"),
			isReplay: resp.Header().Get("Idempotent-Replayed") == "true",
		}
	}
	failure, ok := errors.AsType[*connect.Error](err)
	if !ok {
		log.Fatal(err)
	}
	out := outcome{
		errorCode: failure.Code(), errorMessage: failure.Message(),
		isReplay: failure.Meta().Get("Idempotent-Replayed") == "true",
	}
	for _, detail := range failure.Details() {
		value, err := detail.Value()
		demo.Check(err)
		text, err := proto.Marshal(value)
		demo.Check(err)
		out.errorDetails = append(out.errorDetails, fmt.Sprintf("%s %x", detail.Type(), text))
	}
	return out
}

// isReplayOf reports whether o is a replay of first, equal in all else.
func (o outcome) isReplayOf(first outcome) bool {
	first.isReplay = true
	return fmt.Sprintf("%#v", o) == fmt.Sprintf("%#v", first)
}

func (o outcome) printOutcome(what string) {
	answer := o.receipt
	if o.errorCode != 0 {
		answer = o.errorCode.String() + ": " + o.errorMessage
	}
	fmt.Printf("%-6s  replayed: %-5t  %s\n", what, o.isReplay, answer)
}
