package redisconn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Errors are what the errors of a [Conn] wrap, so that its user knows them.
type Errors struct {
	Busy    error // no connection was free in time: the server may be well
	Full    error // the server has no memory for it
	Foreign error // there is something of another type under the key
}

// of returns the error of a step.
func (e Errors) wrapError(err error) error {
	switch {
	case errors.Is(err, e.Busy):
		return err
	case isWrongType(err):
		return fmt.Errorf("%w: %w", e.Foreign, err)
	case strings.Contains(err.Error(), "OOM command not allowed"):
		return fmt.Errorf("%w: %w", e.Full, err)
	default:
		return fmt.Errorf("idempotency: Redis: %w", err)
	}
}

func (e Errors) wrapBusy(err error) error { return fmt.Errorf("%w: %w", e.Busy, err) }

// errLate is a timeout, as that of a connection is.
var errNoReplyInTime = fmt.Errorf("the client did not answer in time: %w", os.ErrDeadlineExceeded)

// errNotCopied says that a step was taken, but may be lost with the server that has taken it. To repeat it asks again.
var errTooFewReplicas = errors.New("too few replicas have the answer")

// isAnswer reports whether err is what the server has answered.
func isAnswer(err error) bool {
	_, ok := errors.AsType[redis.Error](err)
	return ok
}

func isWrongType(err error) bool { return strings.Contains(err.Error(), "WRONGTYPE") }

// IsSlotMoving reports whether err says that a slot is on its way to another server. Until it is there, a script gets at
// no two keys of it.
func IsSlotMoving(err error) bool { return redis.HasErrorPrefix(err, "TRYAGAIN") }

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
func (c *Conn) isConnected(ctx context.Context, key any, err error) bool {
	asked := c.client
	if cluster, ok := asked.(*redis.ClusterClient); ok {
		node, err := cluster.MasterForKey(ctx, key.(string)) // asks nobody, once the slots are known
		if err != nil {
			return false
		}
		asked = node
	}
	if pool, ok := asked.(interface{ PoolStats() *redis.PoolStats }); ok {
		return pool.PoolStats().TotalConns > 0
	}
	return isPoolTimeout(err)
}
