package sqlitestore_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

// clock is a clock that stands still unless a test calls advance.
type clock struct{ unixMicros atomic.Int64 }

func newClock() *clock {
	c := new(clock)
	c.unixMicros.Store(time.Now().UnixMicro())
	return c
}

func (c *clock) now() time.Time { return time.UnixMicro(c.unixMicros.Load()) }

func (c *clock) advance(d time.Duration) { c.unixMicros.Add(d.Microseconds()) }

// If the clock is set forward, leases lapse. The next renewal restores the lease unless another attempt has taken
// the key over.
func TestClockSetForward(t *testing.T) {
	t.Parallel()
	clock := newClock()
	store := openStore(t, newPath(t), sqlitestore.Options{}.WithClock(clock.now))
	_, renewed := claimKey(t, store, "renewed")
	_, overtaken := claimKey(t, store, "overtaken")
	clock.advance(2 * request.Lease)

	require.NoError(t, renewed.Extend(t.Context(), request.Lease))
	record, claim, err := store.Begin(t.Context(), keyOf("renewed"), takeover)
	require.NoError(t, err)
	require.Nil(t, claim)
	require.Equal(t, request.Lease, record.LeaseLeft)

	record, claim, err = store.Begin(t.Context(), keyOf("overtaken"), takeover)
	require.NoError(t, err)
	require.NotNil(t, claim)
	require.Equal(t, 2, record.Attempt)
	require.ErrorIs(t, overtaken.Extend(t.Context(), request.Lease), idempotency.ErrClaimLost)
	require.ErrorIs(t, overtaken.Complete(t.Context(), answer, time.Hour), idempotency.ErrClaimLost)
}

// If the clock is set back by a day, leases and records last a day longer. The next renewal shortens the lease
// again.
func TestClockSetBack(t *testing.T) {
	t.Parallel()
	clock := newClock()
	store := openStore(t, newPath(t), sqlitestore.Options{}.WithClock(clock.now))
	_, claim := claimKey(t, store, "key")
	clock.advance(-24 * time.Hour)
	seen := func() idempotency.Record {
		record, claim, err := store.Begin(t.Context(), keyOf("key"), request)
		require.NoError(t, err)
		require.Nil(t, claim)
		return record
	}
	require.Equal(t, 24*time.Hour+request.Lease, seen().LeaseLeft)
	require.NoError(t, claim.Extend(t.Context(), request.Lease))
	require.Equal(t, request.Lease, seen().LeaseLeft)
	require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
	require.Equal(t, time.Hour, seen().Remaining)
}
