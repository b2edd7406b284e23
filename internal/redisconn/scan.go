package redisconn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Seen is what one moment has shown of a key.
type Seen struct {
	Start  []byte // of the value, or all of it; nothing, if the value is no string
	Size   int64  // of the whole value
	Expiry time.Duration
	Hash   map[string]string // what is in a hash that belongs to the key
}

// What PTTL says of a key that has no expiry, and of none.
const (
	Eternal time.Duration = -1
	Missing time.Duration = -2
)

// Look reads all that is under a key, and a hash, at one moment: a transaction does it, because a script would copy a large
// value. While a slot moves, it reads the hash a moment earlier. If there is nothing under the key, the expiry is Missing.
func (c *Conn) Look(ctx context.Context, key, hash string) (seen Seen, err error) {
	_, err = c.again(ctx, func() error {
		pipe := c.client.TxPipeline()
		fields := pipe.HGetAll(ctx, hash)
		seen, err = c.look(ctx, key, pipe)
		if IsSlotMoving(err) {
			apart := c.client.TxPipeline() // a Pipeline that only reads may go to a replica
			fields = apart.HGetAll(ctx, hash)
			if err := c.exec(ctx, key, apart); err != nil {
				return err
			}
			seen, err = c.look(ctx, key, c.client.TxPipeline())
		}
		seen.Hash = fields.Val()
		return err
	})
	if errors.Is(err, redis.Nil) {
		return Seen{Expiry: Missing}, nil
	}
	return seen, err
}

// look ends a transaction by what reads a key.
func (c *Conn) look(ctx context.Context, key string, pipe redis.Pipeliner) (Seen, error) {
	value, expiry := pipe.Get(ctx, key), pipe.PTTL(ctx, key)
	if err := c.exec(ctx, key, pipe); err != nil {
		return Seen{}, err
	}
	start, err := value.Bytes()
	return Seen{Start: start, Size: int64(len(start)), Expiry: expiry.Val()}, err
}

// Literal returns a pattern that matches text, and nothing else.
func Literal(text string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`).Replace(text)
}

// Scan goes through the names of all keys that match a pattern, by SCAN. Of those that pick returns, it shows what is
// there: as many bytes of the value, and all else. It ends when pick reports that there is to be no more. SCAN may tell a
// name again, and so may another server that has taken over its slot. One of the two functions is called at a time.
func (c *Conn) Scan(
	ctx context.Context, pattern string, bytes int64, pick func(names []string) (some []string, more bool), show func(string, Seen),
) error {
	s := &scan{Conn: c, pattern: pattern, bytes: bytes, pick: pick, show: show}
	var mu sync.Mutex
	each := func(ctx context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		return s.node(ctx, withDeadlines(node))
	}
	if cluster, ok := c.client.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, each)
	}
	if c.isInCluster(ctx) {
		return fmt.Errorf("idempotency: list: a Cluster needs a *redis.ClusterClient: %w", errors.ErrUnsupported)
	}
	return s.node(ctx, c.client)
}

// isInCluster reports whether the server says so.
func (c *Conn) isInCluster(ctx context.Context) bool {
	var info string
	err := c.ask(ctx, c.client, func() (err error) {
		info, err = c.client.Info(ctx, "cluster").Result()
		return err
	})
	return err == nil && strings.Contains(info, "cluster_enabled:1")
}

// ask is again for one of the servers. Nobody reads what a failed step was to find: the client may still be about to.
func (c *Conn) ask(ctx context.Context, node client, step func() error) error {
	_, err := c.again(ctx, func() error {
		if isPrompt(node) {
			return step()
		}
		return inTime(ctx, step)
	})
	return err
}

// scan goes through the keys of all servers.
type scan struct {
	*Conn
	pattern string
	bytes   int64
	pick    func([]string) ([]string, bool)
	show    func(string, Seen)
}

// node goes through the keys of one server.
func (s *scan) node(ctx context.Context, node client) error {
	for cursor, more := uint64(0), true; more; {
		var names []string
		var next uint64
		err := s.ask(ctx, node, func() (err error) {
			names, next, err = node.Scan(ctx, cursor, s.pattern, 1000).Result()
			return err
		})
		if err != nil {
			return err
		}
		cursor = next
		names, more = s.pick(names)
		more = more && cursor != 0
		for some := range slices.Chunk(names, 100) { // a transaction of more would keep others waiting
			if err := s.showAll(ctx, node, some); err != nil {
				return err
			}
		}
	}
	return nil
}

// showAll shows what is under some keys of a server.
func (s *scan) showAll(ctx context.Context, node client, names []string) error {
	seen, err := s.read(ctx, node, names)
	if isAnswer(err) { // a slot is moving, say: the client of the whole Cluster follows
		return s.showEach(ctx, names)
	}
	if err != nil {
		return err
	}
	for i, name := range names {
		s.show(name, seen[i])
	}
	return nil
}

// showEach is showAll for keys that must be asked for one by one.
func (s *scan) showEach(ctx context.Context, names []string) error {
	for _, name := range names {
		seen, err := s.read(ctx, s.client, []string{name})
		if err != nil {
			return err
		}
		s.show(name, seen[0])
	}
	return nil
}

// read reads what is under some keys in one transaction.
func (s *scan) read(ctx context.Context, node client, names []string) ([]Seen, error) {
	var seen []Seen
	err := s.ask(ctx, node, func() error {
		pipe := node.TxPipeline()
		show := make([]func() Seen, len(names))
		for i, name := range names {
			start, size, expiry := pipe.GetRange(ctx, name, 0, s.bytes-1), pipe.StrLen(ctx, name), pipe.PTTL(ctx, name)
			show[i] = func() Seen { return Seen{[]byte(start.Val()), size.Val(), expiry.Val(), nil} }
		}
		if _, err := pipe.Exec(ctx); err != nil && !isForeign(err) {
			return err
		}
		seen = make([]Seen, len(names))
		for i := range names {
			seen[i] = show[i]()
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return seen, nil
}
