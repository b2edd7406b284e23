package compat_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"testing"

	"connectrpc.com/connect"
	"github.com/go-chi/chi/v5/middleware"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/idempotency-go/idempotency/proof/servertest"
)

var grpcRPCs = []rpc{
	{
		name: "grpc-go, called by connect-go", proto: h2c, serve: serveGRPC, crashes: true,
		client: connecting(nil, connect.WithGRPC()), timed: connecting(grpcTimeout, connect.WithGRPC()),
	},
	{name: "grpc-go over TLS", proto: http2, serve: serveGRPC, client: callGRPC, crashes: true},
	{name: "grpc-go over h2c", proto: h2c, serve: serveGRPC, client: callGRPC, crashes: true},
	{name: "Connect, called by grpc-go", proto: h2c, serve: serveConnect, client: callGRPC},
}

// serveGRPC serves a method by the ServeHTTP of a grpc.Server.
func serveGRPC(s *service, m method) http.Handler {
	server := grpc.NewServer()
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: serviceName,
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{
			MethodName: "Charge",
			Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				if err := decode(new(amount)); err != nil {
					return nil, err
				}
				if err := grpc.SetHeader(ctx, metadata.Pairs("charge-bin", "\x00\x01\xff")); err != nil {
					return nil, err
				}
				return grpcMethod(ctx, s, m)
			},
		}},
	}, nil)
	return server
}

func grpcMethod(ctx context.Context, s *service, m method) (*charged, error) {
	if err := grpc.SetHeader(ctx, metadata.Pairs("charge-number", "1")); err != nil {
		return nil, err
	}
	if err := grpc.SetTrailer(ctx, metadata.Pairs("charge-sum", "1234")); err != nil {
		return nil, err
	}
	if err := m(ctx, s); err != nil {
		return nil, err
	}
	return &charged{Value: receipt}, nil
}

// callGRPC calls by grpc-go.
func callGRPC(ctx context.Context, s *service, key string) answer {
	conn, err := s.dialGRPC()
	if err != nil {
		return answer{status: broken, body: err.Error()}
	}
	defer conn.Close()
	if key != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "Idempotency-Key", key)
	}
	var header, trailer metadata.MD
	var resp charged
	err = conn.Invoke(ctx, procedure, &amount{Value: 4200}, &resp, grpc.Header(&header), grpc.Trailer(&trailer))
	got := answer{header: plain(fields(header)), trailer: fields(trailer), body: resp.GetValue()}
	failure := status.Convert(err)
	got.status = failure.Code().String()
	if err == nil {
		return got
	}
	got.body = failure.Message()
	for _, detail := range failure.Details() {
		text, err := proto.Marshal(detail.(proto.Message))
		got.body += fmt.Sprintf("; %T %x %v", detail, text, err)
	}
	return got
}

func (sv *service) dialGRPC() (*grpc.ClientConn, error) {
	target, err := url.Parse(sv.url)
	if err != nil {
		return nil, err
	}
	creds := insecure.NewCredentials()
	if config := sv.tlsConfig(); config != nil {
		config.ServerName = "example.com" // the name in the certificate
		creds = credentials.NewTLS(config)
	}
	dial := grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		return servertest.Dial(ctx, "tcp", address)
	})
	return grpc.NewClient("passthrough:///"+target.Host, grpc.WithTransportCredentials(creds), dial)
}

func fields(md metadata.MD) http.Header {
	header := make(http.Header)
	for name, values := range md {
		header[http.CanonicalHeaderKey(name)] = values
	}
	return header
}

// The ServeHTTP of a grpc.Server returns without an answer when its context ends, while the method still runs. The
// method's answer is lost, so the retry runs the method again.
func TestGRPCTimeout(t *testing.T) {
	t.Parallel()
	deaf := func(ctx context.Context, s *service) error { return s.wait(context.WithoutCancel(ctx)) }
	for _, rpc := range grpcRPCs[:3] {
		s := rpc.scenario(deaf, codes.Unavailable, codes.OK, 2)
		s.outer, s.late, s.bubble = chiRouter(middleware.Timeout(shortly)), true, true
		t.Run(rpc.name, s.run)
	}
}
