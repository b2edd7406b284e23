package mcpidempotency_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/internal/adaptertest"
	"github.com/idempotency-go/idempotency/adapters/mcpidempotency"
)

func newToken(user string) *auth.TokenInfo { return &auth.TokenInfo{UserID: user} }

// waitForLease returns a short lease for a test whose second call gets code outcome-unknown after the lease, and else the
// default.
func waitForLease(code string) time.Duration {
	if code == "outcome-unknown" {
		return 200 * time.Millisecond
	}
	return 0
}

// callUntilEnded repeats a call until the earlier call is no longer in progress.
func (s *service) callUntilEnded(params *mcp.CallToolParams) (got answer) {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		got = s.call(params)
		return got.Code != "in-progress"
	}, waitLimit, 10*time.Millisecond)
	return got
}

// pausedTool is a tool that waits until finish is closed.
type pausedTool struct {
	started     chan context.Context // receives the context of each execution
	ended       chan error           // receives the error of each execution
	finish      chan struct{}
	testContext context.Context
}

func newPausedTool(t *testing.T) *pausedTool {
	return &pausedTool{make(chan context.Context, 100), make(chan error, 100), make(chan struct{}), t.Context()}
}

func (p *pausedTool) run(
	ctx context.Context, _ *mcp.CallToolRequest, _ payment,
) (result *mcp.CallToolResult, err error) {
	p.started <- ctx
	defer func() { p.ended <- err }()
	select {
	case <-p.finish:
		return newTextResult("charged"), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-p.testContext.Done(): // the test has failed
		return nil, p.testContext.Err()
	}
}

// The tool goes on after the client has canceled the call, and the repetition of the call gets the result. In a session,
// the client sends notifications/cancelled. Without sessions, the client closes the connection.
func TestCallIsCanceled(t *testing.T) {
	t.Parallel()
	for _, isStateless := range []bool{true, false} {
		t.Run(fmt.Sprintf("stateless=%t", isStateless), func(t *testing.T) {
			t.Parallel()
			p, calls := newPausedTool(t), make(chan context.Context, 100)
			s := startService(t, setup{charge: p.run, outer: []mcp.Middleware{observeCalls(calls)}, isStateless: isStateless})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			left := make(chan answer, 1)
			go func() { left <- callTool(ctx, s.session, withKey("1", 1)) }()
			inside := awaitValue(t, p.started)
			cancel()
			require.Error(t, awaitValue(t, left).err)
			awaitValue(t, awaitValue(t, calls).Done()) // the server has noticed the departure
			require.NoError(t, inside.Err())
			require.Equal(t, "in-progress", s.call(withKey("1", 1)).Code)
			close(p.finish)
			got := s.callUntilEnded(withKey("1", 1))
			require.Equal(t, "charged", got.Text)
			require.True(t, got.Replayed)
			require.Equal(t, int64(1), s.runs.Load())
		})
	}
}

// observeCalls returns middleware that sends the context of each call of a tool to calls.
func observeCalls(calls chan<- context.Context) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			if method == "tools/call" {
				calls <- ctx
			}
			return next(ctx, method, req)
		}
	}
}

// With CancelWithClient, the cancellation ends the tool, so the repetition executes the call again.
func TestCancelWithClient(t *testing.T) {
	t.Parallel()
	for _, isStateless := range []bool{true, false} {
		t.Run(fmt.Sprintf("stateless=%t", isStateless), func(t *testing.T) {
			t.Parallel()
			p := newPausedTool(t)
			s := startService(t, setup{
				charge: p.run, guardOptions: mcpidempotency.Options{CancelWithClient: true}, isStateless: isStateless,
			})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			left := make(chan answer, 1)
			go func() { left <- callTool(ctx, s.session, withKey("1", 1)) }()
			inside := awaitValue(t, p.started)
			cancel()
			awaitValue(t, inside.Done())
			awaitValue(t, left)
			require.ErrorIs(t, awaitValue(t, p.ended), context.Canceled)
			close(p.finish)
			require.Equal(t, "charged", s.callUntilEnded(withKey("1", 1)).Text)
			require.Equal(t, int64(2), s.runs.Load())
		})
	}
}

// If the client leaves before the tool begins, the tool does not run. The key is free, so a repetition is executed.
func TestClientHasLeft(t *testing.T) {
	t.Parallel()
	store := &adaptertest.FaultyStore{
		Store: idempotency.NewMemoryStore(idempotency.MemoryOptions{}), Released: make(chan time.Duration, 1),
	}
	s := startService(t, setup{
		store: store, runnerOptions: idempotency.RunnerOptions{Abandoned: idempotency.Refuse, Lease: time.Minute},
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	handler := s.guard(func(_ context.Context, method string, _ mcp.Request) (mcp.Result, error) {
		if method == "tools/call" {
			t.Error("has run")
		}
		return nil, errors.New("no list")
	})
	_, err := handler(ctx, "tools/call", &mcp.CallToolRequest{
		Params: &mcp.CallToolParamsRaw{Name: "charge", Arguments: []byte(`{"cents": 1}`), Meta: mcp.Meta{"idempotency-key": "1"}},
		Extra:  &mcp.RequestExtra{TokenInfo: newToken("alice")},
	})
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, awaitValue(t, store.Released), "the key is free")
	require.False(t, s.call(withKey("1", 1)).Replayed)
	require.Equal(t, int64(1), s.runs.Load())
}

func TestClaimLost(t *testing.T) {
	t.Parallel()
	p := newPausedTool(t)
	store := &adaptertest.FaultyStore{
		Store: idempotency.NewMemoryStore(idempotency.MemoryOptions{}), ExtendErr: idempotency.ErrClaimLost,
	}
	s := startService(t, setup{
		store: store, charge: p.run, runnerOptions: idempotency.RunnerOptions{Lease: 300 * time.Millisecond},
	})
	got := s.call(withKey("1", 1))
	require.Equal(t, "This call was too slow, so its result does not count. Another call with the same key may be running. "+
		"Call again in 1 second with the same key and the same arguments.", got.Text)
	requireRefused(t, got, "in-progress", "same-key", 1)
	require.ErrorIs(t, context.Cause(awaitValue(t, p.started)), idempotency.ErrClaimLost)
}

// duplicates is the number of concurrent calls with one key.
const duplicates = 20

func TestDuplicates(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		wait     time.Duration
		wantCode string
	}{
		"refused": {0, "in-progress"},
		"wait":    {waitLimit, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPausedTool(t)
			s := startService(t, setup{charge: p.run, runnerOptions: idempotency.RunnerOptions{Wait: tt.wait}})
			answers := make(chan answer, duplicates)
			for range duplicates {
				go func() { answers <- s.call(withKey("1", 1)) }()
			}
			awaitValue(t, p.started)
			if tt.wantCode != "" {
				for range duplicates - 1 {
					requireRefused(t, awaitValue(t, answers), tt.wantCode, "same-key", 1)
				}
				close(p.finish)
				require.Equal(t, "charged", awaitValue(t, answers).Text)
			} else {
				close(p.finish)
				replays := 0
				for range duplicates {
					got := awaitValue(t, answers)
					require.Equal(t, "charged", got.Text)
					if got.Replayed {
						replays++
					}
				}
				require.Equal(t, duplicates-1, replays)
			}
			require.Equal(t, int64(1), s.runs.Load())
		})
	}
}

// Progress notifications of a guarded tool reach the client.
func TestProgress(t *testing.T) {
	t.Parallel()
	progress := make(chan float64, 10)
	s := startService(t, setup{
		charge: func(ctx context.Context, r *mcp.CallToolRequest, _ payment) (*mcp.CallToolResult, error) {
			err := r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
				ProgressToken: r.Params.GetProgressToken(), Progress: 0.5,
			})
			return newTextResult("charged"), err
		},
		clientOptions: &mcp.ClientOptions{
			ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
				if r.Params.ProgressToken == "token" {
					progress <- r.Params.Progress
				}
			},
		},
	})
	params := withKey("1", 1)
	params.SetProgressToken("token")
	require.False(t, s.call(params).IsError)
	require.Equal(t, 0.5, awaitValue(t, progress))
	require.True(t, s.call(params).Replayed)
}

// losingTransport loses the answer to the first call of a tool after the server has sent the answer.
type losingTransport struct {
	http.RoundTripper
	loses atomic.Bool
}

func (l *losingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := l.RoundTripper.RoundTrip(r)
	if err == nil && r.Method == http.MethodPost && l.loses.CompareAndSwap(true, false) {
		_ = resp.Body.Close()
		return nil, errors.New("the answer is lost")
	}
	return resp, err
}

// A client that loses the answer calls again, and gets the result of the first call.
func TestLostAnswer(t *testing.T) {
	t.Parallel()
	p := newPausedTool(t)
	close(p.finish)
	s := startService(t, setup{charge: p.run})
	lossy := &losingTransport{RoundTripper: s.newTransport("alice")}
	session := s.connectVia(lossy, nil)
	lossy.loses.Store(true)
	require.Error(t, callTool(t.Context(), session, withKey("1", 1)).err)
	awaitValue(t, p.started)
	got := s.callUntilEnded(withKey("1", 1))
	require.Equal(t, "charged", got.Text)
	require.True(t, got.Replayed)
	require.Equal(t, int64(1), s.runs.Load())
}

// A server whose client has gone waits for its tools before it ends, so that their results are stored.
func TestServerWaitsForTools(t *testing.T) {
	t.Parallel()
	p, calls := newPausedTool(t), make(chan context.Context, 100)
	var hasFinished atomic.Bool
	s := startService(t, setup{
		charge: func(ctx context.Context, r *mcp.CallToolRequest, pay payment) (*mcp.CallToolResult, error) {
			defer hasFinished.Store(true)
			return p.run(ctx, r, pay)
		},
		identifyUser: mcpidempotency.SingleUser, outer: []mcp.Middleware{observeCalls(calls)},
	})
	serverReader, clientWriter := io.Pipe()
	clientReader, serverWriter := io.Pipe()
	waited := make(chan bool, 1)
	go func() {
		_ = s.server.Run(t.Context(), &mcp.IOTransport{Reader: serverReader, Writer: serverWriter})
		waited <- hasFinished.Load()
	}()
	clientSide := &mcp.IOTransport{Reader: clientReader, Writer: clientWriter}
	session, err := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil).Connect(t.Context(), clientSide, nil)
	require.NoError(t, err)
	left := make(chan answer, 1)
	go func() { left <- callTool(t.Context(), session, withKey("1", 1)) }()
	awaitValue(t, p.started)
	require.NoError(t, clientWriter.Close())
	require.NoError(t, clientReader.Close())
	awaitValue(t, awaitValue(t, calls).Done()) // the server has noticed that the client has gone
	close(p.finish)
	require.True(t, awaitValue(t, waited))
	require.Error(t, awaitValue(t, left).err)
	_ = session.Close() // the connection is broken
	require.True(t, s.call(withKey("1", 1)).Replayed)
}
