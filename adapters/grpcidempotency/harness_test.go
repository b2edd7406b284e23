package grpcidempotency_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/grpcidempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

// The messages of the service. A real service has generated types. The tests use well-known types, because these need
// no generator.
type (
	amount  = wrapperspb.Int64Value
	receipt = wrapperspb.StringValue
)

const (
	serviceName = "payments.v1.PaymentService"
	charge      = "/" + serviceName + "/Charge"
	refund      = "/" + serviceName + "/Refund"
	watch       = "/" + serviceName + "/Watch"
)

// method implements both unary methods of the service.
type method func(ctx context.Context, cents int64) (any, error)

// describeService returns the description of a service whose unary methods call m.
func describeService(m method) *grpc.ServiceDesc {
	unary := func(name string) grpc.MethodDesc {
		return grpc.MethodDesc{MethodName: name, Handler: func(
			srv any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor,
		) (any, error) {
			req := new(amount)
			if err := decode(req); err != nil {
				return nil, err
			}
			run := func(ctx context.Context, req any) (any, error) { return m(ctx, req.(*amount).GetValue()) }
			if intercept == nil {
				return run(ctx, req)
			}
			return intercept(ctx, req, &grpc.UnaryServerInfo{Server: srv, FullMethod: "/" + serviceName + "/" + name}, run)
		}}
	}
	return &grpc.ServiceDesc{
		ServiceName: serviceName, HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{unary("Charge"), unary("Refund")},
		Streams: []grpc.StreamDesc{{StreamName: "Watch", ServerStreams: true, Handler: func(_ any, s grpc.ServerStream) error {
			return s.SendMsg(&receipt{Value: "watched"})
		}}},
	}
}

// setup configures a service. The comments state the defaults of fields without a value.
type setup struct {
	method            method            // returns a receipt with the amount
	store             idempotency.Store // a MemoryStore
	runnerOptions     idempotency.RunnerOptions
	guardOptions      grpcidempotency.Options
	identifyUser      grpcidempotency.UserFunc      // reads the metadata "user"
	outerInterceptors []grpc.UnaryServerInterceptor // run before the guard
	isUnguarded       bool
	serviceConfig     string // of the client
	dialOptions       []grpc.DialOption
}

// service is a running server with a connected client.
type service struct {
	t      *testing.T
	server *grpc.Server
	conn   *grpc.ClientConn
	runner *idempotency.Runner
	guard  *grpcidempotency.Interceptor
	runs   atomic.Int64
}

// userFromMetadata returns the user in the metadata, and "alice" by default.
func userFromMetadata(ctx context.Context) (string, error) {
	users := metadata.ValueFromIncomingContext(ctx, "user")
	if len(users) != 1 {
		return "alice", nil
	}
	return users[0], nil
}

// startService starts a server with a connected client, and stops both at the end of the test.
func startService(t *testing.T, s setup) *service {
	t.Helper()
	if s.store == nil {
		s.store = idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	}
	if s.identifyUser == nil {
		s.identifyUser = userFromMetadata
	}
	if s.runnerOptions.Logger == nil {
		s.runnerOptions.Logger = slog.New(slog.DiscardHandler)
	}
	sv := &service{t: t}
	var err error
	sv.runner, err = idempotency.NewRunner(s.store, s.runnerOptions)
	require.NoError(t, err)
	sv.guard, err = grpcidempotency.New(sv.runner, s.identifyUser, s.guardOptions)
	require.NoError(t, err)
	chain := s.outerInterceptors
	options := []grpc.ServerOption{grpc.WaitForHandlers(true)}
	if !s.isUnguarded {
		chain = append(slices.Clone(chain), sv.guard.Unary)
		options = append(options, grpc.ChainStreamInterceptor(sv.guard.Stream))
	}
	sv.server = grpc.NewServer(append(options, grpc.ChainUnaryInterceptor(chain...))...)
	sv.server.RegisterService(describeService(func(ctx context.Context, cents int64) (any, error) {
		sv.runs.Add(1)
		if s.method == nil {
			return &receipt{Value: fmt.Sprint("charged ", cents)}, nil
		}
		return s.method(ctx, cents)
	}), nil)
	listener := servertest.Listen(t)
	go func() { _ = sv.server.Serve(listener) }()
	t.Cleanup(sv.server.Stop)
	sv.conn = dialServer(t, listener.Addr().String(), s.serviceConfig, s.dialOptions...)
	return sv
}

// dialServer returns a connection to addr, which is closed at the end of the test.
func dialServer(t *testing.T, addr, config string, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return servertest.Dial(ctx, "tcp", addr)
		}))
	if config != "" {
		options = append(options, grpc.WithDefaultServiceConfig(config))
	}
	conn, err := grpc.NewClient("passthrough:///"+addr, options...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// answer holds everything that a client receives for a call. The header and the trailer lack the replay marker.
type answer struct {
	Code     codes.Code
	Message  string
	Details  []string
	Reply    string
	Header   metadata.MD
	Trailer  metadata.MD
	Replayed bool

	err error
}

// withKey returns the context of a client call that sends key.
func withKey(key string) context.Context {
	return metadata.AppendToOutgoingContext(context.Background(), grpcidempotency.MetadataKey, key)
}

// call calls the method Charge.
func (s *service) call(ctx context.Context, cents int64) answer {
	return invokeMethod(ctx, s.conn, charge, cents)
}

// invokeMethod calls method, and returns the answer.
func invokeMethod(ctx context.Context, conn *grpc.ClientConn, method string, cents int64) answer {
	ctx, cancel := context.WithTimeout(ctx, waitLimit)
	defer cancel()
	var got answer
	var reply receipt
	got.err = conn.Invoke(ctx, method, &amount{Value: cents}, &reply, grpc.Header(&got.Header), grpc.Trailer(&got.Trailer))
	failure := status.Convert(got.err)
	got.Code, got.Message = failure.Code(), failure.Message()
	for _, detail := range failure.Proto().GetDetails() {
		got.Details = append(got.Details, fmt.Sprintf("%s %x", detail.GetTypeUrl(), detail.GetValue()))
	}
	if got.err == nil {
		got.Reply = prototext.MarshalOptions{}.Format(&reply)
	}
	got.Replayed = slices.Equal(got.Header["idempotent-replayed"], []string{"true"})
	delete(got.Header, "idempotent-replayed")
	for _, md := range []metadata.MD{got.Header, got.Trailer} {
		delete(md, "content-type") // an answer without a header has the content type in the trailer
	}
	got.Header, got.Trailer = metadata.Join(got.Header), metadata.Join(got.Trailer) // replaces nil by an empty MD
	return got
}

// withoutMarker returns the answer without the replay marker, to be compared with another answer. The error is removed
// too, because equal errors differ in their pointers.
func (a answer) withoutMarker() answer {
	a.err, a.Replayed = nil, false
	return a
}

// findDetail returns the detail of type T of a gRPC error, and fails the test if err has no such detail.
func findDetail[T proto.Message](t *testing.T, err error) (found T) {
	t.Helper()
	for _, d := range status.Convert(err).Details() {
		if m, ok := d.(T); ok {
			return m
		}
	}
	t.Fatalf("no %T in %v", found, err)
	return found
}

// waitLimit bounds the wait for events that are certain to happen.
const waitLimit = 30 * time.Second

// awaitValue returns the next value from c, and fails the test after waitLimit.
func awaitValue[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(waitLimit):
		t.Fatal("waited in vain")
	}
	return v
}
