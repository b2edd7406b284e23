package idempotency_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/internal/servertest"
)

func TestRedisInspectorConforms(t *testing.T) {
	t.Parallel()
	conforms := func(name string, newClient func(*testing.T) redis.Cmdable) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := newClient(t)
			idempotencytest.RunInspector(t, func(*testing.T) idempotency.Store { return newScope(client) })
		})
	}
	conforms("miniredis", func(t *testing.T) redis.Cmdable {
		_, client := newMiniredis(t)
		return client
	})
	conforms("server", func(t *testing.T) redis.Cmdable {
		return newRedisClient(t, servertest.Redis(t).Addr())
	})
	conforms("server with automatic pipelining that does not wait", func(t *testing.T) redis.Cmdable {
		pipeliner, err := newRedisClient(t, servertest.Redis(t).Addr()).AsyncAutoPipeline()
		require.NoError(t, err)
		return pipeliner
	})
	conforms("server with the typed commands alone", func(t *testing.T) redis.Cmdable {
		return struct{ redis.Cmdable }{newRedisClient(t, servertest.Redis(t).Addr())}
	})
	conforms("cluster", func(t *testing.T) redis.Cmdable {
		return newClusterClient(t, servertest.RedisCluster(t))
	})
	conforms("server that forgets the scripts before each command", func(t *testing.T) redis.Cmdable {
		server := servertest.Redis(t)
		client, other := newRedisClient(t, server.Addr(), withContextTimeout), newRedisClient(t, server.Addr())
		client.AddHook(beforeEach(func(string) { other.ScriptFlush(t.Context()) }))
		return client
	})
}

// newScope returns a store with a prefix of its own, all of whose characters stand for themselves.
func newScope(client redis.Cmdable) *idempotency.RedisStore {
	return idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: `*?[a]\` + uuid.NewString() + ":"})
}
