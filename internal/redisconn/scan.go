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

// Snapshot is the state of a key at one moment.
type Snapshot struct {
	Start  []byte // the beginning of the value, or the whole value; empty if the value is no string
	Size   int64  // the size of the whole value
	Expiry time.Duration
	Hash   map[string]string // the hash that ReadSnapshot reads together with the key
}

// PTTL returns these values for a key without an expiry, and for a missing key.
const (
	NoExpiry time.Duration = -1
	NoKey    time.Duration = -2
)

// ReadSnapshot reads the value of key and the hash at one moment. ReadSnapshot uses a transaction, because a script
// would copy a large value. While a Cluster moves the slot, ReadSnapshot reads the hash a moment before the value.
// For a missing key, Expiry is NoKey.
func (c *Conn) ReadSnapshot(ctx context.Context, key, hash string) (snapshot Snapshot, err error) {
	_, err = c.retryStep(ctx, func() error {
		pipe := c.client.TxPipeline()
		fields := pipe.HGetAll(ctx, hash)
		snapshot, err = c.execRead(ctx, key, pipe)
		if IsSlotMoving(err) {
			hashPipe := c.client.TxPipeline() // go-redis may send a Pipeline with only reads to a replica
			fields = hashPipe.HGetAll(ctx, hash)
			if err := c.execPipeline(ctx, key, hashPipe); err != nil {
				return err
			}
			snapshot, err = c.execRead(ctx, key, c.client.TxPipeline())
		}
		if err != nil { // the client may still write fields
			return err
		}
		snapshot.Hash = fields.Val()
		return nil
	})
	if errors.Is(err, redis.Nil) {
		return Snapshot{Expiry: NoKey}, nil
	}
	return snapshot, err
}

// execRead adds the commands that read key to the transaction pipe, and executes the transaction.
func (c *Conn) execRead(ctx context.Context, key string, pipe redis.Pipeliner) (Snapshot, error) {
	value, expiry := pipe.Get(ctx, key), pipe.PTTL(ctx, key)
	if err := c.execPipeline(ctx, key, pipe); err != nil {
		return Snapshot{}, err
	}
	start, err := value.Bytes()
	return Snapshot{Start: start, Size: int64(len(start)), Expiry: expiry.Val()}, err
}

// Literal returns a glob pattern that matches only text.
func Literal(text string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`).Replace(text)
}

// Scan goes through the names of all keys that match pattern, by SCAN. Scan passes each page of names to pick, and
// reads the keys that pick returns: the first startSize bytes of each value, its size and its expiry. Scan passes each
// Snapshot to show. Scan ends early when pick returns more = false. A name may occur more than once, because SCAN
// repeats names, and a slot may move to a server that Scan asks later. Calls to pick and show never overlap.
func (c *Conn) Scan(
	ctx context.Context, pattern string, startSize int64,
	pick func(names []string) (picked []string, more bool), show func(name string, snapshot Snapshot),
) error {
	s := &keyScan{Conn: c, pattern: pattern, startSize: startSize, pickNames: pick, visitKey: show}
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
		return fmt.Errorf("idempotency: list: the server belongs to a Cluster, which needs a *redis.ClusterClient: %w", errors.ErrUnsupported)
	}
	return s.scanNode(ctx, c.client)
}

// isInCluster reports whether the server says that it belongs to a Cluster.
func (c *Conn) isInCluster(ctx context.Context) bool {
	var info string
	err := c.askNode(ctx, c.client, func() (err error) {
		info, err = c.client.Info(ctx, "cluster").Result()
		return err
	})
	return err == nil && strings.Contains(info, "cluster_enabled:1")
}

// askNode is like retryStep for one of the servers. After an error, the results of step must not be read, because the
// client may still write to them.
func (c *Conn) askNode(ctx context.Context, node commandClient, step func() error) error {
	_, err := c.retryStep(ctx, func() error {
		if honorsDeadlines(node) {
			return step()
		}
		return runUntilDone(ctx, step)
	})
	return err
}

// keyScan is a running Scan.
type keyScan struct {
	*Conn
	pattern   string
	startSize int64
	pickNames func([]string) ([]string, bool)
	visitKey  func(string, Snapshot)
}

// scanNode goes through the keys of one server.
func (s *keyScan) scanNode(ctx context.Context, node commandClient) error {
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
		for batch := range slices.Chunk(names, 100) { // a longer transaction would delay other clients of the server
			if err := s.visitKeys(ctx, node, batch); err != nil {
				return err
			}
		}
	}
	return nil
}

// visitKeys reads the keys in names on one server, and passes their snapshots to visitKey.
func (s *keyScan) visitKeys(ctx context.Context, node commandClient, names []string) error {
	snapshots, err := s.readKeys(ctx, node, names)
	if isAnswer(err) { // for example while a slot moves: the client of the whole Cluster follows redirections
		return s.visitKeysSingly(ctx, names)
	}
	if err != nil {
		return err
	}
	for i, name := range names {
		s.visitKey(name, snapshots[i])
	}
	return nil
}

// visitKeysSingly is like visitKeys, but reads each key by itself through the client of the whole Cluster.
func (s *keyScan) visitKeysSingly(ctx context.Context, names []string) error {
	for _, name := range names {
		snapshots, err := s.readKeys(ctx, s.client, []string{name})
		if err != nil {
			return err
		}
		s.visitKey(name, snapshots[0])
	}
	return nil
}

// readKeys reads the keys in names in one transaction.
func (s *keyScan) readKeys(ctx context.Context, node commandClient, names []string) ([]Snapshot, error) {
	var snapshots []Snapshot
	err := s.askNode(ctx, node, func() error {
		pipe := node.TxPipeline()
		takeSnapshot := make([]func() Snapshot, len(names))
		for i, name := range names {
			start, size, expiry := pipe.GetRange(ctx, name, 0, s.startSize-1), pipe.StrLen(ctx, name), pipe.PTTL(ctx, name)
			takeSnapshot[i] = func() Snapshot { return Snapshot{[]byte(start.Val()), size.Val(), expiry.Val(), nil} }
		}
		if _, err := pipe.Exec(ctx); err != nil && !isWrongType(err) {
			return err
		}
		snapshots = make([]Snapshot, len(names))
		for i := range names {
			snapshots[i] = takeSnapshot[i]()
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return snapshots, nil
}
