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

// A service would have generated types and names. Well-known types do for one that needs no generator.
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

// method is what both unary methods of the service do.
type method func(ctx context.Context, cents int64) (any, error)

// description describes the service.
func description(m method) *grpc.ServiceDesc {
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

// setup is a service to be served. The zero value of each field is its default.
type setup struct {
	method  method
	store   idempotency.Store // a MemoryStore
	runner  idempotency.RunnerOptions
	options grpcidempotency.Options
	user    grpcidempotency.UserFunc // from the metadata "user"
	outer   []grpc.UnaryServerInterceptor
	bare    bool // not guarded
	config  string
	dial    []grpc.DialOption
}

// service is a server and a client of it.
type service struct {
	t      *testing.T
	server *grpc.Server
	conn   *grpc.ClientConn
	runner *idempotency.Runner
	guard  *grpcidempotency.Interceptor
	runs   atomic.Int64
}

func userFromMetadata(ctx context.Context) (string, error) {
	users := metadata.ValueFromIncomingContext(ctx, "user")
	if len(users) != 1 {
		return "alice", nil
	}
	return users[0], nil
}

func serve(t *testing.T, s setup) *service {
	t.Helper()
	if s.store == nil {
		s.store = idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	}
	if s.user == nil {
		s.user = userFromMetadata
	}
	if s.runner.Logger == nil {
		s.runner.Logger = slog.New(slog.DiscardHandler)
	}
	sv := &service{t: t}
	var err error
	sv.runner, err = idempotency.NewRunner(s.store, s.runner)
	require.NoError(t, err)
	sv.guard, err = grpcidempotency.New(sv.runner, s.user, s.options)
	require.NoError(t, err)
	chain := s.outer
	options := []grpc.ServerOption{grpc.WaitForHandlers(true)}
	if !s.bare {
		chain = append(slices.Clone(chain), sv.guard.Unary)
		options = append(options, grpc.ChainStreamInterceptor(sv.guard.Stream))
	}
	sv.server = grpc.NewServer(append(options, grpc.ChainUnaryInterceptor(chain...))...)
	sv.server.RegisterService(description(func(ctx context.Context, cents int64) (any, error) {
		sv.runs.Add(1)
		if s.method == nil {
			return &receipt{Value: fmt.Sprint("charged ", cents)}, nil
		}
		return s.method(ctx, cents)
	}), nil)
	listener := servertest.Listen(t)
	go func() { _ = sv.server.Serve(listener) }()
	t.Cleanup(sv.server.Stop)
	sv.conn = dial(t, listener.Addr().String(), s.config, s.dial...)
	return sv
}

func dial(t *testing.T, addr, config string, options ...grpc.DialOption) *grpc.ClientConn {
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

// answer is what a client sees of a call.
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

// withKey returns a context of a client that sends a key.
func withKey(key string) context.Context {
	return metadata.AppendToOutgoingContext(context.Background(), grpcidempotency.MetadataKey, key)
}

func (s *service) call(ctx context.Context, cents int64) answer {
	return invoke(ctx, s.conn, charge, cents)
}

func invoke(ctx context.Context, conn *grpc.ClientConn, method string, cents int64) answer {
	ctx, cancel := context.WithTimeout(ctx, patience)
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
		delete(md, "content-type") // is in the trailer if there is no header
	}
	got.Header, got.Trailer = metadata.Join(got.Header), metadata.Join(got.Trailer) // not nil
	return got
}

// same returns the answer without what differs between two that are equal.
func (a answer) same() answer {
	a.err, a.Replayed = nil, false
	return a
}

// detail finds a detail of an error.
func detail[T proto.Message](t *testing.T, err error) (found T) {
	t.Helper()
	for _, d := range status.Convert(err).Details() {
		if m, ok := d.(T); ok {
			return m
		}
	}
	t.Fatalf("no %T in %v", found, err)
	return found
}

// patience is how long something may take that is certain to come.
const patience = 30 * time.Second

func await[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatal("waited in vain")
	}
	return v
}
