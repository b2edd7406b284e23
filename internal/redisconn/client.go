package redisconn

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"

	"github.com/redis/go-redis/v9"
)

// client is what all clients of go-redis have.
type client interface {
	redis.Cmdable
	Process(ctx context.Context, cmd redis.Cmder) error
}

// checkClient refuses a client that cannot keep records.
//
// A *redis.Ring moves the keys of a server that does not respond to the other servers, which do not have the records: completed
// operations would run again. A redis.Pipeliner only queues commands, so no record would ever be written.
func checkClient(given redis.Cmdable) error {
	const maxWrappers = 4 // bounds the search in a client that refers to itself
	if _, queues := given.(redis.Pipeliner); queues {
		return fmt.Errorf("idempotency: Redis: a %T (redis.Pipeliner) sends nothing by itself: %w", given, errors.ErrUnsupported)
	}
	if holdsRing(reflect.ValueOf(given), maxWrappers) {
		return fmt.Errorf("idempotency: Redis: a *redis.Ring moves keys to servers that do not have their records: %w",
			errors.ErrUnsupported)
	}
	return nil
}

// holdsRing reports whether client is a *redis.Ring, or a wrapper with a field that holds one, through at most maxWrappers
// wrappers. Only reflection sees the field of a wrapper that some service has written.
func holdsRing(client reflect.Value, maxWrappers int) bool {
	for client.Kind() == reflect.Interface || client.Kind() == reflect.Pointer {
		if client.Type() == reflect.TypeFor[*redis.Ring]() {
			return true
		}
		client = client.Elem()
	}
	if client.Kind() != reflect.Struct || maxWrappers == 0 {
		return false
	}
	for _, field := range client.Fields() {
		if holdsRing(field, maxWrappers-1) {
			return true
		}
	}
	return false
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
	}
	return 10 * int64(runtime.GOMAXPROCS(0))
}
