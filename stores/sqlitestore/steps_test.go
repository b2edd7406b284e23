package sqlitestore_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/stores/internal/rowtest"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

// In a file with another text encoding, the bytes of steps stay unchanged.
func TestStepsInUTF16(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	other := openConn(t, path)
	execStatement(t, other, "PRAGMA encoding = 'UTF-16le'")
	execStatement(t, other, "CREATE TABLE orders (id INTEGER)")
	store := openStore(t, path, sqlitestore.Options{})
	idempotencytest.RunSteps(t, func(*testing.T) idempotency.Store { return store })
	require.Equal(t, "UTF-16le", queryValue[string](t, other, "PRAGMA encoding"))
}

// claimWithStep claims key, and stores the step "charge".
func claimWithStep(t *testing.T, store idempotency.Store, key string) idempotency.Checkpointer {
	t.Helper()
	_, claim := claimKey(t, store, key)
	steps := claim.(idempotency.Checkpointer)
	_, err := steps.Checkpoint(t.Context(), "charge", []byte("1"))
	require.NoError(t, err)
	return steps
}

// A completed operation keeps no steps.
func TestStepsGoWithTheAnswer(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	store := openStore(t, path, sqlitestore.Options{})
	require.NoError(t, claimWithStep(t, store, "leased").Complete(t.Context(), answer, time.Hour))
	require.NoError(t, claimWithStep(t, store, "released").Release(t.Context(), idempotency.Release{TTL: time.Hour}))
	other := openConn(t, path)
	const kept = "SELECT count(steps) FROM idempotency_records"
	require.Equal(t, 1, queryValue[int](t, other, kept))
	completeKey(t, store, "released")
	require.Equal(t, 0, queryValue[int](t, other, kept))
	require.Equal(t, 2, queryValue[int](t, other, "SELECT count(response) FROM idempotency_records"))
}

// When a record expires, its steps are forgotten with the record, even if the file still has them.
func TestForgottenSteps(t *testing.T) {
	t.Parallel()
	clock := newClock()
	store := openStore(t, newPath(t), sqlitestore.Options{}.WithClock(clock.now))
	claim := claimWithStep(t, store, "key")
	clock.advance(2 * request.TTL)
	found, err := claim.Checkpoints(t.Context())
	require.NoError(t, err)
	require.Contains(t, found, idempotency.RecordLost)
	require.Len(t, found, 1)
	stored, err := claim.Checkpoint(t.Context(), "ship", []byte("2"))
	require.ErrorIs(t, err, idempotency.ErrRestored)
	require.Equal(t, "2", string(stored))
	clock.advance(request.TTL - time.Second)
	found, err = claim.Checkpoints(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[string][]byte{idempotency.RecordLost: {}, "ship": []byte("2")}, found)

	clock.advance(time.Minute)
	require.ErrorIs(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Hour}), idempotency.ErrClaimLost)
	_, err = claim.Checkpoint(t.Context(), "mail", nil)
	require.ErrorIs(t, err, idempotency.ErrClaimLost)
	_, err = claim.Checkpoints(t.Context())
	require.ErrorIs(t, err, idempotency.ErrClaimLost)
}

// The store neither returns tampered steps nor adds to them. The operation can still be completed.
func TestTamperedSteps(t *testing.T) {
	t.Parallel()
	rowtest.TamperedSteps(t, newSubject(t), []string{
		"x'05'", "x'0161'", "x'016105'", "x'ffffffffffffffffffff01'", "zeroblob(7)",
	})
}

// Above seven eighths of MaxBytes, the store refuses new steps, as it omits answers, but still returns stored steps.
func TestStepsNeedRoom(t *testing.T) {
	t.Parallel()
	store := openStore(t, newPath(t), sqlitestore.Options{MaxBytes: 1 << 20, Synchronous: sqlitestore.Normal})
	var err error
	for i := 0; err == nil; i++ {
		require.Less(t, i, 16)
		claim := claimWithStep(t, store, string(rune('a'+i)))
		_, err = claim.Checkpoint(t.Context(), "large", make([]byte, 64<<10))
		found, also := claim.Checkpoints(t.Context())
		require.NoError(t, also)
		require.Contains(t, found, "charge")
		require.NotEqual(t, err == nil, found["large"] == nil)
	}
	require.ErrorIs(t, err, idempotency.ErrStoreFull)
}
