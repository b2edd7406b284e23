package grpcidempotency_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	spb "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/grpcidempotency"
)

// setMetadata sets every kind of metadata that a handler can set: header, trailer, and values in binary.
func setMetadata(ctx context.Context) {
	_ = grpc.SetHeader(ctx, metadata.Pairs("Charge-Number", "1", "charge-number", "2"))
	_ = grpc.SetHeader(ctx, metadata.Pairs("charge-bin", "\x00\x01\xff\n", "idempotent-replayed", "by the handler"))
	_ = grpc.SetTrailer(ctx, metadata.Pairs("charge-sum", "1234", "sum-bin", "\\x41"))
}

// failWith returns a method that fails with code and a detail.
func failWith(code codes.Code) method {
	return func(ctx context.Context, _ int64) (any, error) {
		failure, err := status.New(code, "no: \t%ü").WithDetails(durationpb.New(42))
		if err != nil {
			return nil, err
		}
		return nil, failure.Err()
	}
}

// withMetadata returns a method that sets metadata, and then calls m.
func withMetadata(m method) method {
	return func(ctx context.Context, cents int64) (any, error) {
		setMetadata(ctx)
		return m(ctx, cents)
	}
}

// answerTest is a method with one kind of answer.
type answerTest struct {
	name    string
	method  method
	isFinal bool // the answer is stored, and replayed
}

// answerTests returns a test for every kind of answer and every code.
func answerTests() (tests []answerTest) {
	succeed := func(context.Context, int64) (any, error) { return &receipt{Value: "ü"}, nil }
	fail := func(err error) method { return func(context.Context, int64) (any, error) { return &receipt{}, err } }
	tests = []answerTest{
		{"message", succeed, true},
		{"message and metadata", withMetadata(succeed), true},
		{"sent header", func(ctx context.Context, cents int64) (any, error) {
			setMetadata(ctx)
			if err := grpc.SendHeader(ctx, metadata.Pairs("late", "1")); err != nil {
				return nil, err
			}
			again, set := grpc.SendHeader(ctx, nil), grpc.SetHeader(ctx, metadata.Pairs("late", "2"))
			return &receipt{Value: fmt.Sprintf("%v; %v", again, set)}, nil
		}, true},
		{"empty message", func(context.Context, int64) (any, error) { return &receipt{}, nil }, true},
		{"typed nil", func(context.Context, int64) (any, error) { return (*receipt)(nil), nil }, true},
		{"no message", func(context.Context, int64) (any, error) { return nil, nil }, true},
		{"plain error", fail(errors.New("oops")), false},
		{"context error", fail(fmt.Errorf("query: %w", context.DeadlineExceeded)), false},
		{"wrapped status", fail(fmt.Errorf("query: %w", status.Error(codes.NotFound, "no row"))), true},
		{"message that is not UTF-8", func(context.Context, int64) (any, error) { return &receipt{Value: "\xff"}, nil }, false},
		{"unknown code", fail(status.Error(99, "what?")), false},
	}
	final := map[codes.Code]bool{
		codes.InvalidArgument: true, codes.NotFound: true, codes.AlreadyExists: true, codes.PermissionDenied: true,
		codes.FailedPrecondition: true, codes.OutOfRange: true,
	}
	broken, err := status.New(codes.NotFound, "no: \xff").WithDetails(durationpb.New(42))
	if err != nil {
		panic(err)
	}
	details := &spb.Status{Code: int32(codes.NotFound), Message: "no", Details: []*anypb.Any{{TypeUrl: "\xff"}}}
	tests = append(tests,
		answerTest{"details that are not sent", fail(broken.Err()), true},
		answerTest{"details that cannot be sent", fail(status.ErrorProto(details)), true},
	)
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		tests = append(tests,
			answerTest{code.String(), fail(status.Error(code, "no: \t%ü\xff")), final[code]},
			answerTest{code.String() + ", details and metadata", withMetadata(failWith(code)), final[code]},
		)
	}
	return tests
}

// The client receives the same answer from the unguarded method, from the first guarded call, and, apart from the marker,
// from a replay.
func TestAnswersAreEqual(t *testing.T) {
	t.Parallel()
	for _, tt := range answerTests() {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			unguarded := startService(t, setup{method: tt.method, isUnguarded: true}).call(withKey("1"), 1)
			s := startService(t, setup{method: tt.method})
			first, again := s.call(withKey("1"), 1), s.call(withKey("1"), 1)
			require.Equal(t, unguarded.withoutMarker(), first.withoutMarker())
			require.Equal(t, unguarded.withoutMarker(), again.withoutMarker())
			require.False(t, first.Replayed)
			require.Equal(t, tt.isFinal, again.Replayed)
			require.Equal(t, map[bool]int64{true: 1, false: 2}[tt.isFinal], s.runs.Load())
		})
	}
}

// The guard adds no header to a failure without a header. The answer stays trailers-only, so the client may retry as
// without the guard.
func TestFailureWithoutHeader(t *testing.T) {
	t.Parallel()
	s := startService(t, setup{method: failWith(codes.Unavailable)})
	var header metadata.MD
	err := s.conn.Invoke(withKey("1"), charge, &amount{}, &receipt{}, grpc.Header(&header))
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.Empty(t, header)
}

// DefaultStorable decides about a code as the middleware decides about that code in a gRPC answer over HTTP.
func TestCodesAreThoseOfTheMiddleware(t *testing.T) {
	t.Parallel()
	for code := codes.OK; code <= codes.Unauthenticated+1; code++ {
		overHTTP := idempotency.DefaultStorable(&idempotency.Response{
			Status: 200, Header: "Content-Type: application/grpc\n", Trailer: idempotency.Fields(fmt.Sprintf("Grpc-Status: %d\n", code)),
		})
		require.Equal(t, overHTTP, grpcidempotency.DefaultStorable(status.New(code, "")), code)
	}
}

// The verdict of the handler outranks Storable.
func TestDecide(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		verdict   idempotency.Verdict
		firstCode codes.Code
		policy    idempotency.Abandoned
		retryCode codes.Code
		wantRuns  int64
	}{
		"failure, kept":          {idempotency.Keep, codes.NotFound, 0, codes.NotFound, 1},
		"message, tombstone":     {idempotency.Tombstone, codes.OK, 0, codes.FailedPrecondition, 1},
		"failure, tombstone":     {idempotency.Tombstone, codes.NotFound, 0, codes.FailedPrecondition, 1},
		"message, released":      {idempotency.Free, codes.OK, 0, codes.OK, 2},
		"failure, released":      {idempotency.Free, codes.NotFound, 0, codes.NotFound, 2},
		"unknown, executed":      {idempotency.Unknown, codes.OK, idempotency.ReExecute, codes.OK, 2},
		"unknown, refused":       {idempotency.Unknown, codes.OK, idempotency.Refuse, codes.FailedPrecondition, 1},
		"unavailable, unknown":   {idempotency.Unknown, codes.Unavailable, idempotency.Refuse, codes.FailedPrecondition, 1},
		"unavailable, kept":      {idempotency.Keep, codes.Unavailable, 0, codes.Unavailable, 1},
		"unavailable, tombstone": {idempotency.Tombstone, codes.Unavailable, 0, codes.FailedPrecondition, 1},
		"unavailable, undecided": {0, codes.Unavailable, idempotency.Refuse, codes.Unavailable, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startService(t, setup{
				runnerOptions: idempotency.RunnerOptions{Abandoned: tt.policy},
				method: func(ctx context.Context, _ int64) (any, error) {
					idempotency.Decide(ctx, tt.verdict)
					return &receipt{}, status.Error(tt.firstCode, "")
				},
			})
			require.Equal(t, tt.firstCode, s.call(withKey("1"), 1).Code)
			require.Equal(t, tt.retryCode, s.call(withKey("1"), 1).Code)
			require.Equal(t, tt.wantRuns, s.runs.Load())
		})
	}
}

func TestStorable(t *testing.T) {
	t.Parallel()
	aborted := func(s *status.Status) bool { return s.Code() == codes.Aborted }
	s := startService(t, setup{method: failWith(codes.Aborted), guardOptions: grpcidempotency.Options{Storable: aborted}})
	s.call(withKey("1"), 1)
	require.True(t, s.call(withKey("1"), 1).Replayed)
}

// A message that cannot be encoded becomes an Internal failure. If Storable accepts the failure, the failure is stored.
func TestStorableFailureOfEncoding(t *testing.T) {
	t.Parallel()
	s := startService(t, setup{
		method:       func(context.Context, int64) (any, error) { return &receipt{Value: "\xff"}, nil },
		guardOptions: grpcidempotency.Options{Storable: func(*status.Status) bool { return true }},
	})
	first, again := s.call(withKey("1"), 1), s.call(withKey("1"), 1)
	require.Equal(t, codes.Internal, first.Code)
	require.Equal(t, first.withoutMarker(), again.withoutMarker())
	require.True(t, again.Replayed)
}

// An answer that is too large to be stored reaches the client, and the handler never runs again.
func TestNotReplayable(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 1<<10)
	for name, m := range map[string]method{
		"message": func(context.Context, int64) (any, error) { return &receipt{Value: large}, nil },
		"failure": func(context.Context, int64) (any, error) { return nil, status.Error(codes.NotFound, large) },
		"metadata": func(ctx context.Context, _ int64) (any, error) {
			return &receipt{}, grpc.SetTrailer(ctx, metadata.Pairs("large", strings.Repeat(large, 64)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			unguarded := startService(t, setup{method: m, isUnguarded: true}).call(withKey("1"), 1)
			s := startService(t, setup{method: m, guardOptions: grpcidempotency.Options{MaxResponse: 1 << 10}})
			require.Equal(t, unguarded.withoutMarker(), s.call(withKey("1"), 1).withoutMarker())
			again := s.call(withKey("1"), 1)
			require.Equal(t, codes.FailedPrecondition, again.Code)
			require.Equal(t, "NOT_REPLAYABLE", refusalReason(t, again.err))
			require.Equal(t, int64(1), s.runs.Load())
		})
	}
}
