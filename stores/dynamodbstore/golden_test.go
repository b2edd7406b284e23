package dynamodbstore_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// Later releases must read the items of the first release.
func TestGoldenItems(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/items.json")
	require.NoError(t, err)
	var items []attributes
	require.NoError(t, json.Unmarshal(text, &items))
	store, s := newStore(t)
	for _, item := range items {
		s.putItem(item)
	}
	requireReplay(t, store, "completed", answer)
	requireReplay(t, store, "compressed", idempotency.Response{
		Status: 200, Note: "payment 17", Body: []byte(strings.Repeat("a", 2000)),
	})
	record, claim := claimKey(t, store, "released")
	require.Equal(t, 2, record.Attempt)
	steps, err := claim.(idempotency.Checkpointer).Checkpoints(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[string][]byte{"charge": []byte("1")}, steps)
	record, claim, err = store.Begin(t.Context(), keyOf("abandoned"), request)
	require.NoError(t, err)
	require.Nil(t, claim)
	require.Equal(t, 1, record.Attempt)
	require.Zero(t, record.LeaseLeft)
	listing, err := store.List(t.Context(), idempotency.ListRequest{Order: idempotency.LargestFirst})
	require.NoError(t, err)
	require.Len(t, listing.Entries, len(items))
	require.Equal(t, "payment 17", listing.Entries[0].Note)
	require.Equal(t, int64(1795688498030943), listing.Entries[0].Created.UnixMicro())
}
