package redisconn

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// checkReplicas refuses clients that may send WAIT to another server, or on another connection, than what it waits for.
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
	return fmt.Errorf("idempotency: RedisOptions.Replicas %d: it is 0 or more, and 0 with a %T", replicas, given)
}

// sendBehind sends a command whose effect is to be copied, behind another one, if there is one, and before a WAIT, if
// replicas are to have it. All go to one server in one round trip.
func (c *Conn) sendBehind(ctx context.Context, key any, first redis.Cmder, args []any) (reply string, err error) {
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
	if c.replicaCount > 0 && moved { // the client of the whole Cluster follows
		if _, err = c.sendCommand(ctx, key, args); err == nil {
			err = errTooFewReplicas
		}
	}
	if err != nil {
		return "", err
	}
	return cmd.Val(), nil
}

// node returns a client of the server that has the key, if replicas are to have it too: WAIT has no key by which a Cluster
// could tell where it goes.
func (c *Conn) nodeForKey(ctx context.Context, key any) (redis.Cmdable, error) {
	if cluster, ok := c.client.(*redis.ClusterClient); ok && c.replicaCount > 0 {
		return cluster.MasterForKey(ctx, key.(string))
	}
	return c.client, nil
}

// execCopied is exec with a WAIT at the end. A WAIT holds a connection until there are enough replicas, so no more than half
// of the pool may do so. What comes beyond is told at once that it has to ask again.
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

// patience returns how long a server may wait for its replicas: there is to be time left for its reply, and for another
// try, which finds the new master after a failover.
func waitTimeout(ctx context.Context, node *redis.Client) time.Duration {
	patience := time.Second
	if deadline, ok := ctx.Deadline(); ok {
		patience = time.Until(deadline) / 2
	}
	if read := node.Options().ReadTimeout; read > 0 {
		patience = min(patience, read/2)
	}
	return max(patience, time.Millisecond)
}
