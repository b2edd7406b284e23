package idempotency

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/redis/go-redis/v9"
)

// sendError returns the error of a command to the key of that name. It wraps ErrStoreBusy if the last try had no
// connection to send it on. The client may have tried before by itself.
func (s *RedisStore) sendError(ctx context.Context, name any, err error) error {
	if err == nil || !isPoolWait(err) || !s.isConnected(ctx, name, err) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrStoreBusy, err)
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
