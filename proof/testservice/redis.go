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

// NewRedisClient returns a client with the password of our servers and the default options of go-redis, apart from those
// that edits change.
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

// NewClusterClient returns a client of a cluster, whose connections to a server go through its proxy if there are any.
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

// NewMiniredis returns a miniredis and a client of it. Its keys do not expire by themselves, so the clock of their
// expiry is moved on before each command: no key lives shorter than it should, counted from the call that set it.
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

// WithContextTimeout is what lets the store use the hooks of the client.
func WithContextTimeout(o *redis.Options) { o.ContextTimeoutEnabled = true }

// BeforeEach is a hook that is called before each command of a client, with its name; "" before a pipeline.
type BeforeEach func(command string)

// DialHook changes nothing.
func (BeforeEach) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook comes before a command.
func (before BeforeEach) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		before(cmd.Name())
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook comes before a pipeline.
func (before BeforeEach) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		before("")
		return next(ctx, cmds)
	}
}

// RedisKeys returns the names of all keys that begin with prefix.
func RedisKeys(t testing.TB, client redis.Cmdable, prefix string) []string {
	t.Helper()
	names, err := client.Keys(t.Context(), prefix+"*").Result()
	require.NoError(t, err)
	return names
}

// LargeBody does not pass through Lua.
var LargeBody = strings.Repeat("0123456789abcdef", 4<<10)

// Large returns an answer with that body.
func Large() idempotency.Response {
	return idempotency.Response{Status: http.StatusCreated, Body: []byte(LargeBody)}
}

// OnRealAndMiniredis runs a test on both.
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
