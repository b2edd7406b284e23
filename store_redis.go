package idempotency

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// RedisOptions are the settings of a [RedisStore]. The zero value of each field is its default.
type RedisOptions struct {
	// Prefix begins the name of every Redis key. Empty means "idempotency:". If it contains a hash tag, as "{one
	// slot}:" does, a Cluster keeps all records in one slot. Its first "{" must not be followed by "}".
	Prefix string

	// Replicas is how many replicas must have an answer before Complete succeeds. The command WAIT goes out with the
	// answer, in the same round trip. If too few replicas have the answer, the store tries again until the end of
	// StoreTimeout. Then the client gets its answer all the same ([OutcomeUnrecorded]), and the background goes on until
	// there are enough replicas. So with too few replicas, each first execution takes StoreTimeout. Replays do not wait.
	//
	// An answer that all replicas have survives every failover. If Replicas is less than their number, a failover by
	// command may promote a replica that does not have the answer. Claims do not wait, so an operation that is under way
	// at a failover may run again.
	//
	// The default is 0. Any other value needs a *redis.Client or a *redis.ClusterClient.
	Replicas int
}

// RedisStore keeps records in Redis 6.2 or newer, or Valkey: one server, Sentinel or Cluster. It is safe for concurrent use.
//
// A first execution takes two round trips and a replay takes one, whatever the size of the answer. The command SET with
// NX and GET claims a key, or reads its answer. The command SET with IFEQ stores an answer: it replaces the record of
// the claim and no other. Valkey 8.1 and Redis 8.4 have IFEQ. If the server has no IFEQ, a short script does the same.
// Scripts decide everything else, such as a key that is in use or was released. Redis runs them atomically and by its
// own clock. Before Redis 7.0 and Valkey 7.2, a script claims keys too, and reads answers at a cost of some
// microseconds for each kilobyte. The store finds out by itself what the server has.
//
// Redis tells the age of a lease by the expiry of its record, and Extend moves this expiry. So an operation that is
// under way is kept for the TTL from its last renewal, and Extend never shortens a lease. [Record.Created] is by the
// clock of the process that claimed the key first.
//
// If the pool of the client has no connection free in time, Begin returns [ErrStoreBusy], and FailOpen does not run the
// handler. If more steps are under way than the pool has connections, a step that times out returns the same. It may
// have waited for its connection for most of the time. FailOpen runs the handler in these cases:
//
//   - The server refuses connections: every request runs.
//   - The server hangs, or the network drops what is sent: as many requests run at a time as there are connections.
//     When the last reply is a minute old, every request runs.
//   - The server has reached its maxclients and closes connections: it counts as down. So give it more than all
//     processes together have.
//
// If a client does not tell the size of its pool, the store assumes ten connections for each processor.
//
// Nothing else may change the expiry of a record: EXPIRE on the record of a running operation ends its lease, or
// prolongs it. In a miniredis no key expires by itself, and no lease lapses, unless a test calls FastForward.
//
// A claim has a lease. Exactly once holds as long as the owner lives and Redis keeps what it has acknowledged.
// [RedisStore.Check] reports settings that weaken this.
type RedisStore struct {
	client   redisClient
	prompt   bool // the client ends by the deadline of a context
	prefix   string
	replicas int
	waits    chan struct{} // has one for each WAIT under way
	fault    error         // of the options
	isOld    atomic.Bool   // the server has no SET with both NX and GET
	noSwap   atomic.Bool   // nor one with IFEQ
	poolSize int64
	underWay atomic.Int64 // steps
	made     time.Time
	replied  atomic.Int64 // when the server did so last, in nanoseconds since the store was made; 0: never
}

// NewRedisStore returns a store on client. The caller closes the client, after [Middleware.Shutdown]. The client may be
// a *redis.Client (also that of NewFailoverClient), a *redis.ClusterClient, or whatever else has their commands.
//
// Every step ends by the deadline of its context. Set ContextTimeoutEnabled on the client, so that the client itself
// ends the step. If a *redis.Client does not have it set, the store uses a copy that shares its connections and has it
// set. Hooks do not run on the copy. For any other client that does not have it set, each step runs in a goroutine. The
// store leaves that goroutine behind at the deadline, and the timeouts of the client end it. A hook that panics there
// ends the process.
//
// A *redis.AutoPipeliner sends the steps of concurrent requests together. With 64 requests under way at a time, it
// saves a quarter of the processor time of client and server. With 16 or fewer, requests take longer than without it. No
// step relies on the order of others, so several batches may be under way at once (MaxConcurrentBatches, Unordered).
//
// If opts has a fault, Begin and Check return it.
func NewRedisStore(client redis.Cmdable, opts RedisOptions) *RedisStore {
	prefix := cmp.Or(opts.Prefix, "idempotency:")
	own, size := withDeadlines(client), poolSize(client)
	return &RedisStore{
		client: own, prompt: isPrompt(own), poolSize: size, prefix: prefix,
		replicas: opts.Replicas, waits: make(chan struct{}, max(1, size/2)),
		fault: errors.Join(checkPrefix(prefix), checkReplicas(client, opts.Replicas)), made: time.Now(),
	}
}

// checkPrefix refuses a prefix that would put a record and its staging key into different slots: the first "{}" in a name
// makes a Cluster ignore all hash tags behind it.
func checkPrefix(prefix string) error {
	if _, tag, ok := strings.Cut(prefix, "{"); ok && strings.HasPrefix(tag, "}") {
		return fmt.Errorf("idempotency: RedisOptions.Prefix %q: its first \"{\" is followed by \"}\"", prefix)
	}
	return nil
}

// key returns the name of the Redis key.
func (s *RedisStore) key(key Key) string { return s.name(key.Digest()) }

// name returns the name of the Redis key for a digest. Its hash tag keeps the staging key of the same record in the same
// slot.
func (s *RedisStore) name(digest [sha256.Size]byte) string {
	var space [128]byte
	b := append(append(space[:0], s.prefix...), '{')
	b = hex.AppendEncode(b, digest[:])
	return string(append(b, '}'))
}

// half returns the part of a name that the record has as its key.
func (s *RedisStore) half(name string) string {
	start := len(s.prefix) + len("{")
	return name[start : start+redisKeySize]
}

// Begin implements [Store].
func (s *RedisStore) Begin(ctx context.Context, key Key, request ClaimRequest) (Record, Claim, error) {
	if s.fault != nil {
		return Record{}, nil, s.fault
	}
	text := s.key(key)
	name, half := any(text), s.half(text)
	own := newRunningRecord(half, request)
	held, err := s.claim(ctx, name, own, request.TakeOver)
	if isReplyLost(err) && (own.encoded.Load() > 0 || errors.Is(err, errLate) || !errors.Is(err, ErrStoreBusy)) {
		return Record{}, newRedisClaim(s, name, own), err // it can be released
	}
	if err != nil {
		return Record{}, nil, err
	}
	if held == nil {
		return own.record, newRedisClaim(s, name, own), nil
	}
	found, err := parseRecord(held, half)
	if err != nil {
		return Record{}, nil, err
	}
	if found.state == stateRunning && bytes.Equal(found.token, own.token()) {
		return found.claimed(request.Lease), newRedisClaim(s, name, own.next(found.head)), nil
	}
	record, err := found.decode()
	if err == nil && request.Remaining && found.state == stateDone {
		record.Remaining = s.remaining(ctx, name, found.head)
	}
	return record, nil, err
}

// remaining returns how long the completed record with that head is still kept, or zero if that is not known soon: the
// record itself is there already.
func (s *RedisStore) remaining(ctx context.Context, name any, head []byte) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	reply, err := s.run(ctx, remainingScript, name, head)
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(reply, 10, 64)
	return fromMilliseconds(n)
}

// claim claims the key of that name. It returns nothing if the key was free, and else the record that it has then, which
// may be the caller's.
func (s *RedisStore) claim(ctx context.Context, name any, own *runningRecord, takeOver bool) ([]byte, error) {
	repeated := false
	if !s.isOld.Load() {
		reply, tries, err := s.claimFree(ctx, name, own)
		if err != nil || reply.isNull() {
			return nil, err
		}
		if held, ok := reply.text(); ok && !isOpen(held) {
			return held, nil
		}
		if reply.isSyntaxError() {
			s.isOld.Store(true)
		}
		repeated = tries > 1 || own.encoded.Load() > 1 // the client may try again by itself
	}
	held, err := s.run(ctx, claimScript, name, own, own.ttl, takeOver)
	if err != nil && repeated {
		err = replyLost{err} // the first try may have claimed the key
	}
	return []byte(held), err
}

// claimFree claims the key of that name if it has no record: the reply is null then, and else what the key has. It asks for
// the reply as it is on the wire, because go-redis takes a null for a failure: to look for its kind costs 3 us and 23
// allocations. An error among the replies is left to the script that comes next: its client knows what to do about it, such
// as to follow a slot to another node.
func (s *RedisStore) claimFree(ctx context.Context, name any, own *runningRecord) (reply rawReply, tries int, err error) {
	command := []any{"set", name, own, "nx", "get", "px", own.ttl}
	tries, err = s.again(ctx, func() error {
		cmd := redis.NewRawCmd(ctx, command...)
		err := s.process(ctx, name, cmd)
		if err == nil {
			reply = cmd.Val()
		}
		return err
	})
	return reply, tries, storeError(err)
}

// rawReply is a reply of Redis as it is on the wire.
type rawReply []byte

func (r rawReply) isNull() bool { return string(r) == "$-1\r\n" || string(r) == "_\r\n" }

func (r rawReply) isSyntaxError() bool { return bytes.HasPrefix(r, []byte("-ERR syntax error")) }

// text returns the string that is the reply, if it is one. It shares the memory of the reply.
func (r rawReply) text() (text []byte, ok bool) {
	head, text, ok := bytes.Cut(r, []byte("\r\n"))
	ok = ok && len(head) > 0 && head[0] == '$' && len(text) >= 2
	if !ok {
		return nil, false
	}
	return text[:len(text)-2], true
}
