package redisconn

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"

	"github.com/redis/go-redis/v9"
)

// commandClient is the common interface of the clients of go-redis.
type commandClient interface {
	redis.Cmdable
	Process(ctx context.Context, cmd redis.Cmder) error
}

// refusedClients has the types of go-redis that cannot keep records, with the reasons.
var refusedClients = map[reflect.Type]string{
	reflect.TypeFor[*redis.Ring]():     "a Ring moves the keys of a server that is down to servers without their records",
	reflect.TypeFor[*redis.Pipeline](): "a Pipeline sends nothing before Exec is called",
	reflect.TypeFor[*redis.Conn]():     "its only connection is not replaced after a failure",
	reflect.TypeFor[*redis.Tx]():       "its only connection is not replaced after a failure",
}

// checkClient returns an error if given cannot keep records. The error wraps [errors.ErrUnsupported], unless given is
// nil.
func checkClient(given redis.Cmdable) error {
	value := reflect.ValueOf(given)
	if !value.IsValid() || value.Kind() == reflect.Pointer && value.IsNil() {
		return fmt.Errorf("idempotency: Redis: the client is nil (%T)", given)
	}
	if refused := findClient(value, isRefused, maxWrappers); refused != nil {
		return fmt.Errorf("idempotency: Redis: a %v is refused, because %s: %w",
			refused, refusedClients[refused], errors.ErrUnsupported)
	}
	return nil
}

func isRefused(client reflect.Type) bool { return refusedClients[client] != "" }

// IsCluster reports whether given is a client of a Cluster, or wraps one.
func IsCluster(given redis.Cmdable) bool {
	isCluster := func(client reflect.Type) bool { return client == reflect.TypeFor[*redis.ClusterClient]() }
	return given != nil && findClient(reflect.ValueOf(given), isCluster, maxWrappers) != nil
}

// maxWrappers ends the search in a wrapper that contains itself.
const maxWrappers = 8

// findClient returns the type that is wanted: the type of client, or of a client in the fields of the wrapper client. The
// result is nil if no type is wanted. findClient uses reflection, because the wrapper may be a type of another module.
// The search leaves out the fields of clients of go-redis, because their goroutines may be changing the fields.
func findClient(client reflect.Value, isWanted func(reflect.Type) bool, maxWrappers int) reflect.Type {
	for client.Kind() == reflect.Interface || client.Kind() == reflect.Pointer {
		if isWanted(client.Type()) {
			return client.Type()
		}
		client = client.Elem()
	}
	if client.Kind() != reflect.Struct || maxWrappers == 0 ||
		client.Type().PkgPath() == reflect.TypeFor[redis.Client]().PkgPath() {
		return nil
	}
	for _, field := range client.Fields() {
		if field.Kind() == reflect.Interface {
			field = field.Elem() // the interface may be smaller than redis.Cmdable
		}
		if !field.IsValid() || !field.Type().Implements(reflect.TypeFor[redis.Cmdable]()) {
			continue
		}
		if found := findClient(field, isWanted, maxWrappers-1); found != nil {
			return found
		}
	}
	return nil
}

// withDeadlines returns a client that ends each command by the deadline of its context, if go-redis allows a copy
// with this option.
func withDeadlines(given redis.Cmdable) commandClient {
	c, ok := given.(*redis.Client)
	if !ok || honorsDeadlines(c) {
		return withProcess(given)
	}
	clone := c.WithTimeout(max(0, c.Options().ReadTimeout)) // with the same connections, its own options and no hooks
	clone.Options().WriteTimeout = max(0, c.Options().WriteTimeout)
	clone.Options().ContextTimeoutEnabled = true
	clone.Options().MaxRetries = 0
	return clone
}

// withProcess returns a client with the method Process, which sends any command.
func withProcess(given redis.Cmdable) commandClient {
	if c, ok := given.(commandClient); ok {
		return c
	}
	return typedClient{given}
}

// typedClient adds Process to a client without it, for example a wrapper that embeds redis.Cmdable.
type typedClient struct{ redis.Cmdable }

func (c typedClient) Process(ctx context.Context, cmd redis.Cmder) error {
	pipe := c.Pipeline()
	_ = pipe.Process(ctx, cmd) // never fails
	_, err := pipe.Exec(ctx)
	return err
}

// honorsDeadlines reports whether given ends each command by the deadline of its context. A timeout below zero (-2 in
// the options) switches off all deadlines of a connection, also the deadline of the context.
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

// poolSize returns the maximum number of connections of given to one server. For a client that does not tell,
// poolSize returns the default of go-redis.
func poolSize(given redis.Cmdable) int64 {
	switch c := given.(type) {
	case *redis.Client:
		return int64(c.Options().PoolSize)
	case *redis.ClusterClient:
		return int64(c.Options().PoolSize)
	}
	return 10 * int64(runtime.GOMAXPROCS(0))
}
