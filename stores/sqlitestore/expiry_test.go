package sqlitestore_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

// Claims of other keys delete expired records, so the table holds little more than the live records. The deletions
// need no transactions of their own.
func TestExpiredRecordsGo(t *testing.T) {
	t.Parallel()
	clock, path := newClock(), newPath(t)
	store := openStore(t, path, sqlitestore.Options{Synchronous: sqlitestore.Normal}.WithClock(clock.now))
	commits := 0
	require.NoError(t, store.OnCommit(func() int32 { commits++; return 0 }))
	const records, live = 2000, 100
	for i := range records {
		completeKey(t, store, strconv.Itoa(i))
		clock.advance(time.Hour / live)
	}
	other := openConn(t, path)
	require.LessOrEqual(t, queryValue[int](t, other, "SELECT count(*) FROM idempotency_records"), live+1)
	require.LessOrEqual(t, queryValue[int](t, other, "PRAGMA page_count"), 40) // all records would take 200
	require.Equal(t, 2*records, commits)

	clock.advance(2 * time.Hour) // half as many claims delete all expired records
	const claims = live/2 + 1
	for i := range claims {
		claimKey(t, store, "new "+strconv.Itoa(i))
	}
	require.Equal(t, claims, queryValue[int](t, other, "SELECT count(*) FROM idempotency_records"))
}

// An attempt cannot continue after another attempt has taken its key over, even if the record of the successor has
// expired, because the expired record has the token of the successor.
func TestForgottenSuccessor(t *testing.T) {
	t.Parallel()
	for name, clockStep := range map[string]time.Duration{"taken over": 2 * request.Lease, "forgotten": 2 * request.TTL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock := newClock()
			store := openStore(t, newPath(t), sqlitestore.Options{}.WithClock(clock.now))
			_, old := claimKey(t, store, "key")
			clock.advance(clockStep)
			_, successor, err := store.Begin(t.Context(), keyOf("key"), takeover)
			require.NoError(t, err)
			require.NotNil(t, successor)
			clock.advance(2 * request.TTL)
			require.ErrorIs(t, old.Extend(t.Context(), time.Minute), idempotency.ErrClaimLost)
			require.ErrorIs(t, old.Complete(t.Context(), answer, time.Hour), idempotency.ErrClaimLost)
			require.ErrorIs(t, successor.Complete(t.Context(), answer, time.Hour), idempotency.ErrRestored)
			requireReplay(t, store, "key")
		})
	}
}
