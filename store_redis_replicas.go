package idempotency

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// errNotCopied says that an answer is stored, but may be lost with the server that has it. To complete again asks again.
var errNotCopied = errors.New("too few replicas have the answer")

// checkReplicas refuses clients that may send WAIT to another server, or on another connection, than what it waits for.
func checkReplicas(client redis.Cmdable, replicas int) error {
	switch client.(type) {
	case *redis.Client, *redis.ClusterClient:
		if replicas >= 0 {
			return nil
		}
	default:
		if replicas == 0 {
			return nil
		}
	}
	return fmt.Errorf("idempotency: RedisOptions.Replicas %d: it is 0 or more, and 0 with a %T", replicas, client)
}

// sendCopied is send for a command that completes a record. It fails unless as many replicas as are asked for have it.
func (s *RedisStore) sendCopied(ctx context.Context, name any, args []any) (reply string, err error) {
	if s.replicas == 0 {
		return s.send(ctx, name, args)
	}
	return s.sendBehind(ctx, name, nil, args)
}

// sendBehind sends a command that completes a record, behind another one, if there is one, and before a WAIT, if replicas
// are to have it. All go to one server in one round trip.
func (s *RedisStore) sendBehind(ctx context.Context, name any, first redis.Cmder, args []any) (reply string, err error) {
	node, patience, err := s.node(ctx, name)
	if err != nil {
		return "", err
	}
	pipe, cmd := node.Pipeline(), redis.NewStringCmd(ctx, args...)
	if first != nil {
		_ = pipe.Process(ctx, first) // never fails
	}
	_ = pipe.Process(ctx, cmd)
	if s.replicas == 0 {
		err = s.exec(ctx, name, pipe)
	} else {
		err = s.execCopied(ctx, name, pipe, patience)
	}
	moved := redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK")
	if s.replicas > 0 && moved { // the client of the whole Cluster follows
		if _, err = s.send(ctx, name, args); err == nil {
			err = errNotCopied
		}
	}
	if err != nil {
		return "", err
	}
	return cmd.Val(), nil
}

// execCopied is exec with a WAIT at the end. A WAIT holds a connection until there are enough replicas, so no more than half
// of the pool may do so. What comes beyond is told at once that it has to ask again.
func (s *RedisStore) execCopied(ctx context.Context, name any, pipe redis.Pipeliner, patience time.Duration) error {
	select {
	case s.waits <- struct{}{}:
		defer func() { <-s.waits }()
	default:
		return cmp.Or(s.exec(ctx, name, pipe), errNotCopied)
	}
	wait := redis.NewIntCmd(ctx, "wait", s.replicas, patience.Milliseconds())
	_ = pipe.Process(ctx, wait)
	err := s.exec(ctx, name, pipe)
	if err == nil && wait.Val() < int64(s.replicas) {
		err = errNotCopied
	}
	return err
}

// node returns a client of the server that has the key of that name, for WAIT has no key by which a Cluster could tell. It
// also returns how long the server may wait for its replicas: there is to be time left for its reply, and for another try,
// which finds the new master after a failover.
func (s *RedisStore) node(ctx context.Context, name any) (redis.Cmdable, time.Duration, error) {
	if s.replicas == 0 {
		return s.client, 0, nil
	}
	node, ok := s.client.(*redis.Client)
	if cluster, is := s.client.(*redis.ClusterClient); !ok && is {
		var err error
		if node, err = cluster.MasterForKey(ctx, name.(string)); err != nil {
			return nil, 0, err
		}
	}
	patience := time.Second
	if deadline, ok := ctx.Deadline(); ok {
		patience = time.Until(deadline) / 2
	}
	if read := node.Options().ReadTimeout; read > 0 {
		patience = min(patience, read/2)
	}
	return node, max(patience, time.Millisecond), nil
}
