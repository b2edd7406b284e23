package grpcidempotency_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/grpcidempotency"
	"github.com/idempotency-go/idempotency/adapters/internal/adaptertest"
	"github.com/idempotency-go/idempotency/step"
)

// pausedHandler is a handler that waits until finish is closed.
type pausedHandler struct {
	started     chan context.Context // receives the context of each execution
	finish      chan struct{}
	testContext context.Context
}

func newPausedHandler(t *testing.T) *pausedHandler {
	return &pausedHandler{make(chan context.Context, 100), make(chan struct{}), t.Context()}
}

func (h *pausedHandler) run(ctx context.Context, _ int64) (any, error) {
	h.started <- ctx
	select {
	case <-h.finish:
		return &receipt{Value: "charged"}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-h.testContext.Done(): // the test has failed
		return nil, h.testContext.Err()
	}
}

// departures are the ways in which a client leaves: the resulting context is for the call.
var departures = map[string]func(context.Context) (context.Context, context.CancelFunc){
	"cancels": context.WithCancel,
	"deadline passes": func(ctx context.Context) (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, time.Second)
	},
}

// The handler goes on after the client has left, and the repetition of the call gets the answer.
func TestClientLeaves(t *testing.T) {
	t.Parallel()
	for name, leaving := range departures {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h, calls := newPausedHandler(t), make(chan context.Context, 100)
				s := startService(t, setup{method: h.run, outerInterceptors: []grpc.UnaryServerInterceptor{observeContexts(calls)}})
				ctx, cancel := leaving(withKey("1"))
				defer cancel()
				left := make(chan answer, 1)
				go func() { left <- s.call(ctx, 1) }()
				inside := awaitValue(t, h.started)
				if _, limited := ctx.Deadline(); !limited {
					cancel()
				}
				require.NotEqual(t, codes.OK, awaitValue(t, left).Code)
				awaitValue(t, awaitValue(t, calls).Done()) // the server has noticed the departure
				require.NoError(t, inside.Err())
				_, limited := inside.Deadline()
				require.False(t, limited)
				close(h.finish)
				var got answer
				require.Eventually(t, func() bool {
					got = s.call(withKey("1"), 1)
					return got.Code == codes.OK
				}, waitLimit, 10*time.Millisecond)
				require.True(t, got.Replayed)
				require.Equal(t, int64(1), s.runs.Load())
			})
		})
	}
}

// observeContexts returns an interceptor that sends the context of each call to calls.
func observeContexts(calls chan<- context.Context) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		calls <- ctx
		return handler(ctx, req)
	}
}

// With CancelWithClient, the departure of the client ends the handler, so the repetition executes the call again.
func TestCancelWithClient(t *testing.T) {
	t.Parallel()
	for name, leaving := range departures {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newPausedHandler(t)
				s := startService(t, setup{method: h.run, guardOptions: grpcidempotency.Options{CancelWithClient: true}})
				ctx, cancel := leaving(withKey("1"))
				defer cancel()
				left := make(chan answer, 1)
				go func() { left <- s.call(ctx, 1) }()
				inside := awaitValue(t, h.started)
				if _, limited := ctx.Deadline(); !limited {
					cancel()
				}
				awaitValue(t, inside.Done())
				awaitValue(t, left)
				close(h.finish)
				require.Eventually(t, func() bool { return s.call(withKey("1"), 1).Code == codes.OK }, waitLimit, 10*time.Millisecond)
				require.Equal(t, int64(2), s.runs.Load())
			})
		})
	}
}

// newReleaseObserver returns a memory store that sends the TTL of each release to Released.
func newReleaseObserver() *adaptertest.FaultyStore {
	return &adaptertest.FaultyStore{
		Store: idempotency.NewMemoryStore(idempotency.MemoryOptions{}), Released: make(chan time.Duration, 1),
	}
}

// If the client leaves before the handler begins, the handler does not run. The key is free, so a repetition is executed.
func TestClientHasLeft(t *testing.T) {
	t.Parallel()
	store := newReleaseObserver()
	s := startService(t, setup{
		store: store, runnerOptions: idempotency.RunnerOptions{Abandoned: idempotency.Refuse, Lease: time.Minute},
	})
	ctx, cancel := context.WithCancel(metadata.NewIncomingContext(t.Context(), metadata.Pairs("idempotency-key", "1")))
	cancel()
	info := &grpc.UnaryServerInfo{FullMethod: charge}
	_, err := s.guard.Unary(ctx, &amount{Value: 1}, info, func(context.Context, any) (any, error) {
		t.Error("has run")
		return nil, nil
	})
	require.Equal(t, codes.Canceled, status.Code(err))
	require.Zero(t, awaitValue(t, store.Released), "the key is free")
	require.False(t, s.call(withKey("1"), 1).Replayed)
	require.Equal(t, int64(1), s.runs.Load())
}

// Codes that say that the handler has turned the call away free the key at once, because the handler has done nothing.
func TestTurnedAway(t *testing.T) {
	t.Parallel()
	for code, wantTTL := range map[codes.Code]time.Duration{
		codes.ResourceExhausted: 0, codes.Unauthenticated: 0, codes.Unavailable: 24 * time.Hour,
	} {
		store := newReleaseObserver()
		s := startService(t, setup{store: store, method: failWith(code), runnerOptions: idempotency.RunnerOptions{Lease: time.Minute}})
		require.Equal(t, code, s.call(withKey("1"), 1).Code)
		require.Equal(t, wantTTL, awaitValue(t, store.Released))
	}
}

func TestClaimLost(t *testing.T) {
	t.Parallel()
	h := newPausedHandler(t)
	store := &adaptertest.FaultyStore{
		Store: idempotency.NewMemoryStore(idempotency.MemoryOptions{}), ExtendErr: idempotency.ErrClaimLost,
	}
	s := startService(t, setup{store: store, method: h.run, runnerOptions: idempotency.RunnerOptions{Lease: 300 * time.Millisecond}})
	got := s.call(withKey("1"), 1)
	requireRefused(t, got, codes.Aborted, "IN_PROGRESS", time.Second)
	require.ErrorIs(t, context.Cause(awaitValue(t, h.started)), idempotency.ErrClaimLost)
}

// duplicates is the number of concurrent calls with one key.
const duplicates = 20

func TestDuplicatesAreRefused(t *testing.T) {
	t.Parallel()
	h := newPausedHandler(t)
	s := startService(t, setup{method: h.run})
	answers := make(chan answer, duplicates)
	for range duplicates {
		go func() { answers <- s.call(withKey("1"), 1) }()
	}
	awaitValue(t, h.started)
	for range duplicates - 1 {
		requireRefused(t, awaitValue(t, answers), codes.Aborted, "IN_PROGRESS", time.Second)
	}
	close(h.finish)
	require.Equal(t, codes.OK, awaitValue(t, answers).Code)
	require.Equal(t, int64(1), s.runs.Load())
}

func TestDuplicatesWait(t *testing.T) {
	t.Parallel()
	h, calls := newPausedHandler(t), make(chan context.Context, 100)
	s := startService(t, setup{
		method: withMetadata(h.run), runnerOptions: idempotency.RunnerOptions{Wait: waitLimit},
		outerInterceptors: []grpc.UnaryServerInterceptor{observeContexts(calls)},
	})
	answers := make(chan answer, duplicates)
	for range duplicates {
		go func() { answers <- s.call(withKey("1"), 1) }()
	}
	for range duplicates {
		awaitValue(t, calls)
	}
	close(h.finish)
	replayed := 0
	first := awaitValue(t, answers)
	for range duplicates - 1 {
		got := awaitValue(t, answers)
		require.Equal(t, first.withoutMarker(), got.withoutMarker())
		if got.Replayed {
			replayed++
		}
	}
	if first.Replayed {
		replayed++
	}
	require.Equal(t, duplicates-1, replayed)
	require.Equal(t, int64(1), s.runs.Load())
}

// The wait for another attempt ends when the waiting client leaves.
func TestWaitingClientLeaves(t *testing.T) {
	t.Parallel()
	h, calls, outcomes := newPausedHandler(t), make(chan context.Context, 100), make(chan idempotency.Outcome, 100)
	s := startService(t, setup{
		method: h.run, outerInterceptors: []grpc.UnaryServerInterceptor{observeContexts(calls)},
		runnerOptions: idempotency.RunnerOptions{
			Wait: time.Hour, Observer: func(_ context.Context, e idempotency.Event) { outcomes <- e.Outcome },
		},
	})
	first := make(chan answer, 1)
	go func() { first <- s.call(withKey("1"), 1) }()
	awaitValue(t, h.started)
	awaitValue(t, calls)
	ctx, cancel := context.WithCancel(withKey("1"))
	second := make(chan answer, 1)
	go func() { second <- s.call(ctx, 1) }()
	awaitValue(t, calls)
	cancel()
	require.Equal(t, codes.Canceled, awaitValue(t, second).Code)
	require.Equal(t, idempotency.OutcomeClientLeft, awaitValue(t, outcomes))
	close(h.finish)
	require.Equal(t, codes.OK, awaitValue(t, first).Code)
}

// A handler with two guards, or with one guard twice, runs once.
func TestMountedTwice(t *testing.T) {
	t.Parallel()
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	user := func(context.Context) (string, error) { return strings.Repeat("alice", 100), nil } // is shortened in a Key
	outer := startService(t, setup{store: store, identifyUser: user})
	s := startService(t, setup{
		store: store, identifyUser: user, outerInterceptors: []grpc.UnaryServerInterceptor{outer.guard.Unary, outer.guard.Unary},
	})
	require.Equal(t, codes.OK, s.call(withKey("1"), 1).Code)
	require.True(t, s.call(withKey("1"), 1).Replayed)
	require.Equal(t, int64(1), s.runs.Load())
}

// A panic reaches the recovering interceptor outside the guard, and the call stays executable because nothing is stored.
func TestPanic(t *testing.T) {
	t.Parallel()
	recovering := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (_ any, err error) {
		defer func() {
			if p := recover(); p != nil {
				err = status.Errorf(codes.Internal, "recovered from %v", p)
			}
		}()
		return handler(ctx, req)
	}
	var s *service
	panicOnce := func(context.Context, int64) (any, error) {
		if s.runs.Load() == 1 {
			panic("a fault")
		}
		return &receipt{}, nil
	}
	s = startService(t, setup{outerInterceptors: []grpc.UnaryServerInterceptor{recovering}, method: panicOnce})
	require.Equal(t, "recovered from a fault", s.call(withKey("1"), 1).Message)
	require.Equal(t, codes.OK, s.call(withKey("1"), 1).Code)
}

// The handler finds its operation in the context. Metadata that the handler sets after its return is an error.
func TestOperation(t *testing.T) {
	t.Parallel()
	contexts := make(chan context.Context, 1)
	s := startService(t, setup{method: func(ctx context.Context, _ int64) (any, error) {
		op, ok := idempotency.FromContext(ctx)
		name, _ := grpc.Method(ctx)
		contexts <- ctx
		return &receipt{Value: fmt.Sprintln(ok, op.Key.User, op.Key.Endpoint, op.Key.ID, op.Attempt, name)}, nil
	}})
	require.Equal(t, fmt.Sprintf("value:%q", "true alice "+charge+" 1 1 "+charge+"\n"), s.call(withKey("1"), 1).Reply)
	late := awaitValue(t, contexts)
	require.Error(t, grpc.SetHeader(late, metadata.Pairs("late", "1")))
	require.Error(t, grpc.SetTrailer(late, metadata.Pairs("late", "1")))
	require.Error(t, late.Err())
}

// A stopping server waits for handlers whose clients have left, and the answers of these handlers are stored.
func TestGracefulStop(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(*grpc.Server){"GracefulStop": (*grpc.Server).GracefulStop, "Stop": (*grpc.Server).Stop} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newPausedHandler(t)
			store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
			s := startService(t, setup{method: h.run, store: store})
			ctx, cancel := context.WithCancel(withKey("1"))
			left := make(chan answer, 1)
			go func() { left <- s.call(ctx, 1) }()
			awaitValue(t, h.started)
			cancel()
			awaitValue(t, left)
			require.NoError(t, s.conn.Close())
			var stopped sync.WaitGroup
			stopped.Go(func() { stop(s.server) })
			close(h.finish)
			stopped.Wait()
			require.NoError(t, s.runner.Shutdown(t.Context()))
			require.True(t, startService(t, setup{store: store}).call(withKey("1"), 1).Replayed)
		})
	}
}

// A call fails after a step, and the client repeats the call. The step runs once.
func TestStep(t *testing.T) {
	t.Parallel()
	charges, attempts := 0, 0
	s := startService(t, setup{method: func(ctx context.Context, cents int64) (any, error) {
		attempts++
		charge, err := step.Do(ctx, "charge", func(context.Context) (string, error) {
			charges++
			return fmt.Sprint("charge ", charges, " of ", cents), nil
		})
		if err != nil || attempts == 1 {
			return nil, status.Error(codes.Unavailable, "the warehouse is down")
		}
		return &receipt{Value: charge}, nil
	}})
	require.Equal(t, codes.Unavailable, s.call(withKey("1"), 4200).Code)
	for range 2 {
		require.Contains(t, s.call(withKey("1"), 4200).Reply, "charge 1 of 4200")
	}
	require.Equal(t, []int{1, 2}, []int{charges, attempts})
}
