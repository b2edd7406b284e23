package sqlitestore_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

// clock stands still unless it is set.
type clock struct{ micros atomic.Int64 }

func newClock() *clock {
	c := new(clock)
	c.micros.Store(time.Now().UnixMicro())
	return c
}

func (c *clock) now() time.Time { return time.UnixMicro(c.micros.Load()) }

func (c *clock) step(d time.Duration) { c.micros.Add(d.Microseconds()) }

// A clock that is set forward lets leases lapse. The owner has its lease again with the next renewal, unless somebody
// was faster.
func TestClockSetForward(t *testing.T) {
	t.Parallel()
	clock := newClock()
	store := open(t, newPath(t), sqlitestore.Options{}.At(clock.now))
	_, renewed := begun(t, store, "renewed")
	_, overtaken := begun(t, store, "overtaken")
	clock.step(2 * request.Lease)

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

// A clock that is set back keeps leases and records for so much longer. The owner shortens its lease with the next
// renewal.
func TestClockSetBack(t *testing.T) {
	t.Parallel()
	clock := newClock()
	store := open(t, newPath(t), sqlitestore.Options{}.At(clock.now))
	_, claim := begun(t, store, "key")
	clock.step(-24 * time.Hour)
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
