package redisconn

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// checkReplicas refuses a client that may send WAIT to another server, or over another connection, than the write
// before it.
func checkReplicas(given redis.Cmdable, replicas int) error {
	switch given.(type) {
	case *redis.Client, *redis.ClusterClient:
		if replicas >= 0 {
			return nil
		}
	default:
		if replicas == 0 {
			return nil
		}
	}
	return fmt.Errorf("idempotency: RedisOptions.Replicas is %d with a %T: Replicas must not be negative, "+
		"and must be 0 unless the client is a *redis.Client or a *redis.ClusterClient", replicas, given)
}

// sendAfter sends the command args after the command first (unless first is nil), and WAIT after both if the Conn
// has replicas. All commands go to one server in one round trip.
func (c *Conn) sendAfter(ctx context.Context, key any, first redis.Cmder, args []any) (reply string, err error) {
	node, err := c.nodeForKey(ctx, key)
	if err != nil {
		return "", err
	}
	pipe, cmd := node.Pipeline(), redis.NewStringCmd(ctx, args...)
	if first != nil {
		_ = pipe.Process(ctx, first) // never fails
	}
	_ = pipe.Process(ctx, cmd)
	err = c.execCopied(ctx, key, node, pipe)
	moved := redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK")
	if c.replicaCount > 0 && moved { // the client of the whole Cluster follows the redirection
		if _, err = c.sendCommand(ctx, key, args); err == nil {
			err = errTooFewReplicas
		}
	}
	if err != nil {
		return "", err
	}
	return cmd.Val(), nil
}

// nodeForKey returns the client of the server that has key, if the Conn has replicas. WAIT has no key from which a
// Cluster client could choose the server.
func (c *Conn) nodeForKey(ctx context.Context, key any) (redis.Cmdable, error) {
	if cluster, ok := c.client.(*redis.ClusterClient); ok && c.replicaCount > 0 {
		return cluster.MasterForKey(ctx, key.(string))
	}
	return c.client, nil
}

// execCopied is like execPipeline with a WAIT at the end. A WAIT occupies a connection until enough replicas have the
// write, so WAIT may occupy at most half of the pool. Beyond that, execCopied sends the pipeline without WAIT and
// returns errTooFewReplicas at once, so that the caller asks again.
func (c *Conn) execCopied(ctx context.Context, key any, node redis.Cmdable, pipe redis.Pipeliner) error {
	if c.replicaCount == 0 {
		return c.execPipeline(ctx, key, pipe)
	}
	select {
	case c.waitSlots <- struct{}{}:
		defer func() { <-c.waitSlots }()
	default:
		return cmp.Or(c.execPipeline(ctx, key, pipe), errTooFewReplicas)
	}
	wait := redis.NewIntCmd(ctx, "wait", c.replicaCount, waitTimeout(ctx, node.(*redis.Client)).Milliseconds())
	_ = pipe.Process(ctx, wait)
	err := c.execPipeline(ctx, key, pipe)
	if err == nil && wait.Val() < int64(c.replicaCount) {
		err = errTooFewReplicas
	}
	return err
}

// waitTimeout returns how long the server may wait for its replicas. The timeout leaves time for the reply, and for a
// second try, which finds the new master after a failover.
func waitTimeout(ctx context.Context, node *redis.Client) time.Duration {
	timeout := time.Second
	if deadline, ok := ctx.Deadline(); ok {
		timeout = time.Until(deadline) / 2
	}
	if read := node.Options().ReadTimeout; read > 0 {
		timeout = min(timeout, read/2)
	}
	return max(timeout, time.Millisecond)
}
