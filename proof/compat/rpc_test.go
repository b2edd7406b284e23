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

// A service would have generated types and names. Well-known types do for one that needs no generator.
type (
	amount  = wrapperspb.Int64Value
	charged = wrapperspb.StringValue
)

const (
	serviceName = "payments.v1.PaymentService"
	procedure   = "/" + serviceName + "/Charge"
)

// method is what an RPC service does. Its errors are those of grpc-go.
type method func(context.Context, *service) error

// rpc is a way to serve a method, and a way to call it.
type rpc struct {
	name   string
	proto  protocol
	serve  func(*service, method) http.Handler
	client caller

	// status names a code as the client sees it. Nil: by the name of the code.
	status func(codes.Code) string

	// timed calls with a deadline that the server has to keep, and the client does not. Nil if there is no such way.
	timed caller

	// crashes says that a panic of a method ends the process.
	crashes bool

	// final are transient codes that look like an answer: only their body differs from that of others.
	final []codes.Code
}

var rpcs = append(append(connectRPCs, grpcRPCs...), gatewayRPCs...)

// transient says which codes are no answer.
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

// scenario returns what happens when m is called twice.
func (r rpc) scenario(m method, first, retry codes.Code, runs int64) scenario {
	return scenario{
		proto: r.proto, call: r.client, first: r.shown(first), retry: r.shown(retry), runs: runs,
		handler: func(s *service) http.Handler { return r.serve(s, m) },
	}
}

// runs returns how often a method runs that fails twice.
func (r rpc) runs(code codes.Code) int64 {
	if transient[code] && !slices.Contains(r.final, code) {
		return 2
	}
	return 1
}

// shown returns what the client sees of a code.
func (r rpc) shown(code codes.Code) string {
	if r.status != nil {
		return r.status(code)
	}
	return code.String()
}

func charge(context.Context, *service) error { return nil }

// failing fails with a message that must be escaped, and a detail.
func failing(code codes.Code) method {
	return func(context.Context, *service) error {
		failure, err := status.New(code, "no:\n50 % é").WithDetails(durationpb.New(time.Hour))
		if err != nil {
			return err
		}
		return failure.Err()
	}
}

// decided gives a verdict and fails.
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

// ignoring succeeds once its context has ended.
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

// panic checks that a method that has panicked runs again. What the client is told depends on its library.
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
