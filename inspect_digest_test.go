package idempotency_test

import (
	"crypto/sha256"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/servertest"
	"github.com/idempotency-go/idempotency/internal/testservice"
)

// Whoever knows the parts of a key as service and client have named them finds its record, however long they are. So does
// whoever knows nothing but the digest.
func TestInspectByPartsAndByDigest(t *testing.T) {
	t.Parallel()
	store := idempotency.NewRedisStore(testservice.NewRedisClient(t, servertest.Redis(t).Addr()), idempotency.RedisOptions{})
	svc := testservice.Setup{
		Store: store,
		User:  func(*http.Request) (string, error) { return "alice", nil },
	}.Serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) })
	for _, path := range []string{"/a", "/" + strings.Repeat("a", 1000)} {
		require.NoError(t, svc.Send(path, "k", "").Err)
		key := idempotency.Key{User: "alice", Endpoint: "POST " + path, ID: "k"}
		entry, err := store.Inspect(t.Context(), key.Bounded())
		require.NoError(t, err)
		require.Equal(t, http.StatusCreated, entry.Status)
		same, err := store.InspectDigest(t.Context(), entry.Digest)
		require.NoError(t, err)
		same.Remaining = entry.Remaining
		require.Equal(t, entry, same)
	}
	_, err := store.InspectDigest(t.Context(), sha256.Sum256(nil))
	require.ErrorIs(t, err, idempotency.ErrNoRecord)
}
