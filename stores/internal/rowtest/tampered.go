package rowtest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// Tampering is a change Set of the row of the key Of, which is named after its state: "completed", "running" or "released".
type Tampering = struct{ Of, Set string }

// TamperedRows checks that a forged row is neither replayed nor claimed, and stays unchanged until the row expires. After the
// expiry, cleanUp prepares the table for the next claim.
func TamperedRows(t *testing.T, newSubject func(t testing.TB) Subject, tamperings map[string]Tampering,
	cleanUp func(t testing.TB, s Subject, set string),
) {
	t.Helper()
	for name, tampering := range tamperings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, key := newSubject(t), tampering.Of
			MustComplete(t, s.Store, "completed")
			MustBegin(t, s.Store, "running")
			_, claim := MustBegin(t, s.Store, "released")
			require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Hour}))
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
			record, _ := MustBegin(t, s.Store, key)
			require.Equal(t, 1, record.Attempt)
		})
	}
}

// TamperedTimes checks that impossible times cause neither errors nor endless leases. The subjects store times as integers.
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
			_, owner := MustBegin(t, s.Store, "key")
			s.Set(t, "key", set)
			_, claim, err := s.Store.Begin(t.Context(), KeyOf("key"), Takeover)
			require.NoError(t, err)
			require.NotNil(t, claim)
			require.ErrorIs(t, owner.Complete(t.Context(), Answer, time.Hour), idempotency.ErrClaimLost)
			require.NoError(t, claim.Complete(t.Context(), Answer, time.Hour))
		})
	}
}

// TamperedSteps checks that forged steps are an error of Checkpoint and Checkpoints, and that the operation can still be completed.
// The sets are SQL values for the column steps.
func TamperedSteps(t *testing.T, s Subject, sets []string) {
	t.Helper()
	for _, set := range sets {
		_, claim := MustBegin(t, s.Store, set)
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
