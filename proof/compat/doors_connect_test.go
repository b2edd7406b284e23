package compat_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/go-chi/chi/v5/middleware"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/idempotency-go/idempotency/examples/connect/refusal"
)

// connectDoor tests the answers of Connect handlers, over the Connect protocol with JSON. TestRPC tests the other
// protocols.
func connectDoor() door {
	d := &connectWays{door{name: "connect-go"}}
	failed := func(code connect.Code) connectHandler {
		return func(context.Context, *stage) (*connect.Response[charged], error) {
			failure := connectError(failing(codes.Code(code))(context.Background(), nil))
			return nil, failure
		}
	}
	d.way(returned, "return response, header and trailer", replayed, d.charge)
	d.way(erring, "connect.NewError(connect.CodeFailedPrecondition)", replayed, failed(connect.CodeFailedPrecondition))
	d.way(erring, "connect.NewError(connect.CodeUnavailable)", runsAgain, failed(connect.CodeUnavailable))
	d.way(erring, `return nil, errors.New("down")`, runsAgain,
		func(context.Context, *stage) (*connect.Response[charged], error) { return nil, errors.New("down") })
	d.way(aborting, "panic(http.ErrAbortHandler)", runsAgain,
		func(context.Context, *stage) (*connect.Response[charged], error) { panic(http.ErrAbortHandler) })
	d.way(panicking, "panic", runsAgain, d.crash)
	d.way(asJSON, "JSON codec", replayed, d.charge)
	d.stream("connect.NewServerStreamHandler", replayed, nil)
	d.stream("messages, then connect.CodeFailedPrecondition", replayed,
		connect.NewError(connect.CodeFailedPrecondition, errors.New("declined")))
	down := connect.NewError(connect.CodeUnavailable, errors.New("down"))
	d.stream("messages, then connect.CodeUnavailable", runsAgain, down)
	d.stream("messages, then connect.CodeUnavailable, compressed", runsAgain, down, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Header.Set("Connect-Accept-Encoding", "gzip")
			next.ServeHTTP(w, r)
		})
	})
	d.way(silently, "an empty message", replayed, func(context.Context, *stage) (*connect.Response[charged], error) {
		return connect.NewResponse(new(charged)), nil
	})
	d.way(leaving, "the handler goes on", replayed,
		func(ctx context.Context, s *stage) (*connect.Response[charged], error) {
			return connect.NewResponse(new(charged)), s.wait(ctx)
		})
	late := func(ctx context.Context, _ *stage) (*connect.Response[charged], error) { return nil, tooLong(ctx) }
	d.add(timingOut, "Connect-Timeout-Ms", runsAgain, late, nil, impatiently)
	hide := connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
			resp, err := next(ctx, r)
			if err != nil {
				return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("declined"))
			}
			return resp, nil
		}
	})
	d.add(errorHandler, "an interceptor", replayed, failed(connect.CodeUnavailable),
		[]connect.HandlerOption{connect.WithInterceptors(hide)})
	recovered := connect.WithRecover(func(context.Context, connect.Spec, http.Header, any) error {
		return connect.NewError(connect.CodeInternal, errors.New("crash"))
	})
	d.add(recovering, "connect.WithRecover", runsAgain, d.crash, []connect.HandlerOption{recovered})
	plain := []connect.HandlerOption{connect.WithCompression("gzip", nil, nil)}
	d.add(compressOut, "chi's middleware.Compress", replayed, d.charge, plain, middleware.Compress(5))
	d.way(compressIn, "gzip, as by default", replayed, d.charge)
	return d.door
}

type connectHandler func(context.Context, *stage) (*connect.Response[charged], error)

// connectWays is a door with Connect handlers.
type connectWays struct{ door }

func (*connectWays) charge(context.Context, *stage) (*connect.Response[charged], error) {
	resp := connect.NewResponse(&charged{Value: strings.Repeat(receipt, 100)})
	resp.Header().Set("Charge-Number", "1")
	resp.Trailer().Set("Charge-Sum", "1234")
	return resp, nil
}

func (*connectWays) crash(context.Context, *stage) (*connect.Response[charged], error) {
	panic("crash")
}

func (d *connectWays) way(k kind, name string, retry fate, h connectHandler) {
	d.add(k, name, retry, h, nil)
}

// add adds a way: a unary procedure behind the guard, with layers around the guard.
func (d *connectWays) add(
	k kind, name string, retry fate, h connectHandler, opts []connect.HandlerOption,
	layers ...func(http.Handler) http.Handler,
) {
	d.ways = append(d.ways, way{k, name, retry, func(t testing.TB, s *stage) string {
		unary := func(ctx context.Context, _ *connect.Request[structpb.Struct]) (*connect.Response[charged], error) {
			s.enter()
			return h(ctx, s)
		}
		handler := s.guardConnect(t, connect.NewUnaryHandler(procedure, unary, opts...))
		return s.listen(t, around(layers...)(t, handler)) + procedure
	}})
}

// stream adds a procedure that sends two messages, and ends with the error end, which may be nil.
func (d *connectWays) stream(name string, retry fate, end error, layers ...func(http.Handler) http.Handler) {
	d.ways = append(d.ways, way{streaming, name, retry, func(t testing.TB, s *stage) string {
		send := func(_ context.Context, _ *connect.Request[structpb.Struct], to *connect.ServerStream[charged]) error {
			s.enter()
			to.ResponseTrailer().Set("Charge-Sum", "1234")
			for _, number := range []string{"1", "2"} {
				if err := to.Send(&charged{Value: number}); err != nil {
					return err
				}
			}
			return end
		}
		handler := s.guardConnect(t, connect.NewServerStreamHandler(procedure, send))
		return s.listen(t, around(layers...)(t, enveloped(handler))) + procedure
	}})
}

// guardConnect guards a handler as in the examples.
func (s *stage) guardConnect(t testing.TB, next http.Handler) http.Handler {
	t.Helper()
	if !s.guarded {
		return next
	}
	opts := s.options()
	opts.ErrorHandler = refusal.Write
	return newMiddleware(t, newStore(), opts).Handler(next)
}

// impatiently makes clients set a deadline.
func impatiently(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Connect-Timeout-Ms", connectTimeout.Get("Connect-Timeout-Ms"))
		next.ServeHTTP(w, r)
	})
}

// enveloped makes clients use the streaming variant of Connect.
func enveloped(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		message, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		envelope := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))
		r.Body = io.NopCloser(bytes.NewReader(append(envelope, message...)))
		r.ContentLength = int64(len(envelope) + len(message))
		r.Header.Set("Content-Type", "application/connect+json")
		next.ServeHTTP(w, r)
	})
}
