package rowtest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// Tampering is a change of the row of a key, which is that of a state: "completed", "running" or "released".
type Tampering = struct{ Of, Set string }

// TamperedRows checks that a row that no store has written is neither replayed nor claimed, and stays as it is until it
// expires. After that, cleanUp prepares the table for the next claim.
func TamperedRows(t *testing.T, newSubject func(t testing.TB) Subject, tamperings map[string]Tampering,
	cleanUp func(t testing.TB, s Subject, set string),
) {
	t.Helper()
	for name, tampering := range tamperings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, key := newSubject(t), tampering.Of
			Completed(t, s.Store, "completed")
			Begun(t, s.Store, "running")
			_, claim := Begun(t, s.Store, "released")
			require.NoError(t, claim.Release(t.Context(), time.Hour))
			s.Set(t, key, tampering.Set)
			before := s.Dump(t, key)
			require.NotEmpty(t, before)
			for _, asked := range []idempotency.ClaimRequest{Request, Takeover} {
				_, _, err := s.Store.Begin(t.Context(), KeyOf(key), asked)
				require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
				require.Nil(t, testservice.InDoubt(err))
			}
			require.Equal(t, before, s.Dump(t, key))

			s.Set(t, key, "expires = 0")
			cleanUp(t, s, tampering.Set)
			record, _ := Begun(t, s.Store, key)
			require.Equal(t, 1, record.Attempt)
		})
	}
}

// TamperedTimes checks that times that no clock has are no reason to fail, nor to wait for ever. The subjects have
// integers as times.
func TamperedTimes(t *testing.T, newSubject func(t testing.TB) Subject) {
	t.Helper()
	for name, set := range map[string]string{
		"earliest":  "created = -9223372036854775808, lease = -9223372036854775808, expires = 9223372036854775807",
		"latest":    "created = 9223372036854775807, lease = 0, expires = 9223372036854775807",
		"long over": "created = 0, lease = 0, expires = -9223372036854775808",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSubject(t)
			_, owner := Begun(t, s.Store, "key")
			s.Set(t, "key", set)
			_, claim, err := s.Store.Begin(t.Context(), KeyOf("key"), Takeover)
			require.NoError(t, err)
			require.NotNil(t, claim)
			require.ErrorIs(t, owner.Complete(t.Context(), Answer, time.Hour), idempotency.ErrClaimLost)
			require.NoError(t, claim.Complete(t.Context(), Answer, time.Hour))
		})
	}
}

// TamperedSteps checks that steps that no store has written are neither shown nor kept, and that their operation can be
// completed nevertheless. The sets are SQL, for the column of the steps.
func TamperedSteps(t *testing.T, s Subject, sets []string) {
	t.Helper()
	for _, set := range sets {
		_, claim := Begun(t, s.Store, set)
		steps := claim.(idempotency.Checkpointer)
		_, err := steps.Checkpoint(t.Context(), "charge", []byte("1"))
		require.NoError(t, err, set)
		s.Set(t, set, "steps = "+set)
		_, err = steps.Checkpoint(t.Context(), "ship", []byte("2"))
		require.ErrorIs(t, err, idempotency.ErrRecordInvalid, set)
		_, err = steps.Checkpoints(t.Context())
		require.ErrorIs(t, err, idempotency.ErrRecordInvalid, set)
		require.NoError(t, claim.Complete(t.Context(), Answer, time.Hour), set)
		RequireReplay(t, s.Store, set)
	}
}
