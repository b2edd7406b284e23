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

// Errors are the sentinels that the errors of a [Conn] wrap, so that the caller recognises the kind of failure.
type Errors struct {
	Busy    error // no connection was free in time, although the server may be well
	Full    error // the server has no memory for the value
	Foreign error // the key holds a value of another type
}

// wrapError returns the error of a step for the caller.
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

// errNoReplyInTime is a timeout error, like the timeout of a connection.
var errNoReplyInTime = fmt.Errorf("the client did not answer in time: %w", os.ErrDeadlineExceeded)

// errTooFewReplicas reports that the server has executed a step, but a failover may lose the effect. A repetition of
// the step asks the replicas again.
var errTooFewReplicas = errors.New("too few replicas have the answer")

// isAnswer reports whether err is an answer of the server.
func isAnswer(err error) bool {
	_, ok := errors.AsType[redis.Error](err)
	return ok
}

func isWrongType(err error) bool { return strings.Contains(err.Error(), "WRONGTYPE") }

// IsSlotMoving reports whether the server refused a script because its slot is moving to another server, so that the
// keys of the script may be on two servers.
func IsSlotMoving(err error) bool { return redis.HasErrorPrefix(err, "TRYAGAIN") }

// isTimeout reports whether a step has timed out. A timeout of a dial is excluded, because a server that accepts
// no connection is down.
func isTimeout(err error) bool {
	if network, ok := errors.AsType[*net.OpError](err); ok && network.Op == "dial" {
		return false
	}
	late, ok := errors.AsType[net.Error](err)
	return ok && late.Timeout() || isPoolTimeout(err)
}

// isPoolWait reports whether a command that failed with err may have waited in vain for a free connection. If the
// context ends during the wait, go-redis returns only the error of the context, as during a dial.
func isPoolWait(err error) bool {
	if _, dialed := errors.AsType[*net.OpError](err); dialed { // a timeout of a dial is a context.DeadlineExceeded, too
		return false
	}
	return isPoolTimeout(err) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

func isPoolTimeout(err error) bool {
	return errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted)
}

// isConnected reports whether the client has connections to the server of key. A client without connections has
// failed to open one. If the client does not show its pool, isConnected judges by err.
func (c *Conn) isConnected(ctx context.Context, key any, err error) bool {
	server := c.client
	if cluster, ok := server.(*redis.ClusterClient); ok {
		node, err := cluster.MasterForKey(ctx, key.(string)) // sends nothing once the client knows the slots
		if err != nil {
			return false
		}
		server = node
	}
	if pool, ok := server.(interface{ PoolStats() *redis.PoolStats }); ok {
		return pool.PoolStats().TotalConns > 0
	}
	return isPoolTimeout(err)
}
