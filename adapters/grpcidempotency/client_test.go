package grpcidempotency_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/grpcidempotency"
)

// retryPolicy is the service config in the README.
const retryPolicy = `{
	"methodConfig": [{
		"name": [{"service": "payments.v1.PaymentService"}],
		"retryPolicy": {
			"maxAttempts": 5,
			"initialBackoff": "0.1s",
			"maxBackoff": "2s",
			"backoffMultiplier": 2,
			"retryableStatusCodes": ["UNAVAILABLE", "ABORTED"]
		}
	}]
}`

// dialWithKeys returns the options of a client that sends keys.
func dialWithKeys(opts grpcidempotency.ClientOptions) []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(grpcidempotency.UnaryClientInterceptor(opts))}
}

// observeKeys returns an interceptor that sends the keys of each call to keys.
func observeKeys(keys chan<- []string) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		keys <- metadata.ValueFromIncomingContext(ctx, "idempotency-key")
		return handler(ctx, req)
	}
}

// The client makes a key for each call, unless the call has a key or the method is excluded.
func TestClientSendsKeys(t *testing.T) {
	t.Parallel()
	keys := make(chan []string, 100)
	notRefunds := func(method string) bool { return method != refund }
	s := startService(t, setup{
		outerInterceptors: []grpc.UnaryServerInterceptor{observeKeys(keys)},
		dialOptions:       dialWithKeys(grpcidempotency.ClientOptions{Methods: notRefunds}),
	})
	sent := func(ctx context.Context, method string) []string {
		invokeMethod(ctx, s.conn, method, 1)
		return awaitValue(t, keys)
	}
	one, two := sent(t.Context(), charge), sent(t.Context(), charge)
	require.Len(t, one, 1)
	require.NoError(t, uuid.Validate(one[0]))
	require.NotEqual(t, one, two)
	require.Equal(t, []string{"own"}, sent(withKey("own"), charge))
	require.Equal(t, []string{"new"}, sent(grpcidempotency.WithKey(withKey("own"), "new"), charge))
	require.Equal(t, []string{`"a\"b"`}, sent(grpcidempotency.WithKey(t.Context(), `a"b`), charge))
	require.Empty(t, sent(t.Context(), refund))
	require.Equal(t, []string{"own"}, sent(withKey("own"), refund))
}

// All attempts that a retry policy makes for a call have the same key.
func TestRetryPolicyKeepsTheKey(t *testing.T) {
	t.Parallel()
	keys := make(chan []string, 100)
	var s *service
	s = startService(t, setup{
		serviceConfig: retryPolicy, dialOptions: dialWithKeys(grpcidempotency.ClientOptions{}),
		outerInterceptors: []grpc.UnaryServerInterceptor{observeKeys(keys)},
		method: func(context.Context, int64) (any, error) {
			if s.runs.Load() < 3 {
				return nil, status.Error(codes.Unavailable, "not now")
			}
			return &receipt{Value: "charged"}, nil
		},
	})
	require.Equal(t, codes.OK, s.call(t.Context(), 1).Code)
	first := awaitValue(t, keys)
	require.Len(t, first, 1)
	require.Equal(t, first, awaitValue(t, keys))
	require.Equal(t, first, awaitValue(t, keys))
	require.Empty(t, keys)
}

// A retry policy repeats the call while another attempt is in progress, and then gets the answer of that attempt.
func TestRetryPolicyWaits(t *testing.T) {
	t.Parallel()
	h, calls := newPausedHandler(t), make(chan context.Context, 100)
	s := startService(t, setup{
		method: h.run, serviceConfig: retryPolicy, outerInterceptors: []grpc.UnaryServerInterceptor{observeContexts(calls)},
	})
	answers := make(chan answer, 2)
	for range 2 {
		go func() { answers <- s.call(withKey("1"), 1) }()
	}
	for range 3 { // two calls, and one repetition
		awaitValue(t, calls)
	}
	close(h.finish)
	one, two := awaitValue(t, answers), awaitValue(t, answers)
	require.Equal(t, one.withoutMarker(), two.withoutMarker())
	require.True(t, one.Replayed != two.Replayed)
	require.Equal(t, int64(1), s.runs.Load())
}

// A retry policy stops at a replay, even if the policy lists the code of the replayed failure.
func TestRetryPolicyAndReplays(t *testing.T) {
	t.Parallel()
	calls := make(chan context.Context, 100)
	s := startService(t, setup{
		method: failWith(codes.Aborted), serviceConfig: retryPolicy,
		outerInterceptors: []grpc.UnaryServerInterceptor{observeContexts(calls)},
		guardOptions:      grpcidempotency.Options{Storable: func(*status.Status) bool { return true }},
	})
	got := s.call(withKey("1"), 1)
	require.Equal(t, codes.Aborted, got.Code)
	require.True(t, got.Replayed)
	require.Len(t, calls, 2)
	require.Equal(t, int64(1), s.runs.Load())
}

// sendHeaderAndFail is a method that sends the header, and then fails with Unavailable.
func sendHeaderAndFail(ctx context.Context, _ int64) (any, error) {
	if err := grpc.SendHeader(ctx, nil); err != nil {
		return nil, err
	}
	return nil, status.Error(codes.Unavailable, "not now")
}

// A retry policy does not repeat a call whose handler has sent the header. The interceptor changes nothing about that.
func TestRetryPolicyAndSentHeaders(t *testing.T) {
	t.Parallel()
	for _, isUnguarded := range []bool{true, false} {
		s := startService(t, setup{isUnguarded: isUnguarded, serviceConfig: retryPolicy, method: sendHeaderAndFail})
		require.Equal(t, codes.Unavailable, s.call(withKey("1"), 1).Code)
		require.Equal(t, int64(1), s.runs.Load())
	}
}

// gRPC repeats a call by itself if the server refuses the stream before any processing. The repetition has the same key.
func TestTransparentRetryKeepsTheKey(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	keys := make(chan []string, 10)
	go refuseFirstStream(listener, keys)
	conn := dialServer(t, listener.Addr().String(), "", dialWithKeys(grpcidempotency.ClientOptions{})...)
	require.Equal(t, codes.NotFound, invokeMethod(t.Context(), conn, charge, 1).Code)
	first := awaitValue(t, keys)
	require.Len(t, first, 1)
	require.Equal(t, first, awaitValue(t, keys))
}

// refuseFirstStream serves one connection: the first call gets RST_STREAM with REFUSED_STREAM, the second an answer.
func refuseFirstStream(listener net.Listener, keys chan<- []string) {
	conn, err := listener.Accept()
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = io.CopyN(io.Discard, conn, int64(len(http2.ClientPreface)))
	framer := http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_ = framer.WriteSettings()
	for calls := 0; ; {
		frame, err := framer.ReadFrame()
		if err != nil {
			return
		}
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				_ = framer.WriteSettingsAck()
			}
		case *http2.MetaHeadersFrame:
			keys <- headerValues(f, "idempotency-key")
			if calls++; calls == 1 {
				_ = framer.WriteRSTStream(f.StreamID, http2.ErrCodeRefusedStream)
				continue
			}
			_ = framer.WriteHeaders(http2.HeadersFrameParam{
				StreamID: f.StreamID, BlockFragment: encodeNotFound(), EndStream: true, EndHeaders: true,
			})
		}
	}
}

// headerValues returns the values of the header fields with the given name.
func headerValues(f *http2.MetaHeadersFrame, name string) (values []string) {
	for _, field := range f.Fields {
		if field.Name == name {
			values = append(values, field.Value)
		}
	}
	return values
}

// encodeNotFound returns the header block of an answer with the status NOT_FOUND.
func encodeNotFound() []byte {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, field := range []hpack.HeaderField{
		{Name: ":status", Value: "200"}, {Name: "content-type", Value: "application/grpc"}, {Name: "grpc-status", Value: "5"},
	} {
		_ = encoder.WriteField(field)
	}
	return block.Bytes()
}

// registerLevels registers a service whose methods have all levels of idempotency.
var registerLevels = sync.OnceValue(func() error {
	var file descriptorpb.FileDescriptorProto
	err := prototext.Unmarshal([]byte(`name: "levels.proto" package: "levels" message_type { name: "M" } service { name: "S"
		method { name: "Make" input_type: ".levels.M" output_type: ".levels.M" }
		method { name: "Put" input_type: ".levels.M" output_type: ".levels.M" options { idempotency_level: IDEMPOTENT } }
		method { name: "Get" input_type: ".levels.M" output_type: ".levels.M" options { idempotency_level: NO_SIDE_EFFECTS } } }`), &file)
	if err != nil {
		return err
	}
	described, err := protodesc.NewFile(&file, nil)
	if err != nil {
		return err
	}
	return protoregistry.GlobalFiles.RegisterFile(described)
})

func TestNeedsKey(t *testing.T) {
	t.Parallel()
	require.NoError(t, registerLevels())
	for method, want := range map[string]bool{
		"/levels.S/Make": true, "/levels.S/Put": false, "/levels.S/Get": false, "/levels.S/Gone": true,
		"/grpc.health.v1.Health/Check": false, charge: true, "": true, "/": true, "levels.M": true,
	} {
		require.Equal(t, want, grpcidempotency.NeedsKey(method), method)
	}
}

// Methods without a guard accept every key and no key, and run each time.
func TestMethodsThatAreNotGuarded(t *testing.T) {
	t.Parallel()
	onlyCharge := func(method string) bool { return method == charge }
	s := startService(t, setup{guardOptions: grpcidempotency.Options{Required: true, Methods: onlyCharge}})
	for _, ctx := range []context.Context{t.Context(), withKey("1"), withKey("1"), withKey("not a key")} {
		got := invokeMethod(ctx, s.conn, refund, 1)
		require.Equal(t, codes.OK, got.Code)
		require.False(t, got.Replayed)
	}
	require.Equal(t, int64(4), s.runs.Load())
	require.Equal(t, codes.InvalidArgument, invokeMethod(t.Context(), s.conn, charge, 1).Code)
}

// The observer of the Runner receives an event for each call.
func TestObserver(t *testing.T) {
	t.Parallel()
	events := make(chan idempotency.Event, 100)
	s := startService(t, setup{
		runnerOptions: idempotency.RunnerOptions{Observer: func(_ context.Context, e idempotency.Event) { events <- e }},
		method: func(_ context.Context, cents int64) (any, error) {
			switch cents {
			case 0:
				return nil, status.Error(codes.Unavailable, "no")
			case -1:
				return nil, context.DeadlineExceeded
			default:
				return nil, status.Error(codes.NotFound, "no")
			}
		},
	})
	for _, tt := range []struct {
		cents       int64
		key         string
		wantOutcome idempotency.Outcome
		wantStatus  int
	}{
		{1, "1", idempotency.OutcomeExecuted, 404}, {1, "1", idempotency.OutcomeReplayed, 404},
		{2, "1", idempotency.OutcomeKeyReused, 0}, {0, "2", idempotency.OutcomeReleased, 503},
		{-1, "3", idempotency.OutcomeReleased, 504},
	} {
		s.call(withKey(tt.key), tt.cents)
		e := awaitValue(t, events)
		require.Equal(t, tt.wantOutcome, e.Outcome)
		require.Equal(t, tt.wantStatus, e.Status)
	}
}
