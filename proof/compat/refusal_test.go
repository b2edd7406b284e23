package compat_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/connect/refusal"
)

// refused is a way to get a call refused: a guarded procedure, and the calls before the refused call.
type refused struct {
	code   connect.Code
	reason string
	again  bool // the call is repeated after the time in the refusal
	opts   idempotency.Options
	store  error // the error of the store's Begin
	user   idempotency.UserFunc
	key    string // the key of all calls
	before func(*testing.T, func(cents int64) error)
	handle func(context.Context) error

	busy    bool          // a call with the key is running
	entered chan struct{} // receives a value when that call has begun
}

var refusals = map[string]refused{
	"in progress": {
		code: connect.CodeAborted, reason: "IN_PROGRESS", again: true, busy: true,
		opts: idempotency.Options{CancelWithClient: true},
	},
	"key reused": {
		code: connect.CodeFailedPrecondition, reason: "KEY_REUSED",
		before: func(t *testing.T, call func(int64) error) { require.NoError(t, call(2)) },
	},
	"key reused, 422": {
		code: connect.CodeFailedPrecondition, reason: "KEY_REUSED",
		opts:   idempotency.Options{ReuseStatus: http.StatusUnprocessableEntity},
		before: func(t *testing.T, call func(int64) error) { require.NoError(t, call(2)) },
	},
	"outcome unknown": {
		code: connect.CodeFailedPrecondition, reason: "OUTCOME_UNKNOWN",
		opts: idempotency.Options{Abandoned: idempotency.Refuse, Lease: 2 * time.Second},
		handle: func(ctx context.Context) error {
			idempotency.Decide(ctx, idempotency.Unknown)
			return nil
		},
		before: func(t *testing.T, call func(int64) error) {
			require.NoError(t, call(1))
			eventually(t, func() bool { return connect.CodeOf(call(1)) != connect.CodeAborted }, "the lease lapses")
		},
	},
	"not replayable": {
		code: connect.CodeFailedPrecondition, reason: "NOT_REPLAYABLE",
		handle: func(ctx context.Context) error {
			idempotency.Decide(ctx, idempotency.Tombstone)
			return nil
		},
		before: func(t *testing.T, call func(int64) error) { require.NoError(t, call(1)) },
	},
	"replay refused": {
		code: connect.CodePermissionDenied, reason: "REPLAY_REFUSED",
		opts: idempotency.Options{Replay: func(*http.Request, *idempotency.Response) error {
			return errors.New("no rights any more")
		}},
		before: func(t *testing.T, call func(int64) error) { require.NoError(t, call(1)) },
	},
	"store unavailable": {
		code: connect.CodeUnavailable, reason: "STORE_UNAVAILABLE", again: true, store: errors.New("down"),
	},
	"quota exceeded": {
		code: connect.CodeResourceExhausted, reason: "QUOTA_EXCEEDED", again: true, store: idempotency.ErrUserQuota,
	},
	"body too large": {
		code: connect.CodeResourceExhausted, reason: "BODY_TOO_LARGE", opts: idempotency.Options{MaxBody: 1},
	},
	"user unknown": {
		code: connect.CodeUnauthenticated, reason: "USER_UNKNOWN",
		user: func(*http.Request) (string, error) { return "", errors.New("no token") },
	},
	"key missing": {code: connect.CodeInvalidArgument, reason: "KEY_MISSING", key: "none"},
	"key invalid": {code: connect.CodeInvalidArgument, reason: "KEY_INVALID", key: "a,b"},
}

// Connect clients get a refusal as an error of their protocol.
func TestConnectRefusals(t *testing.T) {
	t.Parallel()
	for name, protocol := range map[string]struct {
		wire protocol
		opts []connect.ClientOption
	}{
		"Connect":         {wire: http1},
		"Connect, JSON":   {wire: http2, opts: []connect.ClientOption{connect.WithProtoJSON()}},
		"gRPC":            {wire: h2c, opts: []connect.ClientOption{connect.WithGRPC()}},
		"gRPC-Web":        {wire: http1, opts: []connect.ClientOption{connect.WithGRPCWeb()}},
		"gRPC-Web, HTTP2": {wire: http2, opts: []connect.ClientOption{connect.WithGRPCWeb()}},
	} {
		for what, r := range refusals {
			t.Run(name+"/"+what, func(t *testing.T) {
				t.Parallel()
				test := func(t *testing.T) { r.test(t, protocol.wire, protocol.opts) }
				if r.opts.Lease > 0 { // the lease lapses
					synctest.Test(t, test)
				} else {
					test(t)
				}
			})
		}
	}
}

func (r refused) test(t *testing.T, wire protocol, opts []connect.ClientOption) {
	r.entered = make(chan struct{}, 10)
	url, client := r.start(t, wire)
	unary := connect.NewClient[amount, charged](client, url+procedure, opts...)
	ctx, leave := context.WithCancel(t.Context())
	t.Cleanup(leave)
	call := func(cents int64) error {
		_, err := unary.CallUnary(ctx, connect.NewRequest(&amount{Value: cents}))
		return err
	}
	if r.busy {
		go func() { _ = call(1) }()
		receive(t, r.entered)
	}
	if r.before != nil {
		r.before(t, call)
	}
	r.require(t, call(1))

	if r.before != nil || r.busy {
		return // a stream is a different request
	}
	stream, err := connect.NewClient[amount, charged](client, url+procedure+"s", opts...).
		CallServerStream(ctx, connect.NewRequest(&amount{Value: 1}))
	require.NoError(t, err)
	require.False(t, stream.Receive())
	r.require(t, stream.Err())
	require.NoError(t, stream.Close())
}

// require checks how a client sees a refusal.
func (r refused) require(t *testing.T, err error) {
	t.Helper()
	failure, ok := errors.AsType[*connect.Error](err)
	require.True(t, ok, err)
	require.Equal(t, r.code, failure.Code(), failure.Message())
	require.NotContains(t, failure.Message(), "idempotency:", "what happened inside is not for clients")
	require.NotEmpty(t, failure.Message())
	var reason string
	var wait time.Duration
	for _, detail := range failure.Details() {
		value, err := detail.Value()
		require.NoError(t, err)
		switch value := value.(type) {
		case *errdetails.ErrorInfo:
			reason = value.GetReason()
		case *errdetails.RetryInfo:
			wait = value.GetRetryDelay().AsDuration()
		}
	}
	require.Equal(t, r.reason, reason)
	require.Equal(t, r.again, wait > 0)
	require.Equal(t, r.again, failure.Meta().Get("Retry-After") != "")
	require.Empty(t, failure.Meta().Get(marker))
}

// start starts a service with the procedure, and with a streaming procedure.
func (r refused) start(t *testing.T, wire protocol) (url string, client *http.Client) {
	t.Helper()
	handle := func(ctx context.Context) error {
		r.entered <- struct{}{}
		if r.busy {
			<-ctx.Done()
		}
		if r.handle != nil {
			return r.handle(ctx)
		}
		return nil
	}
	r.opts.Required, r.opts.ErrorHandler = true, refusal.Write
	user, store := r.user, newStore()
	if user == nil {
		user = idempotency.SingleUser
	}
	if r.store != nil {
		store = failingStore{r.store}
	}
	r.opts.Logger = slog.New(slog.DiscardHandler)
	idem, err := idempotency.New(store, user, r.opts)
	require.NoError(t, err)
	mux := http.NewServeMux()
	mux.Handle(procedure, idem.Handler(connect.NewUnaryHandler(procedure,
		func(ctx context.Context, _ *connect.Request[amount]) (*connect.Response[charged], error) {
			return connect.NewResponse(&charged{Value: receipt}), handle(ctx)
		})))
	mux.Handle(procedure+"s", idem.Handler(connect.NewServerStreamHandler(procedure+"s",
		func(ctx context.Context, _ *connect.Request[amount], _ *connect.ServerStream[charged]) error {
			return handle(ctx)
		})))
	server := wire.listen(t, mux)
	s := &service{client: server.Client()}
	switch r.key {
	case "none":
		return server.URL, s.keyed("", nil)
	case "":
		return server.URL, s.keyed("key", nil)
	default:
		return server.URL, s.keyed(r.key, nil)
	}
}

// failingStore fails every Begin.
type failingStore struct{ err error }

func (s failingStore) Begin(
	context.Context, idempotency.Key, idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	return idempotency.Record{}, nil, s.err
}
