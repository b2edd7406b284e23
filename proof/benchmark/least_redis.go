package benchmark

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
)

// leastRedis claims by SET NX GET, which also returns the record that is there, and completes by a script of three
// commands.
type leastRedis struct{ client *redis.Client }

var leastComplete = redis.NewScript(`
if redis.call('GETRANGE', KEYS[1], 0, 16) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1`)

func (s leastRedis) claim(ctx context.Context, key string, c *leastCall) (leastState, error) {
	c.begin()
	cmd := s.client.SetArgs(ctx, key, c.record, redis.SetArgs{Mode: "NX", Get: true, TTL: lease})
	record, err := cmd.Result()
	switch {
	case errors.Is(err, redis.Nil):
		return claimed, nil
	case err != nil:
		return 0, err
	case record[leastOwner:leastHead] != string(c.fingerprint[:]):
		return reused, nil
	case record[0] == leastRunning:
		return running, nil
	}
	rest := c.decode(record[leastHead:])
	raw, err := cmd.Bytes() // the same memory
	c.found.body = raw[len(raw)-len(rest):]
	return done, err
}

func (s leastRedis) complete(ctx context.Context, key string, c *leastCall) error {
	owner := string(c.record[:leastOwner])
	c.encode()
	n, err := leastComplete.EvalSha(ctx, s.client, []string{key}, owner, c.record, ttl.Milliseconds()).Int()
	if err == nil && n == 0 {
		return errLost
	}
	return err
}
