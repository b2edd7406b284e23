package benchmark

import (
	"context"
	"encoding/binary"
	"errors"

	"github.com/redis/go-redis/v9"
)

// leastRedis claims by SET NX GET, which also returns the record that is there, and completes by a script of three
// commands.
//
// A record is a state, a token, a fingerprint and, once there is an answer, its status, the number of its fields, each
// of them behind two lengths, and its body.
type leastRedis struct{ client *redis.Client }

const (
	leastRunning, leastDone = 'R', 'D'

	leastOwner = 1 + 16          // bytes of state and token
	leastHead  = leastOwner + 32 // and of the fingerprint
)

var leastComplete = redis.NewScript(`
if redis.call('GETRANGE', KEYS[1], 0, 16) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1`)

func (s leastRedis) claim(ctx context.Context, key string, c *leastCall) (leastState, error) {
	c.record = append(append(append(c.record[:0], leastRunning), c.token[:]...), c.fingerprint[:]...)
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

// decode reads the head of an answer, puts its fields where they are to be sent, and returns what is behind.
func (c *leastCall) decode(s string) (rest string) {
	h := c.w.Header()
	c.found.status = int(s[0])<<8 | int(s[1])
	values := make([]string, s[2])
	s = s[3:]
	for i := range values {
		name, value := int(s[0]), int(s[1])<<8|int(s[2])
		s = s[3:]
		values[i] = s[name:][:value]
		h[s[:name]] = values[i : i+1 : i+1]
		s = s[name+value:]
	}
	return s
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

// encode appends the answer to the head of the record.
func (c *leastCall) encode() {
	c.record[0] = leastDone
	p := binary.BigEndian.AppendUint16(c.record, uint16(c.made.status))
	p = append(p, byte(len(c.made.fields)))
	for _, field := range c.made.fields {
		p = append(p, byte(len(field.name)))
		p = binary.BigEndian.AppendUint16(p, uint16(len(field.values[0])))
		p = append(append(p, field.name...), field.values[0]...)
	}
	c.record = append(p, c.made.body...)
}
