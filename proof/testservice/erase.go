package testservice

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/resolve"
)

// RequireErasure erases the records of a user in each state from store, which has no other records of the users. The
// store runs by the real clock.
func RequireErasure(t *testing.T, store idempotency.Store) {
	t.Helper()
	inspector := store.(idempotency.Inspector)
	user := strings.Repeat("alice ", 50) // so long that stores get a shortened form
	key := func(user, id string) idempotency.Key {
		return idempotency.Key{User: user, Endpoint: "POST /payments", ID: id}.Bounded()
	}
	others := []idempotency.Key{key("bob", "done"), key(user+"'", "done"), key(user[1:], "done")}
	for _, other := range append(others, key(user, "done"), key(user, "done as well")) {
		MustComplete(t, store, other, BodyOf(10))
	}
	require.NoError(t, MustClaim(t, store, key(user, "released"), AttemptFor(time.Hour)).Release(t.Context(), idempotency.Release{TTL: time.Hour}))
	lapsing := AttemptFor(time.Hour)
	lapsing.Lease = time.Millisecond
	MustClaim(t, store, key(user, "abandoned"), lapsing)
	Until(t, func() bool { return MustInspect(t, store, key(user, "abandoned")).State == idempotency.StateAbandoned })
	running := MustClaim(t, store, key(user, "running"), AttemptFor(time.Hour))
	_, err := running.(idempotency.Checkpointer).Checkpoint(t.Context(), "step", []byte("result"))
	require.NoError(t, err)

	var last resolve.EraseProgress
	erase := func() resolve.Erasure {
		erased, err := resolve.EraseUser(t.Context(), inspector, user, resolve.EraseOptions{
			Progress: func(progress resolve.EraseProgress) { last = progress },
		})
		require.NoError(t, err)
		return erased
	}
	require.Equal(t, resolve.Erasure{Erased: 4, Running: 1}, erase())
	require.Equal(t, 5, last.Handled)
	require.Equal(t, 5, last.Found)
	for _, id := range []string{"done", "done as well", "released", "abandoned"} {
		_, err := inspector.Inspect(t.Context(), key(user, id))
		require.ErrorIs(t, err, idempotency.ErrNoRecord, id)
		MustClaim(t, store, key(user, id), AttemptFor(time.Hour)) // of a new operation, which is running
	}
	require.NoError(t, running.Complete(t.Context(), BodyOf(10), time.Hour))
	require.Equal(t, resolve.Erasure{Erased: 1, Running: 4}, erase())
	_, err = inspector.Inspect(t.Context(), key(user, "running"))
	require.ErrorIs(t, err, idempotency.ErrNoRecord)
	require.Equal(t, resolve.Erasure{Running: 4}, erase())
	for _, other := range others {
		require.NotNil(t, MustRead(t, store, other).Response)
	}
}
