package benchmark

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
)

// leastRedis claims a key with SET NX GET, and completes the record with a script. SET NX GET also returns a stored record.
type leastRedis struct{ client *redis.Client }

var leastComplete = redis.NewScript(`
if redis.call('GETRANGE', KEYS[1], 0, 16) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1`)

func (s leastRedis) claimKey(ctx context.Context, key string, c *leastCall) (leastState, error) {
	c.encodeClaim()
	cmd := s.client.SetArgs(ctx, key, c.encodedRecord, redis.SetArgs{Mode: "NX", Get: true, TTL: lease})
	record, err := cmd.Result()
	switch {
	case errors.Is(err, redis.Nil):
		return stateClaimed, nil
	case err != nil:
		return 0, err
	case record[leastOwnerSize:leastHeadSize] != string(c.fingerprint[:]):
		return stateReused, nil
	case record[0] == leastRunning:
		return stateRunning, nil
	}
	body := c.decodeAnswer(record[leastHeadSize:])
	raw, err := cmd.Bytes() // shares the memory of record
	c.storedAnswer.body = raw[len(raw)-len(body):]
	return stateDone, err
}

func (s leastRedis) completeRecord(ctx context.Context, key string, c *leastCall) error {
	owner := string(c.encodedRecord[:leastOwnerSize])
	c.encodeAnswer()
	n, err := leastComplete.EvalSha(ctx, s.client, []string{key}, owner, c.encodedRecord, ttl.Milliseconds()).Int()
	if err == nil && n == 0 {
		return errClaimLost
	}
	return err
}
