package sqlitestore_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

// Expired records go with the claims of others: the table is bounded by the records that count, and no transaction is
// made for that.
func TestExpiredRecordsGo(t *testing.T) {
	t.Parallel()
	clock, path := newClock(), newPath(t)
	store := open(t, path, sqlitestore.Options{Synchronous: sqlitestore.Normal}.At(clock.now))
	commits := 0
	require.NoError(t, store.OnCommit(func() int32 { commits++; return 0 }))
	const records, live = 2000, 100
	for i := range records {
		completed(t, store, strconv.Itoa(i))
		clock.step(time.Hour / live)
	}
	other := foreign(t, path)
	require.LessOrEqual(t, one[int](t, other, "SELECT count(*) FROM idempotency_records"), live+1)
	require.LessOrEqual(t, one[int](t, other, "PRAGMA page_count"), 40) // all records would take 200
	require.Equal(t, 2*records, commits)

	clock.step(2 * time.Hour) // a backlog is worked off by half as many claims
	const claims = live/2 + 1
	for i := range claims {
		begun(t, store, "new "+strconv.Itoa(i))
	}
	require.Equal(t, claims, one[int](t, other, "SELECT count(*) FROM idempotency_records"))
}

// An attempt that another one has followed does not come back, even if the successor's record has expired: the token in
// it tells.
func TestForgottenSuccessor(t *testing.T) {
	t.Parallel()
	for name, step := range map[string]time.Duration{"taken over": 2 * request.Lease, "forgotten": 2 * request.TTL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock := newClock()
			store := open(t, newPath(t), sqlitestore.Options{}.At(clock.now))
			_, old := begun(t, store, "key")
			clock.step(step)
			_, successor, err := store.Begin(t.Context(), keyOf("key"), takeover)
			require.NoError(t, err)
			require.NotNil(t, successor)
			clock.step(2 * request.TTL)
			require.ErrorIs(t, old.Extend(t.Context(), time.Minute), idempotency.ErrClaimLost)
			require.ErrorIs(t, old.Complete(t.Context(), answer, time.Hour), idempotency.ErrClaimLost)
			require.ErrorIs(t, successor.Complete(t.Context(), answer, time.Hour), idempotency.ErrRestored)
			requireReplay(t, store, "key")
		})
	}
}
