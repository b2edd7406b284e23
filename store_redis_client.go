package idempotency

import (
	"context"
	"fmt"
	"os"

	"github.com/redis/go-redis/v9"
)

// redisClient is what all clients of go-redis have.
type redisClient interface {
	redis.Cmdable
	Process(ctx context.Context, cmd redis.Cmder) error
}

// withDeadlines returns a client that ends by the deadline of the context, if possible.
func withDeadlines(client redis.Cmdable) redisClient {
	c, ok := client.(*redis.Client)
	if !ok || c.Options().ContextTimeoutEnabled {
		return withProcess(client)
	}
	own := c.WithTimeout(c.Options().ReadTimeout) // same connections, options of its own, no hooks
	own.Options().WriteTimeout = c.Options().WriteTimeout
	own.Options().ContextTimeoutEnabled = true
	own.Options().MaxRetries = 0
	return own
}

// withProcess returns a client that sends any command.
func withProcess(client redis.Cmdable) redisClient {
	if c, ok := client.(redisClient); ok {
		return c
	}
	return typedClient{client}
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
func isPrompt(client redis.Cmdable) bool {
	switch c := client.(type) {
	case *redis.Client:
		return c.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		return c.Options().ContextTimeoutEnabled
	case *redis.Ring:
		return c.Options().ContextTimeoutEnabled
	}
	return false
}

// errLate is a timeout, as that of a connection is.
var errLate = fmt.Errorf("the client did not answer in time: %w", os.ErrDeadlineExceeded)

// process sends a command once. It returns by the end of ctx, whatever the client does. Nobody reads a command that has
// failed: the client may still be about to.
func (s *RedisStore) process(ctx context.Context, name any, cmd redis.Cmder) error {
	if s.prompt {
		return s.sendError(ctx, name, s.client.Process(ctx, cmd))
	}
	return s.sendError(ctx, name, inTime(ctx, func() error {
		if err := s.client.Process(ctx, cmd); err != nil {
			return err
		}
		return cmd.Err() // waits, if the client sends it later
	}))
}

// exec is process for what is in a pipeline.
func (s *RedisStore) exec(ctx context.Context, name any, pipe redis.Pipeliner) error {
	send := func() error {
		_, err := pipe.Exec(ctx)
		return err
	}
	if s.prompt {
		return s.sendError(ctx, name, send())
	}
	return s.sendError(ctx, name, inTime(ctx, send))
}

// inTime returns what send does, or errLate at the end of ctx.
func inTime(ctx context.Context, send func() error) error {
	if err := ctx.Err(); err != nil {
		return err // before anything is sent that would be too late
	}
	sent := make(chan error, 1)
	go func() { sent <- send() }()
	select {
	case err := <-sent:
		return err
	case <-ctx.Done():
		return errLate
	}
}
