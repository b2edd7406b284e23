package idempotency_test

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// requireLive requires that nothing has ended ctx yet.
func requireLive(t *testing.T, ctx context.Context) {
	t.Helper()
	require.NoError(t, ctx.Err())
	require.NoError(t, context.Cause(ctx))
	select {
	case <-ctx.Done():
		require.Fail(t, "is done")
	default:
	}
}

// requireEnded requires that ctx has ended as contexts do.
func requireEnded(t *testing.T, ctx context.Context, err, cause error) {
	t.Helper()
	<-ctx.Done()
	require.Equal(t, err, ctx.Err())
	require.Equal(t, cause, context.Cause(ctx))
}

var errHungUp = errors.New("hung up")

// The context of work ends with that of its caller, when the claim is lost, and when work has returned.
func TestContextOfWork(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		during     func(t *testing.T, ctx context.Context, hangUp func()) // in work
		err, cause error                                                  // afterwards
	}{
		"never asked":   {func(*testing.T, context.Context, func()) {}, context.Canceled, context.Canceled},
		"asked":         {func(t *testing.T, ctx context.Context, _ func()) { requireLive(t, ctx) }, context.Canceled, context.Canceled},
		"asked for Err": {func(t *testing.T, ctx context.Context, _ func()) { require.NoError(t, ctx.Err()) }, context.Canceled, context.Canceled},
		"caller hangs up": {func(t *testing.T, ctx context.Context, hangUp func()) {
			requireLive(t, ctx)
			hangUp()
			requireEnded(t, ctx, context.Canceled, errHungUp)
		}, context.Canceled, errHungUp},
		"caller has hung up": {func(t *testing.T, ctx context.Context, hangUp func()) {
			hangUp()
			require.Equal(t, errHungUp, context.Cause(ctx))
			requireEnded(t, ctx, context.Canceled, errHungUp)
		}, context.Canceled, errHungUp},
		"caller hangs up, and nobody asks": {func(_ *testing.T, _ context.Context, hangUp func()) { hangUp() },
			context.Canceled, errHungUp},
		"lost": {func(t *testing.T, ctx context.Context, _ func()) {
			time.Sleep(time.Minute)
			requireEnded(t, ctx, context.Canceled, idempotency.ErrClaimLost)
		}, context.Canceled, idempotency.ErrClaimLost},
		"lost while it is awaited": {func(t *testing.T, ctx context.Context, _ func()) {
			requireEnded(t, ctx, context.Canceled, idempotency.ErrClaimLost)
		}, context.Canceled, idempotency.ErrClaimLost},
		"derived": {func(t *testing.T, ctx context.Context, _ func()) {
			derived, cancel := context.WithTimeout(ctx, time.Hour)
			defer cancel()
			requireLive(t, derived)
			requireEnded(t, derived, context.Canceled, idempotency.ErrClaimLost)
		}, context.Canceled, idempotency.ErrClaimLost},
	} {
		for first, ask := range map[string]func(t *testing.T, ctx context.Context){
			"Err":   func(t *testing.T, ctx context.Context) { require.Equal(t, test.err, ctx.Err()) },
			"Cause": func(t *testing.T, ctx context.Context) { require.Equal(t, test.cause, context.Cause(ctx)) },
			"Done":  func(_ *testing.T, ctx context.Context) { <-ctx.Done() },
		} {
			t.Run(name+", then "+first, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { testContextOfWork(t, test.during, ask, test.err, test.cause) })
			})
		}
	}
}

func testContextOfWork(t *testing.T, during func(*testing.T, context.Context, func()), ask func(*testing.T, context.Context), err, cause error) {
	store := newSpyStore()
	store.onExtend = failing(always, idempotency.ErrClaimLost)
	b := newBench(t, store, idempotency.RunnerOptions{Lease: time.Minute})
	parent, hangUp := context.WithCancelCause(context.WithValue(t.Context(), errHungUp, "value"))
	defer hangUp(nil)
	var kept context.Context
	_, _, _ = b.Do(parent, someKey, nil, func(ctx context.Context) (idempotency.Response, error) {
		during(t, ctx, func() { hangUp(errHungUp) })
		kept = ctx
		return someWork(ctx)
	})
	ask(t, kept)
	requireEnded(t, kept, err, cause)
	require.Equal(t, "value", kept.Value(errHungUp))
	operation, ok := idempotency.FromContext(kept)
	require.True(t, ok)
	require.Equal(t, someKey, operation.Key)
	derived, cancel := context.WithCancel(kept)
	defer cancel()
	requireEnded(t, derived, err, cause)
}

func TestContextOfWorkIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	b := newBench(t, newSpyStore(), idempotency.RunnerOptions{})
	var group sync.WaitGroup
	for range 50 {
		_, _, err := b.Do(t.Context(), numberedKey(0), nil, func(ctx context.Context) (idempotency.Response, error) {
			for range 4 {
				group.Go(func() {
					_, _ = ctx.Err(), ctx.Value(errHungUp)
					<-ctx.Done()
					assert.Error(t, ctx.Err())
				})
			}
			return idempotency.Response{}, errHungUp // so that it runs each time
		})
		require.Equal(t, errHungUp, err)
	}
	group.Wait()
}

// A step of the store ends by a deadline of its own, not with the request.
func TestStepsEndByTheirDeadlines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const timeout = 8 * time.Second
		store := newSpyStore()
		store.onBegin = func(ctx context.Context, n int64, _ func() error) error {
			began := time.Now()
			assert.NoError(t, context.Cause(ctx))
			deadline, ok := ctx.Deadline()
			assert.True(t, ok)
			assert.Equal(t, began.Add(timeout), deadline)
			<-ctx.Done()
			assert.Equal(t, timeout, time.Since(began))
			assert.Equal(t, context.DeadlineExceeded, context.Cause(ctx))
			return ctx.Err()
		}
		b := newBench(t, store, idempotency.RunnerOptions{StoreTimeout: timeout})
		parent, hangUp := context.WithCancelCause(t.Context())
		hangUp(errHungUp)
		_, _, err := b.Do(parent, someKey, nil, someWork)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

// boundStore makes a store one whose claims have no lease, as if effects were bound to the record.
type boundStore struct{ idempotency.Store }

func (s boundStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	rec, claim, err := s.Store.Begin(ctx, key, request)
	rec.NoLease = true
	return rec, claim, err
}

// Effects that are bound to the record are in doubt with it. So their answer is not sent, and not completed later.
func TestAnswerIsNotSentWhoseEffectsAreInDoubt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newSpyStore()
		store.onComplete = failing(always, errDown)
		svc := setup{store: boundStore{store}}.guard(t, echo)
		requireProblem(t, svc.call("k", "b"), http.StatusServiceUnavailable, "rolled-back")
		require.ErrorIs(t, svc.journal.last(t).Err, errDown)
		tries := store.completes.Load()
		time.Sleep(time.Minute)
		require.Equal(t, tries, store.completes.Load())
		require.Equal(t, []idempotency.Outcome{idempotency.OutcomeRolledBack}, svc.journal.outcomes())
	})
}
