package compat_test

import (
	"context"
	"io"
	"net/http"
	"strconv"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Both an aborted call and an existing subject are a 409 of the gateway, so only the JSON body distinguishes the
// two.
var gatewayRPCs = []rpc{
	{
		name: "grpc-gateway", proto: http1, serve: serveGateway, status: gatewayStatus,
		client: posting(nil), timed: posting(grpcTimeout), final: []codes.Code{codes.Aborted},
	},
	{
		name: "grpc-gateway, trailers", proto: http1, serve: serveGateway, status: gatewayStatus,
		client: posting(http.Header{"Te": {"trailers"}}), final: []codes.Code{codes.Aborted},
	},
	{
		name: "grpc-gateway, HTTP2", proto: http2, serve: serveGateway, status: gatewayStatus,
		client: posting(nil), timed: posting(grpcTimeout), final: []codes.Code{codes.Aborted},
	},
}

func gatewayStatus(code codes.Code) string { return strconv.Itoa(runtime.HTTPStatusFromCode(code)) }

// serveGateway serves a method like generated code that calls a service in the same process.
func serveGateway(s *service, m method) http.Handler {
	mux := runtime.NewServeMux()
	err := mux.HandlePath(http.MethodPost, procedure, func(w http.ResponseWriter, r *http.Request, _ map[string]string) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		_, marshaler := runtime.MarshalerForRequest(mux, r)
		ctx, err := runtime.AnnotateIncomingContext(ctx, mux, r, procedure)
		if err != nil {
			runtime.HTTPError(ctx, mux, marshaler, w, r, err)
			return
		}
		resp, md, err := callLocally(ctx, marshaler, r, s, m)
		ctx = runtime.NewServerMetadataContext(ctx, md)
		if err != nil {
			runtime.HTTPError(ctx, mux, marshaler, w, r, err)
			return
		}
		runtime.ForwardResponseMessage(ctx, mux, marshaler, w, r, resp)
	})
	if err != nil {
		panic(err)
	}
	return mux
}

func callLocally(
	ctx context.Context, marshaler runtime.Marshaler, r *http.Request, s *service, m method,
) (*charged, runtime.ServerMetadata, error) {
	if err := marshaler.NewDecoder(r.Body).Decode(new(amount)); err != nil {
		return nil, runtime.ServerMetadata{}, status.Error(codes.InvalidArgument, err.Error())
	}
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return nil, runtime.ServerMetadata{}, status.Error(codes.Internal, err.Error())
	}
	var stream runtime.ServerTransportStream
	resp, err := grpcMethod(grpc.NewContextWithServerTransportStream(ctx, &stream), s, m)
	return resp, runtime.ServerMetadata{HeaderMD: stream.Header(), TrailerMD: stream.Trailer()}, err
}
