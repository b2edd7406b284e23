package idempotency_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/cache"
	"github.com/idempotency-go/idempotency/internal/testservice"
)

// operationOfK is the ID of the operation of SingleUser, POST /payments and the key "k": for ever.
const operationOfK = "0a6b3c1c-56d2-8e5d-947a-851115e86e49"

// The ID follows from user, endpoint and key alone: not from the store, nor from what became of the attempts before.
func TestOperationIDFollowsFromTheKey(t *testing.T) {
	t.Parallel()
	server, client := testservice.NewMiniredis(t)
	memory, restarted := idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	onRedis := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	var seen []idempotency.Operation
	fails := true
	ask := func(store idempotency.Store, body string) {
		svc := testservice.Setup{Store: store}.Guard(t, func(w http.ResponseWriter, r *http.Request) {
			op, _ := idempotency.FromContext(r.Context())
			seen = append(seen, op)
			if fails {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		})
		svc.Call("k", body)
	}
	ask(memory, "b")
	ask(memory, "b") // after a failure
	ask(restarted, "b")
	ask(onRedis, "b")
	server.FlushAll()
	ask(onRedis, "another body")
	fails = false
	ask(testservice.MustSeal(t, cache.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), cache.Options{}), testservice.Sealing("key")), "b")
	ask(idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: "other:"}), "b")

	numbers := make([]int, len(seen))
	for i, op := range seen {
		require.Equal(t, operationOfK, op.ID.String())
		numbers[i] = op.Attempt
	}
	require.Equal(t, []int{1, 2, 1, 1, 1, 1, 1}, numbers)
	require.Equal(t, uuid.Version(8), seen[0].ID.Version())
	require.Equal(t, uuid.RFC4122, seen[0].ID.Variant())
}

// A key that is used again after its TTL has the same ID, and the store counts from 1.
func TestOperationIDAfterTheTTL(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var seen []idempotency.Operation
		svc := testservice.Setup{Opts: idempotency.Options{TTL: time.Hour}}.Guard(t, func(_ http.ResponseWriter, r *http.Request) {
			op, _ := idempotency.FromContext(r.Context())
			seen = append(seen, op)
		})
		svc.Call("k", "b")
		time.Sleep(time.Hour)
		svc.Call("k", "another body")
		require.Len(t, seen, 2)
		require.Equal(t, seen[0], seen[1])
		require.Equal(t, operationOfK, seen[0].ID.String())
	})
}
