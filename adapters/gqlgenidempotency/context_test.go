package gqlgenidempotency_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/99designs/gqlgen/graphql"
	"github.com/99designs/gqlgen/graphql/handler"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/gqlgenidempotency/testdata/shop"
	"github.com/idempotency-go/idempotency/adapters/internal/adaptertest"
)

const payOnce = `mutation { pay(input: {cents: 1}) @idempotent(key: "1") { id } }`

// held is a resolver that tells of its context, and goes on when it may.
type held struct {
	begun chan context.Context
	end   chan struct{}
	test  context.Context
}

func newHeld(t *testing.T) *held {
	return &held{make(chan context.Context, 100), make(chan struct{}), t.Context()}
}

func (h *held) pay(ctx context.Context, _ int) (*shop.Order, error) {
	h.begun <- ctx
	select {
	case <-h.end:
		return &shop.Order{ID: "7"}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-h.test.Done(): // it has failed
		return nil, h.test.Err()
	}
}

// A client that leaves decides nothing: its retry gets the answer.
func TestClientLeaves(t *testing.T) {
	t.Parallel()
	h := newHeld(t)
	s := serve(t, setup{resolvers: resolvers{pay: h.pay}})
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := s.send(ctx, request{query: payOnce})
		left <- err
	}()
	inside := await(t, h.begun)
	cancel()
	require.ErrorIs(t, await(t, left), context.Canceled)
	requireRefused(t, s.run(payOnce), "IN_PROGRESS", "same-key")
	require.NoError(t, inside.Err())
	close(h.end)
	require.Eventually(t, func() bool { return len(s.run(payOnce).replayed()) == 1 }, patience, 10*time.Millisecond)
	require.Equal(t, int64(1), s.runs.Load())
}

// A field whose turn comes after the client has left is not executed. Its retry is.
func TestClientHasLeft(t *testing.T) {
	t.Parallel()
	h, operations := newHeld(t), make(chan context.Context, 100)
	s := serve(t, setup{resolvers: resolvers{pay: h.pay}, adjust: func(graph *handler.Server) {
		graph.AroundOperations(func(ctx context.Context, next graphql.OperationHandler) graphql.ResponseHandler {
			operations <- ctx
			return next(ctx)
		})
	}})
	const query = `mutation { pay(input: {cents: 1}) @idempotent(key: "1") { id } refund(order: 1) @idempotent(key: "1") { id } }`
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := s.send(ctx, request{query: query})
		left <- err
	}()
	await(t, h.begun)
	cancel()
	require.ErrorIs(t, await(t, left), context.Canceled)
	await(t, await(t, operations).Done()) // the server knows
	close(h.end)
	require.Eventually(t, func() bool { return len(s.run(payOnce).replayed()) == 1 }, patience, 10*time.Millisecond)
	got := s.run(query)
	require.Empty(t, got.Errors)
	require.Equal(t, []string{"pay"}, got.replayed())
	require.Equal(t, int64(2), s.runs.Load())
}

func TestDuplicates(t *testing.T) {
	t.Parallel()
	const duplicates = 20
	for name, wait := range map[string]time.Duration{"refused": 0, "wait": patience} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHeld(t)
			s := serve(t, setup{resolvers: resolvers{pay: h.pay}, runner: idempotency.RunnerOptions{Wait: wait}})
			answers := make(chan answer, duplicates)
			for range duplicates {
				go func() {
					got, err := s.send(t.Context(), request{query: payOnce})
					if err != nil {
						t.Error(err)
					}
					answers <- got
				}()
			}
			await(t, h.begun)
			if wait == 0 {
				for range duplicates - 1 {
					requireRefused(t, await(t, answers), "IN_PROGRESS", "same-key")
				}
				close(h.end)
				require.Empty(t, await(t, answers).Errors)
				return
			}
			close(h.end)
			replayed := 0
			for range duplicates {
				got := await(t, answers)
				require.JSONEq(t, `{"pay": {"id": "7"}}`, string(got.Data))
				replayed += len(got.replayed())
			}
			require.Equal(t, duplicates-1, replayed)
			require.Equal(t, int64(1), s.runs.Load())
		})
	}
}

// A resolver that gives up because its claim is lost does not answer: another attempt may.
func TestClaimLost(t *testing.T) {
	t.Parallel()
	h := newHeld(t)
	store := &adaptertest.FaultyStore{Store: idempotency.NewMemoryStore(idempotency.MemoryOptions{}), ExtendErr: idempotency.ErrClaimLost}
	s := serve(t, setup{store: store, resolvers: resolvers{pay: h.pay}, runner: idempotency.RunnerOptions{Lease: 300 * time.Millisecond}})
	got := s.run(payOnce)
	last := got.Errors[len(got.Errors)-1]["extensions"].(map[string]any)
	require.Equal(t, map[string]any{"code": "IN_PROGRESS", "retry": "same-key", "retryAfter": 1.0}, last)
	require.ErrorIs(t, context.Cause(await(t, h.begun)), idempotency.ErrClaimLost)
}

// What becomes of an operation whose resolver has failed.
func TestDecide(t *testing.T) {
	t.Parallel()
	failure := errors.New("failed")
	order := &shop.Order{ID: "7"}
	panics := resolvers{pay: func(context.Context, int) (*shop.Order, error) { panic("oops") }}
	for name, tt := range map[string]struct {
		resolvers resolvers
		policy    idempotency.Abandoned
		again     any // the code of the refusal
		runs      int64
	}{
		"error":                 {payment(nil, failure), idempotency.Refuse, nil, 2},
		"keep an error":         {payment(nil, failure, idempotency.Keep), 0, nil, 1},
		"keep nothing of it":    {payment(order, nil, idempotency.Tombstone), 0, "NOT_REPLAYABLE", 1},
		"keep not the error":    {payment(nil, failure, idempotency.Tombstone), 0, "NOT_REPLAYABLE", 1},
		"release an answer":     {payment(order, nil, idempotency.Free), 0, nil, 2},
		"unknown, executed":     {payment(order, nil, idempotency.Unknown), 0, nil, 2},
		"unknown, refused":      {payment(order, nil, idempotency.Unknown), idempotency.Refuse, "OUTCOME_UNKNOWN", 1},
		"panic, executed":       {panics, 0, nil, 2},
		"panic, then refused":   {panics, idempotency.Refuse, "OUTCOME_UNKNOWN", 1},
		"error, then a keeper":  {payment(nil, failure, idempotency.Free, idempotency.Keep), 0, nil, 1},
		"error that is unknown": {payment(nil, failure, idempotency.Unknown), idempotency.Refuse, "OUTCOME_UNKNOWN", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, setup{resolvers: tt.resolvers, runner: idempotency.RunnerOptions{Abandoned: tt.policy, Lease: time.Second}})
			s.run(payOnce)
			if tt.again == nil {
				s.run(payOnce)
			} else {
				require.Eventually(t, func() bool { return s.run(payOnce).code() == tt.again }, patience, 50*time.Millisecond)
			}
			require.Equal(t, tt.runs, s.runs.Load())
		})
	}
}

// If the resolver has not begun, the key is freed.
func TestNotBegun(t *testing.T) {
	t.Parallel()
	store := &adaptertest.FaultyStore{Store: idempotency.NewMemoryStore(idempotency.MemoryOptions{}), Released: make(chan time.Duration, 1)}
	s := serve(t, setup{store: store, runner: idempotency.RunnerOptions{Lease: time.Minute}})
	require.NotEmpty(t, s.run(`mutation { attach(order: 1, file: "text") @idempotent(key: "1") }`).Errors)
	require.Zero(t, await(t, store.Released))
}

// The observer of the Runner is told of each field.
func TestObserver(t *testing.T) {
	t.Parallel()
	events := make(chan idempotency.Event, 100)
	s := serve(t, setup{
		runner: idempotency.RunnerOptions{Observer: func(_ context.Context, e idempotency.Event) { events <- e }},
		resolvers: resolvers{pay: func(_ context.Context, cents int) (*shop.Order, error) {
			if cents == 1 {
				return &shop.Order{ID: "7"}, nil
			}
			return nil, errors.New("failed")
		}},
	})
	for _, tt := range []struct {
		query   string
		outcome idempotency.Outcome
		status  int
	}{
		{payOnce, idempotency.OutcomeExecuted, 200},
		{payOnce, idempotency.OutcomeReplayed, 200},
		{`mutation { pay(input: {cents: 2}) @idempotent(key: "2") { id } }`, idempotency.OutcomeReleased, 422},
	} {
		s.run(tt.query)
		e := await(t, events)
		require.Equal(t, tt.outcome, e.Outcome)
		require.Equal(t, tt.status, e.Status)
		require.Equal(t, "graphql Mutation.pay", e.Key.Endpoint)
	}
}
