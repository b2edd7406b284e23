package idempotency

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

// RedisOptions are the settings of a [RedisStore]. The zero value of each field is its default.
type RedisOptions struct {
	// Prefix begins the name of every Redis key. Empty means "idempotency:". If it contains a hash tag, as "{one
	// slot}:" does, a Cluster keeps all records in one slot. Its first "{" must not be followed by "}".
	Prefix string
}

// RedisStore keeps records in Redis 6.2 or newer, or Valkey: one server, Sentinel or Cluster. Every step is decided by
// one script, which Redis runs atomically and by its own clock. A large answer is uploaded before the script runs, or
// fetched after it. It is safe for concurrent use.
//
// If the pool of the client has no connection free in time, Begin returns [ErrStoreBusy], and FailOpen does not run the
// handler. So it does for a step that times out while more steps are under way than the pool has connections: the step may
// have waited for its connection for most of the time. If the server hangs, FailOpen runs as many requests at a time as there
// are connections, and all of them when the last reply is a minute old. So it does if the network drops what is sent. If the
// server refuses connections, FailOpen runs every request. A server that has reached its maxclients closes connections: it counts as down, so give it more than all processes
// together have.
//
// The pool of a client that does not tell its size counts as one of ten connections for each processor.
//
// A claim has a lease. Exactly once holds as long as the owner lives and Redis keeps what it has acknowledged.
// [RedisStore.Check] reports settings that weaken this.
type RedisStore struct {
	client   redisClient
	prefix   string
	fault    error // of the options
	poolSize int64
	underWay atomic.Int64 // steps
	made     time.Time
	replied  atomic.Int64 // when the server did so last, in nanoseconds since the store was made; 0: never
}

// NewRedisStore returns a store on client. The caller closes the client, after [Middleware.Shutdown]. The client may be
// a *redis.Client (also that of NewFailoverClient), a *redis.ClusterClient, or whatever else has their commands.
//
// Set ContextTimeoutEnabled on the client, so that deadlines hold. If a *redis.Client does not have it set, the store
// uses a copy that shares its connections and has it set; hooks do not run on the copy.
//
// A *redis.AutoPipeliner sends the steps of concurrent requests together. With 64 requests under way at a time, it
// saves a third of the processor time of client and server. With one at a time, a step takes twice as long. No step
// relies on the order of others, so several batches may be under way at once (MaxConcurrentBatches, Unordered). In
// go-redis 9.23 it ignores deadlines: give its client a short ReadTimeout, and MaxRetries -1.
//
// Begin and Check report a fault of opts.
func NewRedisStore(client redis.Cmdable, opts RedisOptions) *RedisStore {
	prefix := cmp.Or(opts.Prefix, "idempotency:")
	return &RedisStore{
		client: withDeadlines(client), poolSize: poolSize(client), prefix: prefix, fault: checkPrefix(prefix),
		made: time.Now(),
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

// key returns the name of the Redis key. Its hash tag keeps the staging key of the same record in the same slot.
func (s *RedisStore) key(key Key) string {
	var space [128]byte
	digest := key.Digest()
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
	argument := newClaimArgument(half, request)
	reply, err := s.run(ctx, claimScript, name, argument)
	if isReplyLost(err) && (argument.encoded.Load() || !errors.Is(err, ErrStoreBusy)) {
		return Record{}, s.claim(name, argument, ""), err // it can be released
	}
	if err != nil {
		return Record{}, nil, err
	}
	held, err := parseReply(reply, half)
	switch {
	case err != nil:
		return Record{}, nil, err
	case held.state == stateRunning && held.token == string(argument.token):
		return held.claimed(request.Lease), s.claim(name, argument, held.identity), nil
	case held.state == stateDone && len(held.response) == 0:
		return s.read(ctx, name, key, request, held.identity)
	}
	record, err := held.decode()
	return record, nil, err
}

// claim returns the claim that was asked for.
func (s *RedisStore) claim(name any, argument *claimArgument, identity string) *redisClaim {
	return &redisClaim{store: s, name: name, token: string(argument.token), identity: identity}
}

// claimArgument is the argument of the claim script, in one piece because each would cost allocations. It notes that it
// was encoded. Most clients do that once they have a connection to write to, so a claim that was not encoded was not
// sent and needs no release: releases would wait for a connection too, and take the place of those that are needed. A
// *redis.AutoPipeliner encodes when it queues a command, so its claims are released in any case.
type claimArgument struct {
	text    []byte
	token   []byte // the part of text by which the store knows the claim
	encoded atomic.Bool
	space   [264]byte // more than text needs
}

func newClaimArgument(half string, request ClaimRequest) *claimArgument {
	a := new(claimArgument)
	b := strconv.AppendInt(a.space[:0], request.Lease.Milliseconds(), 10)
	b = strconv.AppendInt(append(b, ' '), max(request.TTL, request.Lease).Milliseconds(), 10)
	if request.TakeOver {
		b = append(b, " 1 token="...)
	} else {
		b = append(b, " 0 token="...)
	}
	var random [32]byte
	rand.Read(random[:]) // never fails
	secret, operation := random[:16], operationFrom([16]byte(random[16:]))
	start := len(b)
	b = hex.AppendEncode(b, secret)
	end := len(b)
	b = append(append(b, " attempt=1 key="...), half...)
	b = appendUUID(append(b, " operation="...), operation)
	b = hex.AppendEncode(append(b, " fingerprint="...), request.Fingerprint[:])
	b = append(b, " created="...)
	a.text, a.token = b, b[start:end]
	return a
}

// MarshalBinary implements [encoding.BinaryMarshaler], by which go-redis encodes what is neither text nor number.
func (a *claimArgument) MarshalBinary() ([]byte, error) {
	a.encoded.Store(true)
	return a.text, nil
}

// String is for hooks of the client that log or trace commands.
func (a *claimArgument) String() string { return string(a.text) }

// appendUUID appends what id.String returns.
func appendUUID(b []byte, id uuid.UUID) []byte {
	for i, group := range [][]byte{id[:4], id[4:6], id[6:8], id[8:10], id[10:]} {
		if i > 0 {
			b = append(b, '-')
		}
		b = hex.AppendEncode(b, group)
	}
	return b
}

// read gets a completed record that is too large for the script. If it has expired in the meantime, the key is free, or
// somebody else's. If it is not the one that the script has seen, it may also be an older one, of a replica or a cache.
func (s *RedisStore) read(ctx context.Context, name any, key Key, request ClaimRequest, seen string) (Record, Claim, error) {
	reply, _, err := s.again(ctx, func() (*redis.StringCmd, error) { return s.send(ctx, name, []any{"get", name}) })
	if errors.Is(err, redis.Nil) {
		return s.Begin(ctx, key, request)
	}
	if err != nil {
		return Record{}, nil, storeError(err)
	}
	held, err := parseReply(reply, s.half(name.(string)))
	if err != nil {
		return Record{}, nil, err
	}
	if held.state != stateDone || held.identity != seen {
		return s.Begin(ctx, key, request)
	}
	record, err := held.decode()
	return record, nil, err
}

// redisClaim implements Claim.
type redisClaim struct {
	store    *RedisStore
	name     any // a string, as is the token
	token    any
	identity string // what the head of its record has behind the lease

	mu      sync.Mutex // held while the record is settled or made again
	settled bool       // Complete or Release has ended the claim
}

func (c *redisClaim) Context(ctx context.Context) context.Context { return ctx }

func (c *redisClaim) Extend(ctx context.Context, lease time.Duration) error {
	reply, err := c.store.run(ctx, extendScript, c.name, c.token, lease.Milliseconds())
	if err == nil && reply.Val() == "missing" {
		return c.restore(ctx, lease)
	}
	return c.outcome(reply, err)
}

// restore makes the record again, unless the claim has ended: nobody would renew or settle it then.
func (c *redisClaim) restore(ctx context.Context, lease time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.settled {
		return ErrClaimLost
	}
	return c.outcome(c.store.run(ctx, extendScript, c.name, c.token, lease.Milliseconds(), c.identity))
}

// What passes through Lua is copied there, at some microseconds for each kilobyte, while the server does nothing else.
const (
	inlineSize = 2 << 10 // of records that are stored by a script; larger ones are stored beside it
	spareSize  = 8 << 10 // likewise, of a server that has no memory for anything beside
)

func (c *redisClaim) Complete(ctx context.Context, resp Response, ttl time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.settle(c.complete(ctx, resp, ttl))
}

func (c *redisClaim) complete(ctx context.Context, resp Response, ttl time.Duration) (*redis.StringCmd, error) {
	b := newBuffer()
	b.grow(c.encodedSize(resp))
	b.b = c.encode(b.b, resp)
	large := len(b.b) > inlineSize
	send := c.inline
	if large {
		send = c.stage
	}
	reply, tries, err := send(ctx, b.b, ttl)
	full := errors.Is(err, ErrStoreFull)
	switch {
	case err == nil && tries == 1: // else a hook of the client may still be about to send it
		b.free()
	case full && len(b.b) > spareSize: // but there is room for a record without body: that of the claim
		return c.complete(ctx, Response{Status: resp.Status, Omitted: true}, ttl)
	case large && (full || redis.HasErrorPrefix(err, "TRYAGAIN")): // the slot is moving: no script gets at two of its keys
		reply, _, err = c.inline(ctx, b.b, ttl)
	}
	return reply, err
}

// inline completes with a record that passes through Lua.
func (c *redisClaim) inline(ctx context.Context, value []byte, ttl time.Duration) (*redis.StringCmd, int, error) {
	return c.store.tryRun(ctx, completeScript, c.name, c.token, ttl.Milliseconds(), value)
}

func (c *redisClaim) Release(ctx context.Context, ttl time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.settle(c.store.run(ctx, releaseScript, c.name, c.token, ttl.Milliseconds()))
}

// stagingTTL is how long Redis keeps a staged record that no script picks up.
const stagingTTL = time.Minute

// stage completes with a record that is too large for Lua: it is put under a key of its own, which the script renames
// if the claim still holds. Both go out together, in one round trip.
func (c *redisClaim) stage(ctx context.Context, value []byte, ttl time.Duration) (*redis.StringCmd, int, error) {
	staged := c.name.(string) + c.token.(string)
	args := []any{"evalsha", completeScript.hash, 2, c.name, staged, c.token, ttl.Milliseconds(), ""}
	reply, tries, err := c.store.again(ctx, func() (*redis.StringCmd, error) {
		reply := redis.NewStringCmd(ctx, args...)
		pipe := c.store.client.Pipeline()
		pipe.Set(ctx, staged, value, stagingTTL)
		_ = pipe.Process(ctx, reply) // never fails
		_, err := pipe.Exec(ctx)
		if isNoScript(err) {
			return c.store.send(ctx, c.name, completeScript.uncached(args))
		}
		return reply, c.store.sendError(ctx, c.name, err)
	})
	return reply, tries, storeError(err)
}

// settle notes that the claim has ended, if it has.
func (c *redisClaim) settle(reply *redis.StringCmd, err error) error {
	err = c.outcome(reply, err)
	c.settled = c.settled || err == nil || errors.Is(err, ErrRestored) || errors.Is(err, ErrClaimLost)
	return err
}

// outcome translates the reply of a script.
func (c *redisClaim) outcome(reply *redis.StringCmd, err error) error {
	if err != nil {
		return err
	}
	switch reply.Val() {
	case "ok":
		return nil
	case "restored":
		return ErrRestored
	case "lost":
		return ErrClaimLost
	default:
		return fmt.Errorf("%w: Redis holds something else", ErrRecordInvalid)
	}
}
