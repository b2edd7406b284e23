package redisconn

import (
	"context"
	"runtime"

	"github.com/redis/go-redis/v9"
)

// client is what all clients of go-redis have.
type client interface {
	redis.Cmdable
	Process(ctx context.Context, cmd redis.Cmder) error
}

// withDeadlines returns a client that ends by the deadline of the context, if possible.
func withDeadlines(given redis.Cmdable) client {
	c, ok := given.(*redis.Client)
	if !ok || c.Options().ContextTimeoutEnabled {
		return withProcess(given)
	}
	own := c.WithTimeout(c.Options().ReadTimeout) // same connections, options of its own, no hooks
	own.Options().WriteTimeout = c.Options().WriteTimeout
	own.Options().ContextTimeoutEnabled = true
	own.Options().MaxRetries = 0
	return own
}

// withProcess returns a client that sends any command.
func withProcess(given redis.Cmdable) client {
	if c, ok := given.(client); ok {
		return c
	}
	return typedClient{given}
}

// typedClient is a wrapper of a client, say, which has the typed commands alone.
type typedClient struct{ redis.Cmdable }

func (c typedClient) Process(ctx context.Context, cmd redis.Cmder) error {
	pipe := c.Pipeline()
	_ = pipe.Process(ctx, cmd) // never fails
	_, err := pipe.Exec(ctx)
	return err
}

// isPrompt reports whether a client ends by the deadline of the context.
func isPrompt(given redis.Cmdable) bool {
	switch c := given.(type) {
	case *redis.Client:
		return c.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		return c.Options().ContextTimeoutEnabled
	case *redis.Ring:
		return c.Options().ContextTimeoutEnabled
	}
	return false
}

// poolSize returns how many connections a client has at most to one server. One that does not tell is taken to have as many
// as go-redis gives it by default.
func poolSize(given redis.Cmdable) int64 {
	switch c := given.(type) {
	case *redis.Client:
		return int64(c.Options().PoolSize)
	case *redis.ClusterClient:
		return int64(c.Options().PoolSize)
	case *redis.Ring:
		return int64(c.Options().PoolSize)
	}
	return 10 * int64(runtime.GOMAXPROCS(0))
}
