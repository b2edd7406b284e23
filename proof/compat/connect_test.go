package compat_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Over the Connect protocol, an aborted call is a plain 409, so the middleware takes the call for an answer.
var connectRPCs = []rpc{
	{
		name: "Connect", proto: http1, serve: serveConnect,
		client: connecting(nil), timed: connecting(connectTimeout), final: []codes.Code{codes.Aborted},
	},
	{
		name: "Connect, HTTP2", proto: http2, serve: serveConnect,
		client: connecting(nil), timed: connecting(connectTimeout), final: []codes.Code{codes.Aborted},
	},
	{
		name: "Connect as gRPC", proto: h2c, serve: serveConnect,
		client: connecting(nil, connect.WithGRPC()), timed: connecting(grpcTimeout, connect.WithGRPC()),
	},
	{
		name: "Connect as gRPC-Web", proto: http1, serve: serveConnect,
		client: connecting(nil, connect.WithGRPCWeb()), timed: connecting(grpcTimeout, connect.WithGRPCWeb()),
	},
	{
		name: "Connect as gRPC-Web, uncompressed", proto: http1, serve: serveConnect,
		client: connecting(nil, connect.WithGRPCWeb(), uncompressed),
		timed:  connecting(grpcTimeout, connect.WithGRPCWeb(), uncompressed),
	},
	{
		name: "Connect as gRPC-Web, HTTP2", proto: http2, serve: serveConnect,
		client: connecting(nil, connect.WithGRPCWeb()), timed: connecting(grpcTimeout, connect.WithGRPCWeb()),
	},
}

var uncompressed = connect.WithAcceptCompression("gzip", nil, nil)

var (
	connectTimeout = http.Header{"Connect-Timeout-Ms": {fmt.Sprint(shortly.Milliseconds())}}
	grpcTimeout    = http.Header{"Grpc-Timeout": {fmt.Sprint(shortly.Milliseconds(), "m")}}
)

func serveConnect(s *service, m method) http.Handler {
	unary := func(ctx context.Context, _ *connect.Request[amount]) (*connect.Response[charged], error) {
		if err := m(ctx, s); err != nil {
			return nil, connectError(err)
		}
		resp := connect.NewResponse(&charged{Value: receipt})
		resp.Header().Set("Charge-Number", "1")
		resp.Header().Set("Charge-Bin", connect.EncodeBinaryHeader([]byte{0, 1, 255}))
		resp.Trailer().Set("Charge-Sum", "1234")
		return resp, nil
	}
	return connect.NewUnaryHandler(procedure, unary)
}

// connectError converts an error of grpc-go into an error of connect-go.
func connectError(err error) error {
	failed := status.Convert(err)
	failure := connect.NewError(connect.Code(failed.Code()), errors.New(failed.Message()))
	for _, value := range failed.Details() {
		detail, err := connect.NewErrorDetail(value.(proto.Message))
		if err != nil {
			return err
		}
		failure.AddDetail(detail)
	}
	failure.Meta().Set("Charge-Number", "none")
	return failure
}

// connecting returns a caller by connect-go, which adds header without the client's knowledge.
func connecting(header http.Header, opts ...connect.ClientOption) caller {
	return func(ctx context.Context, s *service, key string) answer {
		client := connect.NewClient[amount, charged](s.keyed(key, header), s.url+procedure, opts...)
		resp, err := client.CallUnary(ctx, connect.NewRequest(&amount{Value: 4200}))
		if err == nil {
			return answer{
				status: codes.OK.String(), header: plain(resp.Header()), trailer: resp.Trailer(), body: resp.Msg.GetValue(),
			}
		}
		failure, ok := errors.AsType[*connect.Error](err)
		if !ok {
			return answer{status: broken, body: err.Error()}
		}
		return answer{status: codes.Code(failure.Code()).String(), header: plain(failure.Meta()), body: described(failure)}
	}
}

// described returns the message of an error, with the details.
func described(failure *connect.Error) string {
	var text strings.Builder
	text.WriteString(failure.Message())
	for _, detail := range failure.Details() {
		fmt.Fprintf(&text, "; %s %x", detail.Type(), detail.Bytes())
	}
	return text.String()
}
