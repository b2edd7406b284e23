package testservice

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

// NewRedisClient returns a client with the password of the test servers. The options are the defaults of go-redis,
// changed by edits.
func NewRedisClient(t testing.TB, addr string, edits ...func(*redis.Options)) *redis.Client {
	t.Helper()
	opts := &redis.Options{Addr: addr, Password: servertest.RedisPassword()}
	for _, edit := range edits {
		edit(opts)
	}
	client := redis.NewClient(opts)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// NewClusterClient returns a client of a cluster. If proxies is not empty, the connections to master i go through proxy
// i.
func NewClusterClient(t testing.TB, masters []*servertest.Server, proxies ...*servertest.Proxy) *redis.ClusterClient {
	t.Helper()
	opts := &redis.ClusterOptions{Password: servertest.RedisPassword(), ContextTimeoutEnabled: true}
	through := map[string]string{}
	for i, master := range masters {
		opts.Addrs = append(opts.Addrs, master.Addr())
		through[master.Addr()] = master.Addr()
		if len(proxies) > 0 {
			through[master.Addr()] = proxies[i].Addr()
		}
	}
	opts.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, network, through[addr])
	}
	client := redis.NewClusterClient(opts)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// NewMiniredis returns a miniredis with a client. Keys of a miniredis do not expire by themselves, so the client
// advances the clock of the expiry before each command. A key therefore never expires earlier than its TTL after the
// call that set the key.
func NewMiniredis(t testing.TB) (*miniredis.Miniredis, *redis.Client) {
	t.Helper()
	server := miniredis.RunT(t)
	server.RequireAuth(servertest.RedisPassword())
	client := NewRedisClient(t, server.Addr(), WithContextTimeout)
	var mu sync.Mutex
	last := time.Now()
	client.AddHook(BeforeEach(func(string) {
		mu.Lock()
		defer mu.Unlock()
		now := time.Now()
		server.FastForward(now.Sub(last))
		last = now
	}))
	return server, client
}

// WithContextTimeout sets ContextTimeoutEnabled. Otherwise the store would use a clone of the client without its hooks.
func WithContextTimeout(o *redis.Options) { o.ContextTimeoutEnabled = true }

// BeforeEach is a hook of a client. The client calls BeforeEach before each command with the name of the command, and
// before each pipeline with "".
type BeforeEach func(command string)

// DialHook implements [redis.Hook] without an effect.
func (BeforeEach) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements [redis.Hook].
func (before BeforeEach) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		before(cmd.Name())
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook implements [redis.Hook].
func (before BeforeEach) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		before("")
		return next(ctx, cmds)
	}
}

// RedisKeys returns the names of all keys with prefix.
func RedisKeys(t testing.TB, client redis.Cmdable, prefix string) []string {
	t.Helper()
	names, err := client.Keys(t.Context(), prefix+"*").Result()
	require.NoError(t, err)
	return names
}

// LargeBody is so large that the Redis store does not pass the body through Lua.
var LargeBody = strings.Repeat("0123456789abcdef", 4<<10)

// Large returns a response with LargeBody.
func Large() idempotency.Response {
	return idempotency.Response{Status: http.StatusCreated, Body: []byte(LargeBody)}
}

// OnRealAndMiniredis runs test on a real server and on a miniredis.
func OnRealAndMiniredis(t *testing.T, test func(*testing.T, *redis.Client)) {
	t.Parallel()
	t.Run("server", func(t *testing.T) {
		test(t, NewRedisClient(t, servertest.Redis(t).Addr()))
	})
	t.Run("miniredis", func(t *testing.T) {
		_, client := NewMiniredis(t)
		test(t, client)
	})
}
