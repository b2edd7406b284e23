package idempotency

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"time"

	"github.com/redis/go-redis/v9"
)

// sendError returns the error of a command to the key of that name. It wraps ErrStoreBusy if the last try had no
// connection to send it on. The client may have tried before by itself.
func (s *RedisStore) sendError(ctx context.Context, name any, err error) error {
	if err == nil || !isPoolWait(err) || !s.isConnected(ctx, name, err) {
		return err
	}
	return storeBusy(err)
}

// wasUp reports whether the server has replied within the last minute. While a pool is crowded by far, nobody may have a reply
// in time for a while.
func (s *RedisStore) wasUp() bool {
	last := s.replied.Load()
	return last > 0 && time.Since(s.made)-time.Duration(last) < time.Minute
}

func storeBusy(err error) error { return fmt.Errorf("%w: %w", ErrStoreBusy, err) }

// poolSize returns how many connections a client has at most to one server. One that does not tell is taken to have as many
// as go-redis gives it by default.
func poolSize(client redis.Cmdable) int64 {
	switch c := client.(type) {
	case *redis.Client:
		return int64(c.Options().PoolSize)
	case *redis.ClusterClient:
		return int64(c.Options().PoolSize)
	case *redis.Ring:
		return int64(c.Options().PoolSize)
	}
	return 10 * int64(runtime.GOMAXPROCS(0))
}

// isTimeout reports whether a step has run out of time, other than by opening a connection: a server to which none can be
// opened is down.
func isTimeout(err error) bool {
	if network, ok := errors.AsType[*net.OpError](err); ok && network.Op == "dial" {
		return false
	}
	late, ok := errors.AsType[net.Error](err)
	return ok && late.Timeout() || isPoolTimeout(err)
}

// isPoolWait reports whether a command that failed with err may have waited for a connection in vain. If the context
// ends meanwhile, go-redis returns nothing but its error, and does the same while it dials.
func isPoolWait(err error) bool {
	if _, dialed := errors.AsType[*net.OpError](err); dialed { // whose timeouts are a context.DeadlineExceeded, too
		return false
	}
	return isPoolTimeout(err) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

func isPoolTimeout(err error) bool {
	return errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted)
}

// isConnected reports whether the client has connections to the server of that key. Without any, what has failed is to
// open one. Of a client that does not show its pool, err alone tells.
func (s *RedisStore) isConnected(ctx context.Context, name any, err error) bool {
	client := s.client
	if cluster, ok := client.(*redis.ClusterClient); ok {
		node, err := cluster.MasterForKey(ctx, name.(string)) // asks nobody, once the slots are known
		if err != nil {
			return false
		}
		client = node
	}
	if c, ok := client.(interface{ PoolStats() *redis.PoolStats }); ok {
		return c.PoolStats().TotalConns > 0
	}
	return isPoolTimeout(err)
}
