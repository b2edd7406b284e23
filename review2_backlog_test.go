package idempotency_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// A Shutdown that comes too late finds nothing to complain of if everything is settled.
func TestShutdownAfterItsTimeWithNothingToSettle(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		require.NoError(t, newBench(t, newSpyStore(), idempotency.RunnerOptions{}).Shutdown(ctx))
	}
}

// stalledStore answers nothing for a while. What was asked meanwhile it takes afterwards: a release before its claim.
type stalledStore struct {
	idempotency.Store
	until time.Time
	claim func() // takes the request for the claim
}

func (s *stalledStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	if s.claim != nil {
		return s.Store.Begin(ctx, key, request)
	}
	c := &stalledClaim{store: s}
	s.claim = func() { _, c.Claim, _ = s.Store.Begin(context.Background(), key, request) }
	<-ctx.Done()
	return idempotency.Record{}, c, ctx.Err()
}

type stalledClaim struct {
	idempotency.Claim
	store *stalledStore
}

func (c *stalledClaim) Release(ctx context.Context) error {
	switch {
	case time.Now().Before(c.store.until):
		<-ctx.Done()
		return ctx.Err()
	case c.Claim == nil:
		c.store.claim()
		return idempotency.ErrClaimLost
	}
	return c.Claim.Release(ctx)
}

// A claim that is granted behind its own release, long after it was asked for, is released as well.
func TestClaimThatAStoreGrantsAfterAStallIsReleased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &stalledStore{Store: newSpyStore(), until: time.Now().Add(20 * time.Second)}
		r, err := idempotency.NewRunner(store, idempotency.RunnerOptions{
			Lease: time.Minute, StoreTimeout: time.Second, Logger: slog.New(slog.DiscardHandler),
		})
		require.NoError(t, err)
		giveUpAtTheEnd(t, r)
		_, _, err = r.Do(t.Context(), someKey, nil, mustNotWork(t))
		require.ErrorIs(t, err, idempotency.ErrUnavailable)
		time.Sleep(24 * time.Second)
		require.NotNil(t, store.claim)
		_, replayed, err := r.Do(t.Context(), someKey, nil, someWork)
		require.NoError(t, err)
		require.False(t, replayed)
	})
}
