package compat_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"testing"

	"github.com/go-chi/chi/v5/middleware"
	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/frameworks/guard"
)

// gatewayDoor is guarded as in the examples. Its methods answer as generated code in the same process does.
func gatewayDoor() door {
	d := &gatewayWays{door{name: "grpc-gateway v2"}}
	one := &charged{Value: receipt}
	failed := func(code codes.Code) gatewayMethod {
		return func(context.Context, *stage) (proto.Message, error) {
			return nil, failing(code)(context.Background(), nil)
		}
	}
	answering := func(message proto.Message) gatewayMethod {
		return func(context.Context, *stage) (proto.Message, error) { return message, nil }
	}

	d.way(returned, "return message, nil", replayed, answering(one))
	d.way(erring, "codes.FailedPrecondition", replayed, failed(codes.FailedPrecondition))
	d.way(erring, "codes.AlreadyExists", replayed, failed(codes.AlreadyExists))
	d.way(erring, "codes.Aborted", runsAgain, failed(codes.Aborted))
	d.way(erring, "codes.Unavailable", runsAgain, failed(codes.Unavailable))
	d.way(erring, `return nil, errors.New("down")`, runsAgain,
		func(context.Context, *stage) (proto.Message, error) { return nil, errors.New("down") })
	d.way(aborting, "panic(http.ErrAbortHandler)", runsAgain,
		func(context.Context, *stage) (proto.Message, error) { panic(http.ErrAbortHandler) })
	d.way(panicking, "panic", runsAgain, d.crash)
	d.way(asJSON, "a message with metadata", replayed, d.charge)
	page := &httpbody.HttpBody{ContentType: "text/html", Data: []byte("<p>")}
	d.way(asString, "google.api.HttpBody", replayed, answering(page))
	picture := &httpbody.HttpBody{ContentType: "image/png", Data: []byte{0, 255}}
	d.way(asFile, "google.api.HttpBody", replayed, answering(picture))
	d.add(redirecting, "runtime.WithForwardResponseOption", replayed, answering(one),
		runtime.WithForwardResponseOption(func(_ context.Context, w http.ResponseWriter, _ proto.Message) error {
			w.Header().Set("Location", "/done")
			w.WriteHeader(http.StatusSeeOther)
			return nil
		}))
	d.stream("messages", replayed, io.EOF)
	d.stream("messages, then codes.FailedPrecondition", replayed, status.Error(codes.FailedPrecondition, "declined"))
	d.stream("messages, then codes.Unavailable", runsAgain, status.Error(codes.Unavailable, "down"))
	d.add(statusOnly, "x-http-code", replayed, d.charge, runtime.WithForwardResponseOption(d.modify))
	d.way(silently, "google.protobuf.Empty", replayed, answering(new(emptypb.Empty)))
	d.way(leaving, "the handler goes on", replayed,
		func(ctx context.Context, s *stage) (proto.Message, error) { return one, s.wait(ctx) })
	d.layer(timingOut, "Grpc-Timeout", runsAgain,
		func(ctx context.Context, _ *stage) (proto.Message, error) {
			return nil, status.FromContextError(tooLong(ctx)).Err()
		},
		func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				r.Header.Set("Grpc-Timeout", grpcTimeout.Get("Grpc-Timeout"))
				next.ServeHTTP(w, r)
			})
		})
	d.add(errorHandler, "runtime.WithErrorHandler", replayed, failed(codes.Unavailable), runtime.WithErrorHandler(
		func(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, _ *http.Request, _ error) {
			http.Error(w, "declined", http.StatusUnprocessableEntity)
		}))
	d.layer(recovering, "chi's middleware.Recoverer", runsAgain, d.crash, quietly, middleware.Recoverer)
	d.layer(compressOut, "chi's middleware.Compress", replayed, d.charge, middleware.Compress(5))
	return d.door
}

type gatewayMethod func(context.Context, *stage) (proto.Message, error)

// gatewayWays is a door whose handlers are methods behind a gateway.
type gatewayWays struct{ door }

func (*gatewayWays) charge(ctx context.Context, _ *stage) (proto.Message, error) {
	md, _ := runtime.ServerMetadataFromContext(ctx)
	md.HeaderMD.Set("x-http-code", strconv.Itoa(http.StatusAccepted))
	return &charged{Value: receipt}, nil
}

func (*gatewayWays) crash(context.Context, *stage) (proto.Message, error) { panic("crash") }

// modify sets the status that a method has put into the metadata, as the documentation of the gateway shows.
func (*gatewayWays) modify(ctx context.Context, w http.ResponseWriter, _ proto.Message) error {
	md, _ := runtime.ServerMetadataFromContext(ctx)
	code, err := strconv.Atoi(md.HeaderMD.Get("x-http-code")[0])
	if err != nil {
		return err
	}
	w.Header().Del("Grpc-Metadata-X-Http-Code")
	w.WriteHeader(code)
	return nil
}

func (d *gatewayWays) way(k kind, name string, retry fate, m gatewayMethod) { d.add(k, name, retry, m) }

// add adds a way: a unary method behind a gateway with opts.
func (d *gatewayWays) add(k kind, name string, retry fate, m gatewayMethod, opts ...runtime.ServeMuxOption) {
	d.serve(k, name, retry, d.unary(m), opts, nil)
}

// layer adds a way with layers around the gateway.
func (d *gatewayWays) layer(
	k kind, name string, retry fate, m gatewayMethod, layers ...func(http.Handler) http.Handler,
) {
	d.serve(k, name, retry, d.unary(m), nil, layers)
}

// forwarder answers with the result or the error of a method.
type forwarder func(context.Context, *stage, *runtime.ServeMux, runtime.Marshaler, http.ResponseWriter, *http.Request)

func (*gatewayWays) unary(m gatewayMethod) forwarder {
	return func(
		ctx context.Context, s *stage, mux *runtime.ServeMux, marshaler runtime.Marshaler,
		w http.ResponseWriter, r *http.Request,
	) {
		message, err := m(ctx, s)
		if err != nil {
			runtime.HTTPError(ctx, mux, marshaler, w, r, err)
			return
		}
		runtime.ForwardResponseMessage(ctx, mux, marshaler, w, r, message, mux.GetForwardResponseOptions()...)
	}
}

// stream adds a method that sends two messages, and ends with an error.
func (d *gatewayWays) stream(name string, retry fate, end error) {
	d.serve(streaming, name, retry, func(
		ctx context.Context, _ *stage, mux *runtime.ServeMux, marshaler runtime.Marshaler,
		w http.ResponseWriter, r *http.Request,
	) {
		sent := 0
		runtime.ForwardResponseStream(ctx, mux, marshaler, w, r, func() (proto.Message, error) {
			if sent++; sent > 2 {
				return nil, end
			}
			return &charged{Value: receipt}, nil
		})
	}, nil, nil)
}

// serve adds a way: a route of a gateway, with layers around the gateway.
func (d *gatewayWays) serve(
	k kind, name string, retry fate, forward forwarder, opts []runtime.ServeMuxOption,
	layers []func(http.Handler) http.Handler,
) {
	d.ways = append(d.ways, way{k, name, retry, func(t testing.TB, s *stage) string {
		var all []runtime.ServeMuxOption
		if s.guarded {
			all = guard.Options(s.middleware(t))
		}
		mux := runtime.NewServeMux(append(all, opts...)...)
		err := mux.HandlePath(http.MethodPost, "/charges", func(w http.ResponseWriter, r *http.Request, _ map[string]string) {
			s.enter()
			_, marshaler := runtime.MarshalerForRequest(mux, r)
			ctx, err := runtime.AnnotateIncomingContext(r.Context(), mux, r, procedure)
			if err != nil {
				runtime.HTTPError(ctx, mux, marshaler, w, r, err)
				return
			}
			ctx = runtime.NewServerMetadataContext(ctx, runtime.ServerMetadata{HeaderMD: metadata.MD{}})
			forward(ctx, s, mux, marshaler, w, r)
		})
		require.NoError(t, err)
		return s.listen(t, around(layers...)(t, mux)) + "/charges"
	}})
}

// The gateway passes the same key to the service behind it in each attempt.
func TestGatewayPassesAKeyOn(t *testing.T) {
	t.Parallel()
	var keys []string
	options := append(guard.Options(newMiddleware(t, newStore(), idempotency.Options{})),
		runtime.WithMetadata(func(ctx context.Context, _ *http.Request) metadata.MD {
			op, _ := idempotency.FromContext(ctx)
			return metadata.Pairs("idempotency-key", op.DownstreamKey("charge"))
		}))
	mux := runtime.NewServeMux(options...)
	err := mux.HandlePath(http.MethodPost, "/charges", func(w http.ResponseWriter, r *http.Request, _ map[string]string) {
		ctx, err := runtime.AnnotateIncomingContext(r.Context(), mux, r, procedure)
		if err != nil {
			panic(err)
		}
		keys = append(keys, metadata.ValueFromIncomingContext(ctx, "idempotency-key")...)
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	require.NoError(t, err)
	url := http1.listen(t, mux).URL + "/charges"
	for range 2 {
		require.Equal(t, "503", sendToURL(t.Context(), url, "key").status)
	}
	require.Len(t, keys, 2)
	require.Equal(t, keys[0], keys[1])
}
