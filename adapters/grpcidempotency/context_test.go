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

// held is a handler that tells of its context, and goes on when it may.
type held struct {
	begun chan context.Context
	end   chan struct{}
	test  context.Context
}

func newHeld(t *testing.T) *held {
	return &held{make(chan context.Context, 100), make(chan struct{}), t.Context()}
}

func (h *held) method(ctx context.Context, _ int64) (any, error) {
	h.begun <- ctx
	select {
	case <-h.end:
		return &receipt{Value: "charged"}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-h.test.Done(): // it has failed
		return nil, h.test.Err()
	}
}

// departures are the ways in which a client leaves.
var departures = map[string]func(context.Context) (context.Context, context.CancelFunc){
	"cancels": context.WithCancel,
	"deadline passes": func(ctx context.Context) (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, time.Second)
	},
}

// A client that leaves decides nothing: its repetition gets the answer.
func TestClientLeaves(t *testing.T) {
	t.Parallel()
	for name, leaving := range departures {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h, calls := newHeld(t), make(chan context.Context, 100)
				s := serve(t, setup{method: h.method, outer: []grpc.UnaryServerInterceptor{observe(calls)}})
				ctx, cancel := leaving(withKey("1"))
				defer cancel()
				left := make(chan answer, 1)
				go func() { left <- s.call(ctx, 1) }()
				inside := await(t, h.begun)
				if _, limited := ctx.Deadline(); !limited {
					cancel()
				}
				require.NotEqual(t, codes.OK, await(t, left).Code)
				await(t, await(t, calls).Done()) // the server knows
				require.NoError(t, inside.Err())
				_, limited := inside.Deadline()
				require.False(t, limited)
				close(h.end)
				var got answer
				require.Eventually(t, func() bool {
					got = s.call(withKey("1"), 1)
					return got.Code == codes.OK
				}, patience, 10*time.Millisecond)
				require.True(t, got.Replayed)
				require.Equal(t, int64(1), s.runs.Load())
			})
		})
	}
}

// observe tells of the context of each call.
func observe(calls chan<- context.Context) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		calls <- ctx
		return handler(ctx, req)
	}
}

func TestCancelWithClient(t *testing.T) {
	t.Parallel()
	for name, leaving := range departures {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newHeld(t)
				s := serve(t, setup{method: h.method, options: grpcidempotency.Options{CancelWithClient: true}})
				ctx, cancel := leaving(withKey("1"))
				defer cancel()
				left := make(chan answer, 1)
				go func() { left <- s.call(ctx, 1) }()
				inside := await(t, h.begun)
				if _, limited := ctx.Deadline(); !limited {
					cancel()
				}
				await(t, inside.Done())
				await(t, left)
				close(h.end)
				require.Eventually(t, func() bool { return s.call(withKey("1"), 1).Code == codes.OK }, patience, 10*time.Millisecond)
				require.Equal(t, int64(2), s.runs.Load())
			})
		})
	}
}

// A call whose client has left before the handler begins is not executed. Its repetition is executed.
func TestClientHasLeft(t *testing.T) {
	t.Parallel()
	store := &adaptertest.FaultyStore{Store: idempotency.NewMemoryStore(idempotency.MemoryOptions{}), Released: make(chan time.Duration, 1)}
	s := serve(t, setup{store: store, runner: idempotency.RunnerOptions{Abandoned: idempotency.Refuse, Lease: time.Minute}})
	ctx, cancel := context.WithCancel(metadata.NewIncomingContext(t.Context(), metadata.Pairs("idempotency-key", "1")))
	cancel()
	_, err := s.guard.Unary(ctx, &amount{Value: 1}, &grpc.UnaryServerInfo{FullMethod: charge}, func(context.Context, any) (any, error) {
		t.Error("has run")
		return nil, nil
	})
	require.Equal(t, codes.Canceled, status.Code(err))
	require.Zero(t, await(t, store.Released), "the key is free")
	require.False(t, s.call(withKey("1"), 1).Replayed)
	require.Equal(t, int64(1), s.runs.Load())
}

// A handler that turns a call away has done nothing: the key is freed.
func TestTurnedAway(t *testing.T) {
	t.Parallel()
	for code, kept := range map[codes.Code]time.Duration{
		codes.ResourceExhausted: 0, codes.Unauthenticated: 0, codes.Unavailable: 24 * time.Hour,
	} {
		store := &adaptertest.FaultyStore{Store: idempotency.NewMemoryStore(idempotency.MemoryOptions{}), Released: make(chan time.Duration, 1)}
		s := serve(t, setup{store: store, method: failWith(code), runner: idempotency.RunnerOptions{Lease: time.Minute}})
		require.Equal(t, code, s.call(withKey("1"), 1).Code)
		require.Equal(t, kept, await(t, store.Released))
	}
}

func TestClaimLost(t *testing.T) {
	t.Parallel()
	h := newHeld(t)
	store := &adaptertest.FaultyStore{Store: idempotency.NewMemoryStore(idempotency.MemoryOptions{}), ExtendErr: idempotency.ErrClaimLost}
	s := serve(t, setup{store: store, method: h.method, runner: idempotency.RunnerOptions{Lease: 300 * time.Millisecond}})
	got := s.call(withKey("1"), 1)
	requireRefused(t, got, codes.Aborted, "IN_PROGRESS", time.Second)
	require.ErrorIs(t, context.Cause(await(t, h.begun)), idempotency.ErrClaimLost)
}

const duplicates = 20

func TestDuplicatesAreRefused(t *testing.T) {
	t.Parallel()
	h := newHeld(t)
	s := serve(t, setup{method: h.method})
	answers := make(chan answer, duplicates)
	for range duplicates {
		go func() { answers <- s.call(withKey("1"), 1) }()
	}
	await(t, h.begun)
	for range duplicates - 1 {
		requireRefused(t, await(t, answers), codes.Aborted, "IN_PROGRESS", time.Second)
	}
	close(h.end)
	require.Equal(t, codes.OK, await(t, answers).Code)
	require.Equal(t, int64(1), s.runs.Load())
}

func TestDuplicatesWait(t *testing.T) {
	t.Parallel()
	h, calls := newHeld(t), make(chan context.Context, 100)
	s := serve(t, setup{
		method: withMetadata(h.method), runner: idempotency.RunnerOptions{Wait: patience},
		outer: []grpc.UnaryServerInterceptor{observe(calls)},
	})
	answers := make(chan answer, duplicates)
	for range duplicates {
		go func() { answers <- s.call(withKey("1"), 1) }()
	}
	for range duplicates {
		await(t, calls)
	}
	close(h.end)
	replayed := 0
	first := await(t, answers)
	for range duplicates - 1 {
		got := await(t, answers)
		require.Equal(t, first.same(), got.same())
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

// A client that leaves while it waits for another attempt ends the wait.
func TestWaitingClientLeaves(t *testing.T) {
	t.Parallel()
	h, calls, outcomes := newHeld(t), make(chan context.Context, 100), make(chan idempotency.Outcome, 100)
	s := serve(t, setup{
		method: h.method, outer: []grpc.UnaryServerInterceptor{observe(calls)},
		runner: idempotency.RunnerOptions{
			Wait: time.Hour, Observer: func(_ context.Context, e idempotency.Event) { outcomes <- e.Outcome },
		},
	})
	first := make(chan answer, 1)
	go func() { first <- s.call(withKey("1"), 1) }()
	await(t, h.begun)
	await(t, calls)
	ctx, cancel := context.WithCancel(withKey("1"))
	second := make(chan answer, 1)
	go func() { second <- s.call(ctx, 1) }()
	await(t, calls)
	cancel()
	require.Equal(t, codes.Canceled, await(t, second).Code)
	require.Equal(t, idempotency.OutcomeClientLeft, await(t, outcomes))
	close(h.end)
	require.Equal(t, codes.OK, await(t, first).Code)
}

// A handler that is guarded twice runs once, whatever runs it.
func TestMountedTwice(t *testing.T) {
	t.Parallel()
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	user := func(context.Context) (string, error) { return strings.Repeat("alice", 100), nil } // is shortened in a Key
	outer := serve(t, setup{store: store, user: user})
	s := serve(t, setup{store: store, user: user, outer: []grpc.UnaryServerInterceptor{outer.guard.Unary, outer.guard.Unary}})
	require.Equal(t, codes.OK, s.call(withKey("1"), 1).Code)
	require.True(t, s.call(withKey("1"), 1).Replayed)
	require.Equal(t, int64(1), s.runs.Load())
}

// A panic goes on to an interceptor that recovers from it, and nothing is stored.
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
	s = serve(t, setup{outer: []grpc.UnaryServerInterceptor{recovering}, method: func(context.Context, int64) (any, error) {
		if s.runs.Load() == 1 {
			panic("a fault")
		}
		return &receipt{}, nil
	}})
	require.Equal(t, "recovered from a fault", s.call(withKey("1"), 1).Message)
	require.Equal(t, codes.OK, s.call(withKey("1"), 1).Code)
}

// The handler knows its operation, and has nothing of what it sets after it has returned.
func TestOperation(t *testing.T) {
	t.Parallel()
	contexts := make(chan context.Context, 1)
	s := serve(t, setup{method: func(ctx context.Context, _ int64) (any, error) {
		op, ok := idempotency.FromContext(ctx)
		name, _ := grpc.Method(ctx)
		contexts <- ctx
		return &receipt{Value: fmt.Sprintln(ok, op.Key.User, op.Key.Endpoint, op.Key.ID, op.Attempt, name)}, nil
	}})
	require.Equal(t, fmt.Sprintf("value:%q", "true alice "+charge+" 1 1 "+charge+"\n"), s.call(withKey("1"), 1).Reply)
	late := await(t, contexts)
	require.Error(t, grpc.SetHeader(late, metadata.Pairs("late", "1")))
	require.Error(t, grpc.SetTrailer(late, metadata.Pairs("late", "1")))
	require.Error(t, late.Err())
}

// A server that stops waits for the handlers of clients that have left, and their answers are stored.
func TestGracefulStop(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(*grpc.Server){"GracefulStop": (*grpc.Server).GracefulStop, "Stop": (*grpc.Server).Stop} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHeld(t)
			store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
			s := serve(t, setup{method: h.method, store: store})
			ctx, cancel := context.WithCancel(withKey("1"))
			left := make(chan answer, 1)
			go func() { left <- s.call(ctx, 1) }()
			await(t, h.begun)
			cancel()
			await(t, left)
			require.NoError(t, s.conn.Close())
			var stopped sync.WaitGroup
			stopped.Go(func() { stop(s.server) })
			close(h.end)
			stopped.Wait()
			require.NoError(t, s.runner.Shutdown(t.Context()))
			require.True(t, serve(t, setup{store: store}).call(withKey("1"), 1).Replayed)
		})
	}
}

// A call that fails after a step is tried again by its client. The step does not run twice.
func TestStep(t *testing.T) {
	t.Parallel()
	charges, attempts := 0, 0
	s := serve(t, setup{method: func(ctx context.Context, cents int64) (any, error) {
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
