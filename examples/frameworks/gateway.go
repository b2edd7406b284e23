package main

import (
	"context"
	"net/http"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/frameworks/guard"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
)

// A real service has generated types and names. This example uses well-known types, and needs no generator.
type (
	amount  = wrapperspb.Int64Value
	receipt = wrapperspb.StringValue
)

const service, method = "payments.v1.PaymentService", "Charge"

// onGateway guards the routes of a grpc-gateway. The gRPC service behind the gateway does not use keys.
func onGateway(idem *idempotency.Middleware, shop *demo.Shop) guarded {
	conn, stop := startGRPC(shop)

	// On all routes, behind the router.
	gateway := runtime.NewServeMux(append(guard.Options(idem), runtime.WithForwardResponseOption(created))...)

	demo.Check(registerRoutes(gateway, conn))
	return guarded{demo.Authenticate(gateway), []string{"/payments"}, stop} // authentication goes outside
}

// created sets the status 201, because each call creates a charge.
func created(_ context.Context, w http.ResponseWriter, _ proto.Message) error {
	w.WriteHeader(http.StatusCreated)
	return nil
}

// registerRoutes stands for the generated function that adds the routes of a service.
func registerRoutes(gateway *runtime.ServeMux, conn *grpc.ClientConn) error {
	return gateway.HandlePath("POST", "/payments", func(w http.ResponseWriter, r *http.Request, _ map[string]string) {
		inbound, outbound := runtime.MarshalerForRequest(gateway, r)
		ctx, err := runtime.AnnotateContext(r.Context(), gateway, r, service+"/"+method)
		in, out, md := new(amount), new(receipt), runtime.ServerMetadata{}
		if err == nil {
			err = inbound.NewDecoder(r.Body).Decode(in)
		}
		if err == nil {
			header, trailer := grpc.Header(&md.HeaderMD), grpc.Trailer(&md.TrailerMD)
			err = conn.Invoke(ctx, "/"+service+"/"+method, in, out, header, trailer)
		}
		ctx = runtime.NewServerMetadataContext(ctx, md)
		if err != nil {
			runtime.HTTPError(ctx, gateway, outbound, w, r, err)
			return
		}
		runtime.ForwardResponseMessage(ctx, gateway, outbound, w, r, out, gateway.GetForwardResponseOptions()...)
	})
}

// startGRPC starts the gRPC service, and returns a connection to it.
func startGRPC(shop *demo.Shop) (conn *grpc.ClientConn, stop func()) {
	server := grpc.NewServer()
	server.RegisterService(&grpc.ServiceDesc{ServiceName: service, HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
		MethodName: method,
		Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			if err := decode(new(amount)); err != nil {
				return nil, err
			}
			return &receipt{Value: "charge " + shop.Charge()}, nil
		},
	}}}, nil)
	listener := demo.Listen()
	go server.Serve(listener)
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	demo.Check(err)
	return conn, func() {
		demo.Check(conn.Close())
		server.Stop()
	}
}
