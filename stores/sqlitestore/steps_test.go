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

// Text in another encoding changes no byte of a step.
func TestStepsInUTF16(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	other := foreign(t, path)
	execute(t, other, "PRAGMA encoding = 'UTF-16le'")
	execute(t, other, "CREATE TABLE orders (id INTEGER)")
	store := open(t, path, sqlitestore.Options{})
	idempotencytest.RunSteps(t, func(*testing.T) idempotency.Store { return store })
	require.Equal(t, "UTF-16le", one[string](t, other, "PRAGMA encoding"))
}

// checkpointed claims a key, and stores a step.
func checkpointed(t *testing.T, store idempotency.Store, key string) idempotency.Checkpointer {
	t.Helper()
	_, claim := begun(t, store, key)
	steps := claim.(idempotency.Checkpointer)
	_, err := steps.Checkpoint(t.Context(), "charge", []byte("1"))
	require.NoError(t, err)
	return steps
}

// An operation that is completed keeps no steps.
func TestStepsGoWithTheAnswer(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	store := open(t, path, sqlitestore.Options{})
	require.NoError(t, checkpointed(t, store, "leased").Complete(t.Context(), answer, time.Hour))
	require.NoError(t, checkpointed(t, store, "released").Release(t.Context(), time.Hour))
	other := foreign(t, path)
	const kept = "SELECT count(steps) FROM idempotency_records"
	require.Equal(t, 1, one[int](t, other, kept))
	completed(t, store, "released")
	require.Equal(t, 0, one[int](t, other, kept))
	require.Equal(t, 2, one[int](t, other, "SELECT count(response) FROM idempotency_records"))
}

// The steps of a record that has expired are forgotten with it, even if it is still in the file.
func TestForgottenSteps(t *testing.T) {
	t.Parallel()
	clock := newClock()
	store := open(t, newPath(t), sqlitestore.Options{}.At(clock.now))
	claim := checkpointed(t, store, "key")
	clock.step(2 * request.TTL)
	found, err := claim.Checkpoints(t.Context())
	require.NoError(t, err)
	require.Contains(t, found, idempotency.RecordLost)
	require.Len(t, found, 1)
	stored, err := claim.Checkpoint(t.Context(), "ship", []byte("2"))
	require.ErrorIs(t, err, idempotency.ErrRestored)
	require.Equal(t, "2", string(stored))
	clock.step(request.TTL - time.Second)
	found, err = claim.Checkpoints(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[string][]byte{idempotency.RecordLost: {}, "ship": []byte("2")}, found)

	clock.step(time.Minute)
	require.ErrorIs(t, claim.Release(t.Context(), time.Hour), idempotency.ErrClaimLost)
	_, err = claim.Checkpoint(t.Context(), "mail", nil)
	require.ErrorIs(t, err, idempotency.ErrClaimLost)
	_, err = claim.Checkpoints(t.Context())
	require.ErrorIs(t, err, idempotency.ErrClaimLost)
}

// Steps that no store has written are neither found nor added to. The operation can be completed.
func TestTamperedSteps(t *testing.T) {
	t.Parallel()
	rowtest.TamperedSteps(t, newSubject(t), []string{
		"x'05'", "x'0161'", "x'016105'", "x'ffffffffffffffffffff01'", "zeroblob(7)",
	})
}

// Above seven eighths of MaxBytes there is no room for steps, as for answers. Those that are stored are found.
func TestStepsNeedRoom(t *testing.T) {
	t.Parallel()
	store := open(t, newPath(t), sqlitestore.Options{MaxBytes: 1 << 20, Synchronous: sqlitestore.Normal})
	var err error
	for i := 0; err == nil; i++ {
		require.Less(t, i, 16)
		claim := checkpointed(t, store, string(rune('a'+i)))
		_, err = claim.Checkpoint(t.Context(), "large", make([]byte, 64<<10))
		found, also := claim.Checkpoints(t.Context())
		require.NoError(t, also)
		require.Contains(t, found, "charge")
		require.NotEqual(t, err == nil, found["large"] == nil)
	}
	require.ErrorIs(t, err, idempotency.ErrStoreFull)
}
