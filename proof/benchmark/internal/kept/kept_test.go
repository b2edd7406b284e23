package kept_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/benchmark/internal/kept"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

// The copies are made by statements of their own, which must fit what the stores keep.
func TestCopiesAreRecords(t *testing.T) {
	t.Parallel()
	for _, subject := range kept.All {
		t.Run(subject.Name, func(t *testing.T) {
			if subject.Name != "memory" { // its size is that of this process's heap, which others would change
				t.Parallel()
			}
			target, err := subject.Open(2)
			servertest.Require(t, err)
			defer target.Close()
			empty, err := target.Size()
			require.NoError(t, err)
			key := idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: "1"}
			_, claim, err := target.Store.Begin(t.Context(), key, idempotency.ClaimRequest{Lease: time.Minute, TTL: time.Hour})
			require.NoError(t, err)
			require.NoError(t, claim.Complete(t.Context(), idempotency.Response{Status: 201, Body: make([]byte, 200)}, time.Hour))
			if subject.Emulated {
				taken, err := target.Size()
				require.NoError(t, err)
				require.Greater(t, taken-empty, int64(200))
				return
			}

			const copies = 2_000
			require.NoError(t, target.Copy(t.Context(), key, copies, time.Now().Add(time.Hour)))
			listing, err := target.Store.(idempotency.Inspector).List(t.Context(), idempotency.ListRequest{Limit: 1})
			require.NoError(t, err)
			require.Equal(t, 1+copies, listing.Totals[idempotency.StateCompleted].Records+listing.Unreadable)
			taken, err := target.Size()
			require.NoError(t, err)
			require.Greater(t, taken-empty, int64(copies*200))
		})
	}
}
