package compat_test

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/idempotency-go/idempotency"
)

// A real service has generated types and names. The tests use well-known types, which need no generator.
type (
	amount  = wrapperspb.Int64Value
	charged = wrapperspb.StringValue
)

const (
	serviceName = "payments.v1.PaymentService"
	procedure   = "/" + serviceName + "/Charge"
)

// method is the code of an RPC service. Its errors are errors of grpc-go.
type method func(context.Context, *service) error

// rpc is a way to serve a method, and a way to call the method.
type rpc struct {
	name   string
	proto  protocol
	serve  func(*service, method) http.Handler
	client caller

	// status returns a code as the client sees it. Nil: the name of the code.
	status func(codes.Code) string

	// timed calls with a deadline that the server has to keep, and the client does not keep. Nil if the library has no
	// such call.
	timed caller

	// crashes is set if a panic of a method ends the process.
	crashes bool

	// final are transient codes that look like an answer, because only the body distinguishes them from other codes.
	final []codes.Code
}

var rpcs = append(append(connectRPCs, grpcRPCs...), gatewayRPCs...)

// transient are the codes that do not count as an answer.
var transient = map[codes.Code]bool{
	codes.Canceled: true, codes.Unknown: true, codes.DeadlineExceeded: true, codes.ResourceExhausted: true,
	codes.Aborted: true, codes.Unimplemented: true, codes.Internal: true, codes.Unavailable: true,
	codes.DataLoss: true, codes.Unauthenticated: true,
}

func TestRPC(t *testing.T) {
	t.Parallel()
	for _, rpc := range rpcs {
		t.Run(rpc.name, func(t *testing.T) {
			t.Run("OK", rpc.scenario(charge, codes.OK, codes.OK, 1).run)
			for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
				t.Run(code.String(), rpc.scenario(failing(code), code, code, rpc.runs(code)).run)
			}
			rpc.leaving(t)
			rpc.deciding(t)
			if rpc.timed != nil {
				rpc.timeouts(t)
			}
			if !rpc.crashes {
				t.Run("panic", rpc.panic)
			}
		})
	}
}

// scenario returns the scenario of two calls of m.
func (r rpc) scenario(m method, first, retry codes.Code, runs int64) scenario {
	return scenario{
		proto: r.proto, call: r.client, first: r.shown(first), retry: r.shown(retry), runs: runs,
		handler: func(s *service) http.Handler { return r.serve(s, m) },
	}
}

// runs returns the expected runs of a method that fails twice.
func (r rpc) runs(code codes.Code) int64 {
	if transient[code] && !slices.Contains(r.final, code) {
		return 2
	}
	return 1
}

// shown returns a code as the client sees it.
func (r rpc) shown(code codes.Code) string {
	if r.status != nil {
		return r.status(code)
	}
	return code.String()
}

func charge(context.Context, *service) error { return nil }

// failing fails with a detail, and with a message that must be escaped.
func failing(code codes.Code) method {
	return func(context.Context, *service) error {
		failure, err := status.New(code, "no:\n50 % é").WithDetails(durationpb.New(time.Hour))
		if err != nil {
			return err
		}
		return failure.Err()
	}
}

// decided calls Decide, and fails.
func decided(verdict idempotency.Verdict, code codes.Code) method {
	return func(ctx context.Context, _ *service) error {
		idempotency.Decide(ctx, verdict)
		return status.Error(code, "decided")
	}
}

// awaiting waits, and fails if its context ends.
func awaiting(ctx context.Context, s *service) error {
	if err := s.wait(ctx); err != nil {
		return status.FromContextError(err).Err()
	}
	return nil
}

// ignoring succeeds after its context has ended.
func ignoring(ctx context.Context, _ *service) error {
	<-ctx.Done()
	return nil
}

func (r rpc) leaving(t *testing.T) {
	t.Helper()
	left := r.scenario(awaiting, codes.Canceled, codes.OK, 1)
	left.leaves = true
	if r.status != nil {
		left.first = broken // a plain client has no code of its own
	}
	t.Run("client leaves", left.run)
	left.opts.CancelWithClient, left.runs = true, 2
	t.Run("client leaves and takes the method along", left.run)
}

func (r rpc) deciding(t *testing.T) {
	t.Helper()
	t.Run("released", r.scenario(decided(idempotency.Free, codes.Aborted), codes.Aborted, codes.Aborted, 2).run)
	t.Run("kept", r.scenario(decided(idempotency.Keep, codes.Unavailable), codes.Unavailable, codes.Unavailable, 1).run)
	t.Run("unknown", r.scenario(decided(idempotency.Unknown, codes.NotFound), codes.NotFound, codes.NotFound, 2).run)
}

func (r rpc) timeouts(t *testing.T) {
	t.Helper()
	late := codes.DeadlineExceeded
	obeyed := r.scenario(awaiting, late, late, 2)
	ignored := r.scenario(ignoring, codes.OK, codes.OK, 1)
	obeyed.call, ignored.call = r.timed, r.timed
	obeyed.bubble, ignored.bubble = true, true
	t.Run("timeout obeyed", obeyed.run)
	t.Run("timeout ignored", ignored.run)
}

// panic requires that a method runs again after a panic. The client's error depends on the library.
func (r rpc) panic(t *testing.T) {
	t.Parallel()
	s := r.scenario(func(context.Context, *service) error { panic("crash") }, codes.OK, codes.OK, 2)
	bare, guarded := s.start(t, false), s.start(t, true)
	want := bare.send("").status
	require.NotEqual(t, r.shown(codes.OK), want)
	require.Equal(t, want, guarded.send("key").status)
	guarded.settle(t)
	require.Equal(t, want, guarded.send("key").status)
	require.EqualValues(t, 2, guarded.runs.Load())
}
