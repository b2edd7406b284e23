package grpcidempotency_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/grpcidempotency"
)

// A server guards its unary methods, and refuses keys on streams. Authentication comes before the guard in the chain.
func ExampleNew() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{})
	if err != nil {
		log.Fatal(err)
	}
	type accountKey struct{} // authenticate puts the account into the context
	account := func(ctx context.Context) (string, error) {
		name, _ := ctx.Value(accountKey{}).(string)
		return name, nil
	}
	authenticate := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		return next(context.WithValue(ctx, accountKey{}, "alice"), req) // stands for your authentication
	}
	guard, err := grpcidempotency.New(runner, account, grpcidempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(authenticate, guard.Unary),
		grpc.ChainStreamInterceptor(guard.Stream),
	)
	defer server.GracefulStop()
	// Output:
}

// A call with the key of an earlier call gets the answer of the earlier call.
func ExampleInterceptor_Unary() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{})
	if err != nil {
		log.Fatal(err)
	}
	guard, err := grpcidempotency.New(runner, grpcidempotency.SingleUser, grpcidempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	charges := 0
	charge := func(context.Context, any) (any, error) {
		charges++
		return wrapperspb.String(fmt.Sprint("charge ", charges)), nil
	}
	method := &grpc.UnaryServerInfo{FullMethod: "/payments.v1.PaymentService/Charge"}
	for range 2 { // the server of gRPC makes these calls
		ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs(grpcidempotency.MetadataKey, "order-1"))
		answer, err := guard.Unary(ctx, wrapperspb.Int64(4200), method, charge)
		fmt.Println(answer.(*wrapperspb.StringValue).GetValue(), err)
	}
	// Output:
	// charge 1 <nil>
	// charge 1 <nil>
}

// A user function returns the account that authentication has found. If the function returns an error with a status, the
// status is the answer.
func ExampleUserFunc() {
	sessions := errors.New("the session store does not answer")
	user := func(context.Context) (string, error) { return "", status.Error(codes.Unavailable, sessions.Error()) }
	runner, err := idempotency.NewRunner(
		idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.RunnerOptions{})
	if err != nil {
		log.Fatal(err)
	}
	guard, err := grpcidempotency.New(runner, user, grpcidempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs(grpcidempotency.MetadataKey, "order-1"))
	method := &grpc.UnaryServerInfo{FullMethod: "/payments.v1.PaymentService/Charge"}
	_, err = guard.Unary(ctx, wrapperspb.Int64(4200), method, nil)
	fmt.Println(status.Code(err))
	// Output: Unavailable
}

// All attempts of a call have the same key. The interceptor makes the key, or takes the key from WithKey.
func ExampleUnaryClientInterceptor() {
	intercept := grpcidempotency.UnaryClientInterceptor(grpcidempotency.ClientOptions{})
	_ = grpc.WithChainUnaryInterceptor(intercept) // for grpc.NewClient

	send := func(ctx context.Context, method string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
		md, _ := metadata.FromOutgoingContext(ctx)
		keys := md.Get(grpcidempotency.MetadataKey)
		fmt.Println(method, len(keys) == 1)
		return nil
	}
	for _, method := range []string{"/payments.v1.PaymentService/Charge", "/grpc.health.v1.Health/Check"} {
		if err := intercept(context.Background(), method, nil, nil, nil, send); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// /payments.v1.PaymentService/Charge true
	// /grpc.health.v1.Health/Check false
}

// A client that may be restarted stores the key with the order, and sends the key with each call for the order.
func ExampleWithKey() {
	ctx := grpcidempotency.WithKey(context.Background(), "2f1c9d0e-58f4-4d3c-9f0e-7f6f0a3f6a11")
	md, _ := metadata.FromOutgoingContext(ctx)
	fmt.Println(md.Get(grpcidempotency.MetadataKey))
	// Output: [2f1c9d0e-58f4-4d3c-9f0e-7f6f0a3f6a11]
}

// Each request contains the time of sending. The fingerprint omits the time, so that a repetition has the same
// fingerprint.
func ExampleCanonical() {
	opts := grpcidempotency.Options{
		Fingerprint: func(_ context.Context, req proto.Message) ([]byte, error) {
			timeless := proto.CloneOf(req.(*structpb.Struct)) // a service has its own type here
			delete(timeless.Fields, "sent_at")
			return grpcidempotency.Canonical(timeless), nil
		},
	}
	var fingerprints [][]byte
	for _, sentAt := range []string{"10:00", "10:01"} {
		req, err := structpb.NewStruct(map[string]any{"amount": 4200, "sent_at": sentAt})
		if err != nil {
			log.Fatal(err)
		}
		fingerprint, err := opts.Fingerprint(context.Background(), req)
		if err != nil {
			log.Fatal(err)
		}
		fingerprints = append(fingerprints, fingerprint)
	}
	fmt.Println(bytes.Equal(fingerprints[0], fingerprints[1]))
	// Output: true
}

// A service does not store NOT_FOUND, so that a client can try again. Another service may create the account meanwhile.
func ExampleDefaultStorable() {
	opts := grpcidempotency.Options{
		Storable: func(s *status.Status) bool {
			return grpcidempotency.DefaultStorable(s) && s.Code() != codes.NotFound
		},
	}
	for _, code := range []codes.Code{codes.InvalidArgument, codes.NotFound, codes.Unavailable} {
		fmt.Println(code, opts.Storable(status.New(code, "")))
	}
	// Output:
	// InvalidArgument true
	// NotFound false
	// Unavailable false
}

// A server guards the methods of one service only.
func ExampleNeedsKey() {
	opts := grpcidempotency.Options{
		Methods: func(method string) bool {
			return grpcidempotency.NeedsKey(method) && strings.HasPrefix(method, "/payments.v1.PaymentService/")
		},
	}
	fmt.Println(opts.Methods("/payments.v1.PaymentService/Charge"))
	fmt.Println(opts.Methods("/reports.v1.ReportService/Build"))
	// Output:
	// true
	// false
}
