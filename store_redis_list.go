package idempotency

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// List implements [Inspector]. Redis keeps no users, so ListRequest.User must be empty.
//
// It goes through all keys of the database by SCAN, a thousand at a time, and reads the first 768 bytes of each record.
// So damage beyond them does not show. Redis serves others meanwhile. In a Cluster it asks every master, one after the
// other. Only a *redis.ClusterClient can do that: with any other client of a Cluster the error wraps
// [errors.ErrUnsupported].
//
// A key that has the name of a record and holds no record counts as unreadable.
func (s *RedisStore) List(ctx context.Context, request ListRequest) (Listing, error) {
	if s.fault != nil {
		return Listing{}, s.fault
	}
	if request.User != "" {
		return Listing{}, fmt.Errorf("idempotency: Redis keeps no users to list by: %w", errors.ErrUnsupported)
	}
	found, err := newCollector(request)
	if err != nil {
		return Listing{}, err
	}
	survey := &redisSurvey{store: s, found: found, seen: make(map[[sha256.Size]byte]bool)}
	if err := survey.all(ctx); err != nil {
		return Listing{}, err
	}
	return found.result(), nil
}

// redisSurvey looks at the records of all servers.
type redisSurvey struct {
	store *RedisStore
	found *collector

	mu   sync.Mutex                 // held by one server after the other
	seen map[[sha256.Size]byte]bool // SCAN may show a key again, and so may another server that has taken it over
}

func (v *redisSurvey) all(ctx context.Context) error {
	each := func(ctx context.Context, node *redis.Client) error {
		v.mu.Lock()
		defer v.mu.Unlock()
		return v.one(ctx, withDeadlines(node))
	}
	switch client := v.store.client.(type) {
	case *redis.ClusterClient:
		return client.ForEachMaster(ctx, each)
	case *redis.Ring:
		return client.ForEachShard(ctx, each)
	}
	if v.store.isInCluster(ctx) {
		return fmt.Errorf("idempotency: list: a Cluster needs a *redis.ClusterClient: %w", errors.ErrUnsupported)
	}
	return v.one(ctx, v.store.client)
}

// isInCluster reports whether the server says so.
func (s *RedisStore) isInCluster(ctx context.Context) bool {
	var info string
	err := s.ask(ctx, s.client, func() (err error) {
		info, err = s.client.Info(ctx, "cluster").Result()
		return err
	})
	return err == nil && strings.Contains(info, "cluster_enabled:1")
}

// ask is again for one of the servers. Nobody reads what a failed step was to find: the client may still be about to.
func (s *RedisStore) ask(ctx context.Context, node redisClient, step func() error) error {
	_, err := s.again(ctx, func() error {
		if isPrompt(node) {
			return step()
		}
		return inTime(ctx, step)
	})
	return storeError(err)
}

// one looks at the records of one server, until there were enough.
func (v *redisSurvey) one(ctx context.Context, node redisClient) error {
	pattern := globFor(v.store.prefix) + "{" + strings.Repeat("?", hex.EncodedLen(sha256.Size)) + "}"
	for cursor, over := uint64(0), false; !over; over = cursor == 0 || v.found.listing.Partial {
		var names []string
		var next uint64
		err := v.store.ask(ctx, node, func() (err error) {
			names, next, err = node.Scan(ctx, cursor, pattern, 1000).Result()
			return err
		})
		if err != nil {
			return err
		}
		cursor = next
		for some := range slices.Chunk(v.unseen(names), 100) { // a transaction of more would keep others waiting
			if err := v.read(ctx, node, some); err != nil {
				return err
			}
		}
	}
	return nil
}

// globFor returns a pattern that matches text, and nothing else.
func globFor(text string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`).Replace(text)
}

// unseen returns those of the names that are to be looked at.
func (v *redisSurvey) unseen(names []string) (fresh []string) {
	for _, name := range names {
		digest, ok := v.store.digestIn(name)
		switch {
		case !ok || v.seen[digest]:
		case len(v.seen) == v.found.request.Scan:
			v.found.listing.Partial = true
			return fresh
		default:
			v.seen[digest] = true
			fresh = append(fresh, name)
		}
	}
	return fresh
}

// digestIn returns the digest that is in a name, if it is one that the store gives to a record.
func (s *RedisStore) digestIn(name string) (digest [sha256.Size]byte, ok bool) {
	text, prefixed := strings.CutPrefix(name, s.prefix+"{")
	text, closed := strings.CutSuffix(text, "}")
	if !prefixed || !closed || len(text) != hex.EncodedLen(len(digest)) {
		return digest, false
	}
	_, err := hex.Decode(digest[:], []byte(text))
	return digest, err == nil && s.name(digest) == name // which has no capital letters
}

// read adds the records of these names, which a server has.
func (v *redisSurvey) read(ctx context.Context, node redisClient, names []string) error {
	starts, err := v.store.readStarts(ctx, node, names)
	if isAnswer(err) && !errors.Is(err, ErrRecordInvalid) { // a slot is moving, say: the client of the whole Cluster follows
		return v.readEach(ctx, names)
	}
	if err != nil && !errors.Is(err, ErrRecordInvalid) {
		return err
	}
	for i, start := range starts {
		v.add(names[i], start)
	}
	return nil
}

// readEach is read for records that must be asked for one by one.
func (v *redisSurvey) readEach(ctx context.Context, names []string) error {
	for _, name := range names {
		starts, err := v.store.readStarts(ctx, v.store.client, []string{name})
		if err != nil && !errors.Is(err, ErrRecordInvalid) {
			return err
		}
		v.add(name, starts[0])
	}
	return nil
}

// add adds a record of that name, if it is one.
func (v *redisSurvey) add(name string, start redisStart) {
	held := seenRecord{start: []byte(start.value.Val()), size: start.size.Val(), expiry: start.expiry.Val()}
	if held.expiry == redisMissing {
		return // in the meantime
	}
	digest, _ := v.store.digestIn(name)
	entry := Entry{Digest: digest, Size: held.size, Remaining: max(0, held.expiry)}
	found, err := parseRecord(held.start, v.store.half(name)) // what is no string has no start
	if err == nil {
		err = found.show(&entry, held)
	}
	if err == nil && found.state == stateDone {
		err = found.glance(&entry, held)
	}
	if err != nil {
		v.found.listing.Unreadable++
		return
	}
	v.found.add(entry)
}

// redisStart is what is read of each record: its start, size and expiry, at one moment.
type redisStart struct {
	value  *redis.StringCmd
	size   *redis.IntCmd
	expiry *redis.DurationCmd
}

// startSize is enough for the longest head, and behind it for the first line of the response and the longest note.
const startSize = 768

// readStarts reads records in one transaction. The error wraps [ErrRecordInvalid] if one of them is no string: that one has
// no start.
func (s *RedisStore) readStarts(ctx context.Context, node redisClient, names []string) (starts []redisStart, err error) {
	err = s.ask(ctx, node, func() error {
		pipe := node.TxPipeline()
		starts = make([]redisStart, len(names))
		for i, name := range names {
			starts[i] = redisStart{pipe.GetRange(ctx, name, 0, startSize-1), pipe.StrLen(ctx, name), pipe.PTTL(ctx, name)}
		}
		_, err := pipe.Exec(ctx)
		return err
	})
	return starts, err
}

// glance adds to an entry what the start of a completed record says of its response: the status and the note. The error says
// that the record is not as long as its start says.
func (r redisRecord) glance(entry *Entry, held seenRecord) error {
	first, rest, whole := bytes.Cut(r.response, []byte("\n"))
	line := lineReader{rest: first, ok: whole}
	magic := line.next("")
	line.sized("crc=", hex.EncodedLen(4))
	status, header, trailer, body := line.number(""), line.number("header="), line.number("trailer="), int64(0)
	if string(line.rest) == "body="+responseOmitted {
		line.rest = nil
	} else {
		body = line.number("body=")
	}
	line.ok = line.ok && len(line.rest) == 0 && string(magic) == strings.TrimSuffix(responseMagic, " ")
	fits := max(header, trailer, body) <= held.size // so that the sum is one
	if size := int64(len(r.head)+len(first)+len("\n\n")) + header + trailer + body; !line.ok || !fits || size != held.size {
		return fmt.Errorf("%w: response in Redis", ErrRecordInvalid)
	}
	entry.Status = int(status)
	note, err := noteIn(rest[:min(header, int64(len(rest)))])
	entry.Note = note
	return err
}

// noteIn returns the note at the start of stored fields, the end of which may be missing.
func noteIn(fields []byte) (string, error) {
	line, _, whole := bytes.Cut(fields, []byte("\n"))
	if !whole || !bytes.HasPrefix(line, []byte(noteStart)) {
		return "", nil
	}
	_, err := ParseFields(string(line) + "\n") // nobody is shown what Annotate refuses
	return string(line[len(noteStart):]), err
}
