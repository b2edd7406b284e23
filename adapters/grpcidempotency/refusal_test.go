package grpcidempotency_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	spb "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/grpcidempotency"
	"github.com/idempotency-go/idempotency/adapters/internal/adaptertest"
)

// refusalReason returns the reason in the ErrorInfo of a refusal.
func refusalReason(t *testing.T, err error) string {
	t.Helper()
	info := findDetail[*errdetails.ErrorInfo](t, err)
	require.Equal(t, "github.com/idempotency-go/idempotency", info.GetDomain())
	return info.GetReason()
}

// requireRefused checks a refusal. A refusal must not have a header, because gRPC clients do not retry after a header.
func requireRefused(t *testing.T, got answer, code codes.Code, why string, retryDelay time.Duration) {
	t.Helper()
	require.Equal(t, code, got.Code, got.Message)
	require.Equal(t, why, refusalReason(t, got.err))
	require.NotEmpty(t, got.Message)
	require.Empty(t, got.Header)
	if retryDelay == 0 {
		require.Len(t, got.Details, 1)
		require.Empty(t, got.Trailer["grpc-retry-pushback-ms"])
		return
	}
	require.Equal(t, retryDelay, findDetail[*errdetails.RetryInfo](t, got.err).GetRetryDelay().AsDuration())
	require.Equal(t, []string{formatMilliseconds(retryDelay)}, got.Trailer["grpc-retry-pushback-ms"])
}

func formatMilliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

func TestInProgress(t *testing.T) {
	t.Parallel()
	h := newPausedHandler(t)
	s := startService(t, setup{method: h.run})
	first := make(chan answer, 1)
	go func() { first <- s.call(withKey("1"), 1) }()
	awaitValue(t, h.started)
	got := s.call(withKey("1"), 1)
	close(h.finish)
	requireRefused(t, got, codes.Aborted, "IN_PROGRESS", time.Second)
	require.Equal(t, "same-key", findDetail[*errdetails.ErrorInfo](t, got.err).GetMetadata()["retry"])
	require.Equal(t, codes.OK, awaitValue(t, first).Code)
}

// A key belongs to one user and one method.
func TestScope(t *testing.T) {
	t.Parallel()
	s := startService(t, setup{})
	bob := metadata.AppendToOutgoingContext(withKey("1"), "user", "bob")
	require.False(t, s.call(withKey("1"), 1).Replayed)
	require.False(t, s.call(bob, 2).Replayed)
	require.Equal(t, codes.OK, invokeMethod(withKey("1"), s.conn, refund, 3).Code)
	require.Equal(t, int64(3), s.runs.Load())
	got := s.call(withKey("1"), 2)
	requireRefused(t, got, codes.FailedPrecondition, "KEY_REUSED", 0)
	require.Equal(t, "new-key", findDetail[*errdetails.ErrorInfo](t, got.err).GetMetadata()["retry"])
	require.Equal(t, int64(3), s.runs.Load())
}

func TestKeys(t *testing.T) {
	t.Parallel()
	required := grpcidempotency.Options{Required: true, ValidateKey: func(id string) error {
		if id == "ugly" {
			return errors.New("the key is ugly")
		}
		return nil
	}}
	s := startService(t, setup{guardOptions: required})
	for name, keys := range map[string][]string{
		"empty": {""}, "two": {"a", "a"}, "too long": {strings.Repeat("x", 256)}, "space": {"a b"}, "comma": {"a,b"},
		"open": {`"a`}, "parameter": {`"a";b`}, "escape": {`"\a"`}, "quotes": {`""`}, "refused by ValidateKey": {"ugly"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			md := metadata.MD{"idempotency-key": keys}
			got := s.call(metadata.NewOutgoingContext(context.Background(), md), 1)
			requireRefused(t, got, codes.InvalidArgument, "KEY_INVALID", 0)
		})
	}
	t.Run("missing", func(t *testing.T) {
		t.Parallel()
		requireRefused(t, s.call(context.Background(), 1), codes.InvalidArgument, "KEY_MISSING", 0)
	})
	t.Run("bare and quoted", func(t *testing.T) {
		t.Parallel()
		s := startService(t, setup{guardOptions: required})
		require.Equal(t, codes.OK, s.call(withKey("order-1"), 1).Code)
		require.True(t, s.call(withKey(`"order-1"`), 1).Replayed)
		for range 2 {
			require.Equal(t, codes.OK, s.call(grpcidempotency.WithKey(withKey("x"), `a\"b,c;d`), 1).Code)
		}
		require.Equal(t, int64(2), s.runs.Load())
	})
	t.Run("none, and not required", func(t *testing.T) {
		t.Parallel()
		s := startService(t, setup{})
		s.call(context.Background(), 1)
		require.False(t, s.call(context.Background(), 1).Replayed)
		require.Equal(t, int64(2), s.runs.Load())
	})
}

// The key may be in a field of the message. In these calls, an amount above 100 is the key, too.
func TestKeyInMessage(t *testing.T) {
	t.Parallel()
	opts := grpcidempotency.Options{Key: func(_ context.Context, req proto.Message) string {
		switch cents := req.(*amount).GetValue(); {
		case cents == 1000:
			return "a b"
		case cents > 100:
			return fmt.Sprintf(`"%d"`, cents) // quotes are a part of the key
		}
		return ""
	}}
	s := startService(t, setup{guardOptions: opts})
	none := context.Background()
	first := s.call(none, 200)
	require.Equal(t, codes.OK, first.Code)
	require.Equal(t, first.withoutMarker(), s.call(none, 200).withoutMarker())
	for _, same := range []answer{s.call(none, 200), s.call(grpcidempotency.WithKey(none, `"200"`), 200)} {
		require.True(t, same.Replayed)
	}
	require.EqualValues(t, 1, s.runs.Load())
	require.False(t, s.call(metadata.AppendToOutgoingContext(none, "user", "bob"), 200).Replayed)
	requireRefused(t, s.call(withKey("other"), 200), codes.InvalidArgument, "KEY_INVALID", 0)
	requireRefused(t, s.call(none, 1000), codes.InvalidArgument, "KEY_INVALID", 0)
	require.Equal(t, codes.OK, s.call(withKey("m"), 1).Code)
	require.True(t, s.call(withKey("m"), 1).Replayed, "a key in the metadata alone")
	require.False(t, s.call(none, 1).Replayed, "no key")

	opts.Required = true
	s = startService(t, setup{guardOptions: opts})
	require.Equal(t, codes.OK, s.call(none, 200).Code)
	requireRefused(t, s.call(none, 1), codes.InvalidArgument, "KEY_MISSING", 0)
}

func TestUnknownUser(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		user     string
		userErr  error
		wantCode codes.Code
	}{
		"no name":     {"", nil, codes.Unauthenticated},
		"error":       {"alice", errors.New("expired"), codes.Unauthenticated},
		"status":      {"", status.Error(codes.Unavailable, "down"), codes.Unavailable},
		"own refusal": {"", &idempotency.Error{Status: 403, Code: "blocked", Detail: "blocked"}, codes.PermissionDenied},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startService(t, setup{identifyUser: func(context.Context) (string, error) { return tt.user, tt.userErr }})
			got := s.call(withKey("1"), 1)
			require.Equal(t, tt.wantCode, got.Code)
			require.Zero(t, s.runs.Load())
			if tt.wantCode == codes.Unauthenticated {
				requireRefused(t, got, tt.wantCode, "USER_UNKNOWN", 0)
				require.NotContains(t, got.Message, "expired")
			}
		})
	}
}

func TestFaultsOfTheStore(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		faultyStore    adaptertest.FaultyStore
		wantCode       codes.Code
		wantReason     string
		wantRetryDelay time.Duration
		wantRuns       int64
	}{
		"down": {adaptertest.FaultyStore{BeginErr: errors.New("refused")},
			codes.Unavailable, "STORE_UNAVAILABLE", time.Second, 0},
		"quota": {adaptertest.FaultyStore{BeginErr: idempotency.ErrUserQuota},
			codes.ResourceExhausted, "QUOTA_EXCEEDED", time.Minute, 0},
		"unreadable": {adaptertest.FaultyStore{BeginErr: idempotency.ErrRecordInvalid},
			codes.Unavailable, "STORE_UNAVAILABLE", time.Second, 0},
		"claim lost": {adaptertest.FaultyStore{CompleteErr: idempotency.ErrClaimLost},
			codes.Aborted, "IN_PROGRESS", time.Second, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tt.faultyStore.Store = idempotency.NewMemoryStore(idempotency.MemoryOptions{})
			succeed := func(context.Context, int64) (any, error) { return &receipt{}, nil }
			s := startService(t, setup{store: &tt.faultyStore, method: withMetadata(succeed)})
			requireRefused(t, s.call(withKey("1"), 1), tt.wantCode, tt.wantReason, tt.wantRetryDelay)
			require.Equal(t, tt.wantRuns, s.runs.Load())
		})
	}
}

func TestFailOpen(t *testing.T) {
	t.Parallel()
	for code, m := range map[codes.Code]method{codes.OK: nil, codes.Unavailable: failWith(codes.Unavailable)} {
		unguarded := startService(t, setup{method: m, isUnguarded: true}).call(withKey("1"), 1)
		s := startService(t, setup{
			method: m, store: &adaptertest.FaultyStore{BeginErr: errors.New("refused")},
			runnerOptions: idempotency.RunnerOptions{FailOpen: true},
		})
		require.Equal(t, unguarded.withoutMarker(), s.call(withKey("1"), 1).withoutMarker())
		require.Equal(t, code, unguarded.Code)
	}
}

func TestOutcomeUnknown(t *testing.T) {
	t.Parallel()
	s := startService(t, setup{
		runnerOptions: idempotency.RunnerOptions{Abandoned: idempotency.Refuse, Lease: 100 * time.Millisecond},
		method: func(ctx context.Context, _ int64) (any, error) {
			idempotency.Decide(ctx, idempotency.Unknown)
			return &receipt{}, nil
		},
	})
	s.call(withKey("1"), 1)
	var got answer
	require.Eventually(t, func() bool {
		got = s.call(withKey("1"), 1)
		return got.Code == codes.FailedPrecondition
	}, waitLimit, 10*time.Millisecond)
	requireRefused(t, got, codes.FailedPrecondition, "OUTCOME_UNKNOWN", 0)
	require.Equal(t, int64(1), s.runs.Load())
}

// If this build cannot decode the stored answer, the call is refused, and the handler does not run.
func TestUnreadableAnswers(t *testing.T) {
	t.Parallel()
	packed := func(url string, m proto.Message) []byte {
		value, err := proto.Marshal(m)
		require.NoError(t, err)
		body, err := proto.Marshal(&anypb.Any{TypeUrl: "type.googleapis.com/" + url, Value: value})
		require.NoError(t, err)
		return body
	}
	const failure = "google.rpc.Status"
	for name, tt := range map[string]struct {
		stored         idempotency.Response
		wantCode       codes.Code
		wantReason     string
		wantRetryDelay time.Duration
	}{
		"unknown message type": {idempotency.Response{Status: 200, Body: packed("payments.v1.Gone", &receipt{})},
			codes.FailedPrecondition, "NOT_REPLAYABLE", 0},
		"damaged": {idempotency.Response{Status: 200, Body: []byte("\xff")},
			codes.Unavailable, "STORE_UNAVAILABLE", time.Second},
		"no type": {idempotency.Response{Status: 200, Body: []byte("\x12\x00")},
			codes.Unavailable, "STORE_UNAVAILABLE", time.Second},
		"no failure": {idempotency.Response{Status: 404},
			codes.Unavailable, "STORE_UNAVAILABLE", time.Second},
		"not a failure": {idempotency.Response{Status: 404, Body: packed("google.protobuf.StringValue", &receipt{})},
			codes.Unavailable, "STORE_UNAVAILABLE", time.Second},
		"failure of success": {idempotency.Response{Status: 404, Body: packed(failure, &spb.Status{})},
			codes.Unavailable, "STORE_UNAVAILABLE", time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startService(t, setup{})
			key := idempotency.Key{User: "alice", Endpoint: charge, ID: "1"}
			_, _, err := s.runner.Do(t.Context(), key, grpcidempotency.Canonical(&amount{Value: 1}),
				func(context.Context) (idempotency.Response, error) { return tt.stored, nil })
			require.NoError(t, err)
			requireRefused(t, s.call(withKey("1"), 1), tt.wantCode, tt.wantReason, tt.wantRetryDelay)
			require.Zero(t, s.runs.Load())
		})
	}
}

// If the stored answer has another type than the answers of the method, the call is refused.
func TestAnswerOfAnotherType(t *testing.T) {
	t.Parallel()
	require.NoError(t, registerLevels())
	s := startService(t, setup{})
	info := &grpc.UnaryServerInfo{FullMethod: "/levels.S/Make"}
	incoming := metadata.NewIncomingContext(t.Context(), metadata.Pairs("idempotency-key", "1"))
	runs := 0
	handler := func(context.Context, any) (any, error) { runs++; return &receipt{}, nil }
	_, err := s.guard.Unary(incoming, &amount{}, info, handler)
	require.NoError(t, err)
	_, err = s.guard.Unary(incoming, &amount{}, info, handler)
	require.Equal(t, "NOT_REPLAYABLE", refusalReason(t, err))
	require.Equal(t, 1, runs)
}

// Messages must be protobuf messages. Another request is refused before the handler runs. Another answer reaches the
// client, and is not stored.
func TestMessagesOfAnotherKind(t *testing.T) {
	t.Parallel()
	s := startService(t, setup{})
	info := &grpc.UnaryServerInfo{FullMethod: charge}
	runs := 0
	handler := func(context.Context, any) (any, error) { runs++; return "no message", nil }
	incoming := metadata.NewIncomingContext(t.Context(), metadata.Pairs("idempotency-key", "1"))

	_, err := s.guard.Unary(incoming, "no message", info, handler)
	require.Equal(t, codes.Internal, status.Code(err))
	require.Equal(t, "MESSAGE_UNSUPPORTED", refusalReason(t, err))
	require.Zero(t, runs)

	reply, err := s.guard.Unary(incoming, &amount{}, info, handler)
	require.NoError(t, err)
	require.Equal(t, "no message", reply)
	_, err = s.guard.Unary(incoming, &amount{}, info, handler)
	require.Equal(t, "NOT_REPLAYABLE", refusalReason(t, err))
	require.Equal(t, 1, runs)
}

func TestStreamsAreRefused(t *testing.T) {
	t.Parallel()
	s := startService(t, setup{})
	open := func(ctx context.Context) error {
		stream, err := s.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, watch)
		require.NoError(t, err)
		require.NoError(t, stream.SendMsg(&amount{}))
		require.NoError(t, stream.CloseSend())
		return stream.RecvMsg(new(receipt))
	}
	require.NoError(t, open(t.Context()))
	err := open(grpcidempotency.WithKey(t.Context(), "1"))
	require.Equal(t, codes.Unimplemented, status.Code(err))
	require.ErrorContains(t, err, watch)
}

func TestFaultsOfTheOptions(t *testing.T) {
	t.Parallel()
	_, err := grpcidempotency.New(nil, nil, grpcidempotency.Options{MaxResponse: -1})
	require.ErrorContains(t, err, "Runner")
	require.ErrorContains(t, err, "UserFunc")
	require.ErrorContains(t, err, "MaxResponse")
}

func TestFingerprintOption(t *testing.T) {
	t.Parallel()
	readTenant := func(ctx context.Context, req proto.Message) ([]byte, error) {
		if req.(*amount).GetValue() < 0 {
			return nil, errors.New("negative")
		}
		return []byte(strings.Join(metadata.ValueFromIncomingContext(ctx, "tenant"), "")), nil
	}
	s := startService(t, setup{guardOptions: grpcidempotency.Options{Fingerprint: readTenant}})
	s.call(withKey("1"), 1)
	require.True(t, s.call(withKey("1"), 2).Replayed)
	other := metadata.AppendToOutgoingContext(withKey("1"), "tenant", "b")
	requireRefused(t, s.call(other, 1), codes.FailedPrecondition, "KEY_REUSED", 0)
	requireRefused(t, s.call(withKey("2"), -1), codes.InvalidArgument, "BODY_INVALID", 0)
}
