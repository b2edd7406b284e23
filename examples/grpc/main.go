// Grpc guards a method of a gRPC service. The client keeps a key for the payment, and gRPC retries by its own policy. The
// answer to the first call gets lost, and the second call gets the same answer. The program ends with the line
//
//	calls: 3, charges: 1
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/grpcidempotency"
)

const retryPolicy = `{"methodConfig": [{
	"name": [{"service": "payments.v1.PaymentService"}],
	"retryPolicy": {
		"maxAttempts": 5, "initialBackoff": "0.1s", "maxBackoff": "2s", "backoffMultiplier": 2,
		"retryableStatusCodes": ["UNAVAILABLE", "ABORTED"]
	}
}]}`

func main() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{}) // or NewRedisStore
	runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{})
	check(err)
	guard, err := grpcidempotency.New(runner, grpcidempotency.SingleUser, grpcidempotency.Options{Required: true})
	check(err)
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(guard.Unary), grpc.ChainStreamInterceptor(guard.Stream))
	payments := &payments{sent: make(chan bool)}
	server.RegisterService(&service, payments)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	go func() { _ = server.Serve(listener) }()

	conn, err := grpc.NewClient(listener.Addr().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultServiceConfig(retryPolicy),
		grpc.WithChainUnaryInterceptor(grpcidempotency.UnaryClientInterceptor(grpcidempotency.ClientOptions{})))
	check(err)
	call := func(ctx context.Context, cents int64) (codes.Code, string) {
		var receipt wrapperspb.StringValue
		ctx = grpcidempotency.WithKey(ctx, "order-1") // is stored with the order
		err := conn.Invoke(ctx, "/payments.v1.PaymentService/Charge", wrapperspb.Int64(cents), &receipt)
		fmt.Println(cents, status.Code(err), receipt.GetValue())
		return status.Code(err), receipt.GetValue()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	lost, _ := call(ctx, 4200)
	close(payments.sent)
	found, receipt := call(context.Background(), 4200)
	reused, _ := call(context.Background(), 9900)

	check(conn.Close())
	server.GracefulStop()                        // waits for the handlers
	check(runner.Shutdown(context.Background())) // waits for answers that are not stored yet
	fmt.Printf("calls: 3, charges: %d\n", payments.chargeCount)
	if lost != codes.DeadlineExceeded || found != codes.OK || receipt != "charge 1" || reused != codes.FailedPrecondition {
		log.Fatal("this is broken")
	}
}

type payments struct {
	chargeCount int
	sent        chan bool // closed when the bank has answered
}

func (p *payments) chargeCard(_ context.Context, cents int64) (*wrapperspb.StringValue, error) {
	if cents <= 0 {
		return nil, status.Error(codes.InvalidArgument, "nothing to charge") // is stored, and replayed
	}
	p.chargeCount++
	<-p.sent // the bank is slow
	return wrapperspb.String(fmt.Sprint("charge ", p.chargeCount)), nil
}

// service stands for the description that protoc-gen-go-grpc generates.
var service = grpc.ServiceDesc{
	ServiceName: "payments.v1.PaymentService",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "Charge", Handler: func(
		srv any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor,
	) (any, error) {
		req := new(wrapperspb.Int64Value)
		if err := decode(req); err != nil {
			return nil, err
		}
		info := &grpc.UnaryServerInfo{Server: srv, FullMethod: "/payments.v1.PaymentService/Charge"}
		return intercept(ctx, req, info, func(ctx context.Context, req any) (any, error) {
			return srv.(*payments).chargeCard(ctx, req.(*wrapperspb.Int64Value).GetValue())
		})
	}}},
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
