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

// refusedClients has the types of go-redis that cannot keep records, with the reason.
var refusedClients = map[reflect.Type]string{
	reflect.TypeFor[*redis.Ring]():     "it moves the keys of a server that does not respond to servers that do not have their records",
	reflect.TypeFor[*redis.Pipeline](): "it sends nothing until Exec is called",
	reflect.TypeFor[*redis.Conn]():     "it is one connection, and makes no other when this one breaks",
	reflect.TypeFor[*redis.Tx]():       "it is one connection, and makes no other when this one breaks",
}

// checkClient returns an error if given cannot keep records. The error wraps [errors.ErrUnsupported], unless given is nil.
func checkClient(given redis.Cmdable) error {
	const maxWrappers = 8 // bounds the search in a wrapper that refers to itself
	value := reflect.ValueOf(given)
	if !value.IsValid() || value.Kind() == reflect.Pointer && value.IsNil() {
		return fmt.Errorf("idempotency: Redis: the client is nil (%T)", given)
	}
	if refused := findRefused(value, maxWrappers); refused != nil {
		return fmt.Errorf("idempotency: Redis: a %v is refused, because %s: %w",
			refused, refusedClients[refused], errors.ErrUnsupported)
	}
	return nil
}

// findRefused returns the type of the refused client that client is, or that is in a field of the wrapper client. It returns
// nil if there is none. Only reflection sees the fields of wrappers that are written outside of this module. The search looks
// at nothing inside of a client of go-redis, because goroutines of the client may be changing it.
func findRefused(client reflect.Value, maxWrappers int) reflect.Type {
	for client.Kind() == reflect.Interface || client.Kind() == reflect.Pointer {
		if _, refused := refusedClients[client.Type()]; refused {
			return client.Type()
		}
		client = client.Elem()
	}
	if client.Kind() != reflect.Struct || maxWrappers == 0 || client.Type().PkgPath() == reflect.TypeFor[redis.Client]().PkgPath() {
		return nil
	}
	for _, field := range client.Fields() {
		if field.Kind() == reflect.Interface {
			field = field.Elem() // its own type may be smaller than redis.Cmdable
		}
		if !field.IsValid() || !field.Type().Implements(reflect.TypeFor[redis.Cmdable]()) {
			continue
		}
		if refused := findRefused(field, maxWrappers-1); refused != nil {
			return refused
		}
	}
	return nil
}

// withDeadlines returns a client that ends by the deadline of the context, if possible.
func withDeadlines(given redis.Cmdable) client {
	c, ok := given.(*redis.Client)
	if !ok || honorsDeadlines(c) {
		return withProcess(given)
	}
	own := c.WithTimeout(max(0, c.Options().ReadTimeout)) // same connections, options of its own, no hooks
	own.Options().WriteTimeout = max(0, c.Options().WriteTimeout)
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

// isPrompt reports whether a client ends by the deadline of the context. A timeout below zero (the user has set -2) switches off
// every deadline of a connection, also that of the context.
func honorsDeadlines(given redis.Cmdable) bool {
	switch c := given.(type) {
	case *redis.Client:
		o := c.Options()
		return o.ContextTimeoutEnabled && o.ReadTimeout >= 0 && o.WriteTimeout >= 0
	case *redis.ClusterClient:
		o := c.Options()
		return o.ContextTimeoutEnabled && o.ReadTimeout >= 0 && o.WriteTimeout >= 0
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
