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

// KeyScan has the arguments of [Conn.Scan]. Calls to its functions never overlap.
type KeyScan struct {
	// Pattern is a glob pattern for the names of the keys.
	Pattern string

	// PickNames returns those of the names whose keys Scan reads. The result more = false ends the scan. A name may occur
	// more than once, because SCAN repeats names, and a slot may move to a server that Scan asks later.
	PickNames func(names []string) (picked []string, more bool)

	// StartSize is the number of bytes that Scan reads of each value.
	StartSize int64

	// VisitKey gets the state of each key that Scan has read. An error ends the scan.
	VisitKey func(name string, snapshot Snapshot) error

	// Progress, if set, is called for each page of SCAN with the approximate number of keys that SCAN has passed, matching
	// or not, and with the number of keys on all servers, or zero if the servers do not tell.
	Progress func(passed, total int64)
}

// scanPageSize is the number of keys that SCAN passes in one call.
const scanPageSize = 1000

// Scan goes through the names of all keys by SCAN, and reads some of the keys.
func (c *Conn) Scan(ctx context.Context, scan KeyScan) error {
	s := &keyScan{Conn: c, KeyScan: scan}
	if s.Progress != nil {
		s.totalKeys = c.countKeys(ctx)
	}
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

// countKeys returns the number of keys on the server, or on all masters of a Cluster. After an error, countKeys returns
// zero, because the number only serves the display of progress.
func (c *Conn) countKeys(ctx context.Context) int64 {
	var count int64
	err := c.askNode(ctx, c.client, func() (err error) {
		count, err = c.client.DBSize(ctx).Result()
		return err
	})
	if err != nil {
		return 0
	}
	return count
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
	KeyScan
	visitFault            error // the error of VisitKey, which ends the scan of every server
	passedKeys, totalKeys int64
}

// scanNode goes through the keys of one server.
func (s *keyScan) scanNode(ctx context.Context, node commandClient) error {
	for cursor, more := uint64(0), s.visitFault == nil; more; {
		var names []string
		var next uint64
		err := s.askNode(ctx, node, func() (err error) {
			names, next, err = node.Scan(ctx, cursor, s.Pattern, scanPageSize).Result()
			return err
		})
		if err != nil {
			return err
		}
		cursor = next
		names, more = s.PickNames(names)
		more = more && cursor != 0
		for batch := range slices.Chunk(names, 100) { // a longer transaction would delay other clients of the server
			if err := s.visitKeys(ctx, node, batch); err != nil {
				return err
			}
		}
		s.reportPage()
	}
	return nil
}

// reportPage reports the progress after a page of SCAN.
func (s *keyScan) reportPage() {
	if s.Progress == nil {
		return
	}
	s.passedKeys += scanPageSize
	if s.totalKeys > 0 { // the last page of each server has fewer keys
		s.passedKeys = min(s.passedKeys, s.totalKeys)
	}
	s.Progress(s.passedKeys, s.totalKeys)
}

// visitKeys reads the keys in names on one server, and passes their snapshots to VisitKey.
func (s *keyScan) visitKeys(ctx context.Context, node commandClient, names []string) error {
	snapshots, err := s.readKeys(ctx, node, names)
	if isAnswer(err) { // for example while a slot moves: the client of the whole Cluster follows redirections
		return s.visitKeysSingly(ctx, names)
	}
	if err != nil {
		return err
	}
	for i, name := range names {
		if s.visitFault = s.VisitKey(name, snapshots[i]); s.visitFault != nil {
			return s.visitFault
		}
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
		if s.visitFault = s.VisitKey(name, snapshots[0]); s.visitFault != nil {
			return s.visitFault
		}
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
			start, size, expiry := pipe.GetRange(ctx, name, 0, s.StartSize-1), pipe.StrLen(ctx, name), pipe.PTTL(ctx, name)
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
