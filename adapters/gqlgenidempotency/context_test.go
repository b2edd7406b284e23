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

// pausedResolver is a resolver that waits until finish is closed.
type pausedResolver struct {
	started     chan context.Context // receives the context of each execution
	finish      chan struct{}
	testContext context.Context
}

func newPausedResolver(t *testing.T) *pausedResolver {
	return &pausedResolver{make(chan context.Context, 100), make(chan struct{}), t.Context()}
}

func (h *pausedResolver) payOrder(ctx context.Context, _ int) (*shop.Order, error) {
	h.started <- ctx
	select {
	case <-h.finish:
		return &shop.Order{ID: "7"}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-h.testContext.Done(): // the test has failed
		return nil, h.testContext.Err()
	}
}

// The resolver goes on after the client has left, and the retry gets the answer.
func TestClientLeaves(t *testing.T) {
	t.Parallel()
	h := newPausedResolver(t)
	s := startService(t, setup{resolvers: resolvers{payOrder: h.payOrder}})
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := s.send(ctx, request{document: payOnce})
		left <- err
	}()
	inside := awaitValue(t, h.started)
	cancel()
	require.ErrorIs(t, awaitValue(t, left), context.Canceled)
	requireRefused(t, s.execute(payOnce), "IN_PROGRESS", "same-key")
	require.NoError(t, inside.Err())
	close(h.finish)
	require.Eventually(t, func() bool { return len(s.execute(payOnce).replayedFields()) == 1 }, waitLimit, 10*time.Millisecond)
	require.Equal(t, int64(1), s.runs.Load())
}

// If the client leaves before the turn of a field, the field is not executed. The retry executes the field.
func TestClientHasLeft(t *testing.T) {
	t.Parallel()
	h, operations := newPausedResolver(t), make(chan context.Context, 100)
	s := startService(t, setup{resolvers: resolvers{payOrder: h.payOrder}, adjustServer: func(graph *handler.Server) {
		graph.AroundOperations(func(ctx context.Context, next graphql.OperationHandler) graphql.ResponseHandler {
			operations <- ctx
			return next(ctx)
		})
	}})
	const payAndRefund = `mutation { pay(input: {cents: 1}) @idempotent(key: "1") { id } ` +
		`refund(order: 1) @idempotent(key: "1") { id } }`
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := s.send(ctx, request{document: payAndRefund})
		left <- err
	}()
	awaitValue(t, h.started)
	cancel()
	require.ErrorIs(t, awaitValue(t, left), context.Canceled)
	awaitValue(t, awaitValue(t, operations).Done()) // the server has noticed the departure
	close(h.finish)
	require.Eventually(t, func() bool { return len(s.execute(payOnce).replayedFields()) == 1 }, waitLimit, 10*time.Millisecond)
	got := s.execute(payAndRefund)
	require.Empty(t, got.Errors)
	require.Equal(t, []string{"pay"}, got.replayedFields())
	require.Equal(t, int64(2), s.runs.Load())
}

func TestDuplicates(t *testing.T) {
	t.Parallel()
	const duplicates = 20
	for name, wait := range map[string]time.Duration{"refused": 0, "wait": waitLimit} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newPausedResolver(t)
			s := startService(t, setup{resolvers: resolvers{payOrder: h.payOrder}, runnerOptions: idempotency.RunnerOptions{Wait: wait}})
			answers := make(chan answer, duplicates)
			for range duplicates {
				go func() {
					got, err := s.send(t.Context(), request{document: payOnce})
					if err != nil {
						t.Error(err)
					}
					answers <- got
				}()
			}
			awaitValue(t, h.started)
			if wait == 0 {
				for range duplicates - 1 {
					requireRefused(t, awaitValue(t, answers), "IN_PROGRESS", "same-key")
				}
				close(h.finish)
				require.Empty(t, awaitValue(t, answers).Errors)
				return
			}
			close(h.finish)
			replayed := 0
			for range duplicates {
				got := awaitValue(t, answers)
				require.JSONEq(t, `{"pay": {"id": "7"}}`, string(got.Data))
				replayed += len(got.replayedFields())
			}
			require.Equal(t, duplicates-1, replayed)
			require.Equal(t, int64(1), s.runs.Load())
		})
	}
}

// The error of a resolver whose claim is lost is no answer. The last error says IN_PROGRESS, because another attempt may
// answer.
func TestClaimLost(t *testing.T) {
	t.Parallel()
	h := newPausedResolver(t)
	store := &adaptertest.FaultyStore{
		Store: idempotency.NewMemoryStore(idempotency.MemoryOptions{}), ExtendErr: idempotency.ErrClaimLost,
	}
	s := startService(t, setup{
		store: store, resolvers: resolvers{payOrder: h.payOrder}, runnerOptions: idempotency.RunnerOptions{Lease: 300 * time.Millisecond},
	})
	got := s.execute(payOnce)
	last := got.Errors[len(got.Errors)-1]["extensions"].(map[string]any)
	require.Equal(t, map[string]any{"code": "IN_PROGRESS", "retry": "same-key", "retryAfter": 1.0}, last)
	require.ErrorIs(t, context.Cause(awaitValue(t, h.started)), idempotency.ErrClaimLost)
}

// Errors, panics and the verdicts of the resolver decide whether a retry is executed, replayed, or refused.
func TestDecide(t *testing.T) {
	t.Parallel()
	failure := errors.New("failed")
	order := &shop.Order{ID: "7"}
	panics := resolvers{payOrder: func(context.Context, int) (*shop.Order, error) { panic("oops") }}
	for name, tt := range map[string]struct {
		resolvers resolvers
		policy    idempotency.Abandoned
		retryCode any // of the refusal. nil: the retry is not refused
		wantRuns  int64
	}{
		"error":                   {resolvePayment(nil, failure), idempotency.Refuse, nil, 2},
		"error, kept":             {resolvePayment(nil, failure, idempotency.Keep), 0, nil, 1},
		"answer, tombstone":       {resolvePayment(order, nil, idempotency.Tombstone), 0, "NOT_REPLAYABLE", 1},
		"error, tombstone":        {resolvePayment(nil, failure, idempotency.Tombstone), 0, "NOT_REPLAYABLE", 1},
		"answer, released":        {resolvePayment(order, nil, idempotency.Free), 0, nil, 2},
		"unknown, executed":       {resolvePayment(order, nil, idempotency.Unknown), 0, nil, 2},
		"unknown, refused":        {resolvePayment(order, nil, idempotency.Unknown), idempotency.Refuse, "OUTCOME_UNKNOWN", 1},
		"panic, executed":         {panics, 0, nil, 2},
		"panic, then refused":     {panics, idempotency.Refuse, "OUTCOME_UNKNOWN", 1},
		"error, freed, then kept": {resolvePayment(nil, failure, idempotency.Free, idempotency.Keep), 0, nil, 1},
		"error, unknown":          {resolvePayment(nil, failure, idempotency.Unknown), idempotency.Refuse, "OUTCOME_UNKNOWN", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startService(t, setup{
				resolvers: tt.resolvers, runnerOptions: idempotency.RunnerOptions{Abandoned: tt.policy, Lease: time.Second},
			})
			s.execute(payOnce)
			if tt.retryCode == nil {
				s.execute(payOnce)
			} else {
				require.Eventually(t, func() bool { return s.execute(payOnce).errorCode() == tt.retryCode }, waitLimit, 50*time.Millisecond)
			}
			require.Equal(t, tt.wantRuns, s.runs.Load())
		})
	}
}

// If the resolver has not begun, the key is free at once.
func TestNotBegun(t *testing.T) {
	t.Parallel()
	store := &adaptertest.FaultyStore{
		Store: idempotency.NewMemoryStore(idempotency.MemoryOptions{}), Released: make(chan time.Duration, 1),
	}
	s := startService(t, setup{store: store, runnerOptions: idempotency.RunnerOptions{Lease: time.Minute}})
	require.NotEmpty(t, s.execute(`mutation { attach(order: 1, file: "text") @idempotent(key: "1") }`).Errors)
	require.Zero(t, awaitValue(t, store.Released))
}

// The observer of the Runner receives an event for each field.
func TestObserver(t *testing.T) {
	t.Parallel()
	events := make(chan idempotency.Event, 100)
	s := startService(t, setup{
		runnerOptions: idempotency.RunnerOptions{Observer: func(_ context.Context, e idempotency.Event) { events <- e }},
		resolvers: resolvers{payOrder: func(_ context.Context, cents int) (*shop.Order, error) {
			if cents == 1 {
				return &shop.Order{ID: "7"}, nil
			}
			return nil, errors.New("failed")
		}},
	})
	for _, tt := range []struct {
		document    string
		wantOutcome idempotency.Outcome
		wantStatus  int
	}{
		{payOnce, idempotency.OutcomeExecuted, 200},
		{payOnce, idempotency.OutcomeReplayed, 200},
		{`mutation { pay(input: {cents: 2}) @idempotent(key: "2") { id } }`, idempotency.OutcomeReleased, 422},
	} {
		s.execute(tt.document)
		e := awaitValue(t, events)
		require.Equal(t, tt.wantOutcome, e.Outcome)
		require.Equal(t, tt.wantStatus, e.Status)
		require.Equal(t, "graphql Mutation.pay", e.Key.Endpoint)
	}
}
