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

// Snapshot is what one moment has shown of a key.
type Snapshot struct {
	Start  []byte // of the value, or all of it; nothing, if the value is no string
	Size   int64  // of the whole value
	Expiry time.Duration
	Hash   map[string]string // what is in a hash that belongs to the key
}

// What PTTL says of a key that has no expiry, and of none.
const (
	NoExpiry time.Duration = -1
	NoKey    time.Duration = -2
)

// Look reads all that is under a key, and a hash, at one moment: a transaction does it, because a script would copy a large
// value. While a slot moves, it reads the hash a moment earlier. If there is nothing under the key, the expiry is NoKey.
func (c *Conn) ReadSnapshot(ctx context.Context, key, hash string) (seen Snapshot, err error) {
	_, err = c.retryStep(ctx, func() error {
		pipe := c.client.TxPipeline()
		fields := pipe.HGetAll(ctx, hash)
		seen, err = c.execRead(ctx, key, pipe)
		if IsSlotMoving(err) {
			apart := c.client.TxPipeline() // a Pipeline that only reads may go to a replica
			fields = apart.HGetAll(ctx, hash)
			if err := c.execPipeline(ctx, key, apart); err != nil {
				return err
			}
			seen, err = c.execRead(ctx, key, c.client.TxPipeline())
		}
		seen.Hash = fields.Val()
		return err
	})
	if errors.Is(err, redis.Nil) {
		return Snapshot{Expiry: NoKey}, nil
	}
	return seen, err
}

// look ends a transaction by what reads a key.
func (c *Conn) execRead(ctx context.Context, key string, pipe redis.Pipeliner) (Snapshot, error) {
	value, expiry := pipe.Get(ctx, key), pipe.PTTL(ctx, key)
	if err := c.execPipeline(ctx, key, pipe); err != nil {
		return Snapshot{}, err
	}
	start, err := value.Bytes()
	return Snapshot{Start: start, Size: int64(len(start)), Expiry: expiry.Val()}, err
}

// Literal returns a pattern that matches text, and nothing else.
func Literal(text string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`).Replace(text)
}

// Scan goes through the names of all keys that match a pattern, by SCAN. Of those that pick returns, it shows what is
// there: as many bytes of the value, and all else. It ends when pick reports that there is to be no more. SCAN may tell a
// name again, and so may another server that has taken over its slot. One of the two functions is called at a time.
func (c *Conn) Scan(
	ctx context.Context, pattern string, bytes int64, pick func(names []string) (some []string, more bool), show func(string, Snapshot),
) error {
	s := &keyScan{Conn: c, pattern: pattern, startSize: bytes, pickNames: pick, visitKey: show}
	var mu sync.Mutex
	each := func(ctx context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		return s.scanNode(ctx, withDeadlines(node))
	}
	if cluster, ok := c.client.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, each)
	}
	if c.isInCluster(ctx) {
		return fmt.Errorf("idempotency: list: a Cluster needs a *redis.ClusterClient: %w", errors.ErrUnsupported)
	}
	return s.scanNode(ctx, c.client)
}

// isInCluster reports whether the server says so.
func (c *Conn) isInCluster(ctx context.Context) bool {
	var info string
	err := c.askNode(ctx, c.client, func() (err error) {
		info, err = c.client.Info(ctx, "cluster").Result()
		return err
	})
	return err == nil && strings.Contains(info, "cluster_enabled:1")
}

// ask is again for one of the servers. Nobody reads what a failed step was to find: the client may still be about to.
func (c *Conn) askNode(ctx context.Context, node client, step func() error) error {
	_, err := c.retryStep(ctx, func() error {
		if honorsDeadlines(node) {
			return step()
		}
		return runUntilDone(ctx, step)
	})
	return err
}

// scan goes through the keys of all servers.
type keyScan struct {
	*Conn
	pattern   string
	startSize int64
	pickNames func([]string) ([]string, bool)
	visitKey  func(string, Snapshot)
}

// node goes through the keys of one server.
func (s *keyScan) scanNode(ctx context.Context, node client) error {
	for cursor, more := uint64(0), true; more; {
		var names []string
		var next uint64
		err := s.askNode(ctx, node, func() (err error) {
			names, next, err = node.Scan(ctx, cursor, s.pattern, 1000).Result()
			return err
		})
		if err != nil {
			return err
		}
		cursor = next
		names, more = s.pickNames(names)
		more = more && cursor != 0
		for some := range slices.Chunk(names, 100) { // a transaction of more would keep others waiting
			if err := s.visitKeys(ctx, node, some); err != nil {
				return err
			}
		}
	}
	return nil
}

// showAll shows what is under some keys of a server.
func (s *keyScan) visitKeys(ctx context.Context, node client, names []string) error {
	seen, err := s.readKeys(ctx, node, names)
	if isAnswer(err) { // a slot is moving, say: the client of the whole Cluster follows
		return s.visitKeysSingly(ctx, names)
	}
	if err != nil {
		return err
	}
	for i, name := range names {
		s.visitKey(name, seen[i])
	}
	return nil
}

// showEach is showAll for keys that must be asked for one by one.
func (s *keyScan) visitKeysSingly(ctx context.Context, names []string) error {
	for _, name := range names {
		seen, err := s.readKeys(ctx, s.client, []string{name})
		if err != nil {
			return err
		}
		s.visitKey(name, seen[0])
	}
	return nil
}

// read reads what is under some keys in one transaction.
func (s *keyScan) readKeys(ctx context.Context, node client, names []string) ([]Snapshot, error) {
	var seen []Snapshot
	err := s.askNode(ctx, node, func() error {
		pipe := node.TxPipeline()
		show := make([]func() Snapshot, len(names))
		for i, name := range names {
			start, size, expiry := pipe.GetRange(ctx, name, 0, s.startSize-1), pipe.StrLen(ctx, name), pipe.PTTL(ctx, name)
			show[i] = func() Snapshot { return Snapshot{[]byte(start.Val()), size.Val(), expiry.Val(), nil} }
		}
		if _, err := pipe.Exec(ctx); err != nil && !isWrongType(err) {
			return err
		}
		seen = make([]Snapshot, len(names))
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
