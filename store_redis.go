package idempotency

import (
	"cmp"
	"context"
	"crypto/rand"
	_ "embed" // the scripts
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

// RedisOptions are the settings of a [RedisStore]. The zero value of each field is its default.
type RedisOptions struct {
	// Prefix begins the name of every Redis key. Empty means "idempotency:".
	Prefix string
}

// RedisStore keeps records in Redis 6.2 or newer, or Valkey: one server, Sentinel or Cluster. Every step is one
// script, which Redis runs atomically and by its own clock. It is safe for concurrent use.
//
// A claim is a lease: exactly once holds as long as the owner lives and Redis keeps what it has acknowledged. See
// [RedisStore.Check] for the settings that this depends on.
type RedisStore struct {
	client redisClient
	prefix string
}

// redisClient is what all clients of go-redis have.
type redisClient interface {
	redis.Cmdable
	Process(ctx context.Context, cmd redis.Cmder) error
}

// NewRedisStore returns a store on client, which stays the caller's to close. It may be a *redis.Client (also that of
// NewFailoverClient), a *redis.ClusterClient, or whatever else has their commands.
//
// Deadlines hold if the client has ContextTimeoutEnabled: set it. Of a *redis.Client without it, the store uses the
// connections with settings of its own, in which it is set, but without the hooks that were added to the client. A
// *redis.AutoPipeliner of go-redis 9.23 keeps no deadline: its client needs a short ReadTimeout, and MaxRetries -1.
func NewRedisStore(client redis.Cmdable, opts RedisOptions) *RedisStore {
	return &RedisStore{client: withDeadlines(client), prefix: cmp.Or(opts.Prefix, "idempotency:")}
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

//go:embed lua/record.lua
var recordLua string

//go:embed lua/claim.lua
var claimLua string

//go:embed lua/extend.lua
var extendLua string

//go:embed lua/complete.lua
var completeLua string

//go:embed lua/release.lua
var releaseLua string

var (
	claimScript    = newScript(claimLua)
	extendScript   = newScript(extendLua)
	completeScript = newScript(completeLua)
	releaseScript  = newScript(releaseLua)
)

// script is what EVAL and EVALSHA take.
type script struct{ source, hash any } // strings: to put one into an any costs an allocation

func newScript(source string) script {
	source = recordLua + source
	return script{source, redis.NewScript(source).Hash()}
}

// uncached returns the arguments of EVAL for those of an EVALSHA that the server does not know.
func (s script) uncached(args []any) []any {
	return slices.Concat([]any{"eval", s.source}, args[2:])
}

func isNoScript(err error) bool { return err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") }

// inlineSize is the size of a record up to which it passes through Lua, which copies it at about a microsecond for each
// kilobyte, while the server does nothing else. A larger one is stored beside the script.
const inlineSize = 8 << 10

// key returns the name of the Redis key. Its hash tag keeps the staging key of the same record in the same slot.
func (s *RedisStore) key(key Key) string {
	var space [128]byte
	digest := key.Digest()
	b := append(append(space[:0], s.prefix...), '{')
	b = hex.AppendEncode(b, digest[:])
	return string(append(b, '}'))
}

// Begin implements [Store].
func (s *RedisStore) Begin(ctx context.Context, key Key, attempt Attempt) (Record, Claim, error) {
	name := any(s.key(key))
	request, token := claimRequest(attempt)
	reply, err := s.run(ctx, claimScript, name, request)
	if err != nil {
		return Record{}, nil, err
	}
	held, err := parseReply(reply)
	switch {
	case err != nil:
		return Record{}, nil, err
	case held.state == stateRunning && held.token == token:
		held.record.LeaseLeft = attempt.Lease
		return held.record, &redisClaim{store: s, name: name, token: token, identity: held.identity}, nil
	case held.state == stateDone && len(held.response) == 0:
		return s.read(ctx, name, key, attempt)
	}
	record, err := held.decode()
	return record, nil, err
}

// claimRequest returns the argument of the claim script, in one piece because each would cost allocations, and the
// token in it, by which the store knows the claim.
func claimRequest(attempt Attempt) (request, token string) {
	var space [256]byte
	b := strconv.AppendInt(space[:0], attempt.Lease.Milliseconds(), 10)
	b = strconv.AppendInt(append(b, ' '), max(attempt.TTL, attempt.Lease).Milliseconds(), 10)
	if attempt.TakeOver {
		b = append(b, " 1 token="...)
	} else {
		b = append(b, " 0 token="...)
	}
	var random [32]byte
	rand.Read(random[:]) // never fails
	secret, operation := random[:16], uuid.UUID(random[16:])
	operation[6] = operation[6]&0x0f | 0x40 // version 4
	operation[8] = operation[8]&0x3f | 0x80 // of RFC 9562
	start := len(b)
	b = hex.AppendEncode(b, secret)
	end := len(b)
	b = append(append(b, " attempt=1 operation="...), operation.String()...)
	b = hex.AppendEncode(append(b, " fingerprint="...), attempt.Fingerprint[:])
	b = append(b, " created="...)
	request = string(b)
	return request, request[start:end]
}

// read gets a completed record that is too large for the script. If it has expired in the meantime, the key is free, or
// somebody else's.
func (s *RedisStore) read(ctx context.Context, name any, key Key, attempt Attempt) (Record, Claim, error) {
	reply, err := s.do(ctx, "get", name)
	if errors.Is(err, redis.Nil) {
		return s.Begin(ctx, key, attempt)
	}
	if err != nil {
		return Record{}, nil, storeError(err)
	}
	held, err := parseReply(reply)
	if err != nil {
		return Record{}, nil, err
	}
	if held.state != stateDone {
		return s.Begin(ctx, key, attempt)
	}
	record, err := held.decode()
	return record, nil, err
}

// run runs a script on the key of that name until its reply is known.
func (s *RedisStore) run(ctx context.Context, script script, name any, args ...any) (*redis.StringCmd, error) {
	command := append(append(make([]any, 0, 8), "evalsha", script.hash, 1, name), args...)
	reply, err := s.do(ctx, command...)
	if isNoScript(err) {
		reply, err = s.do(ctx, script.uncached(command)...)
	}
	return reply, storeError(err)
}

// do sends a command until its reply is known. It does so by Process, because Do and EvalSha cost twice the allocations.
func (s *RedisStore) do(ctx context.Context, args ...any) (*redis.StringCmd, error) {
	return again(ctx, func() (*redis.StringCmd, error) {
		cmd := redis.NewStringCmd(ctx, args...)
		return cmd, s.client.Process(ctx, cmd)
	})
}

// again takes a step until its reply is known. To repeat it is harmless: by its token a script knows what it has done
// before.
func again[T any](ctx context.Context, step func() (T, error)) (T, error) {
	for try := 1; ; try++ {
		reply, err := step()
		if err == nil || !askAgain(ctx, err, try) {
			return reply, err
		}
	}
}

// askAgain reports whether a reply got lost that there is time to ask for again.
func askAgain(ctx context.Context, err error, try int) bool {
	const tries = 3
	_, answered := errors.AsType[redis.Error](err)
	return !answered && ctx.Err() == nil && try < tries
}

func storeError(err error) error {
	switch {
	case err == nil:
		return nil
	case strings.Contains(err.Error(), "WRONGTYPE"):
		return fmt.Errorf("%w: %w", ErrRecordInvalid, err)
	case strings.Contains(err.Error(), "OOM command not allowed"):
		return fmt.Errorf("%w: %w", ErrStoreFull, err)
	default:
		return fmt.Errorf("idempotency: Redis: %w", err)
	}
}

// The states of a record, as the scripts write them.
const (
	stateRunning  = "running"
	stateReleased = "released"
	stateDone     = "done"
)

// redisRecord is a record as Redis holds it; lua/record.lua shows the form.
type redisRecord struct {
	state    string
	token    string
	identity string
	record   Record
	response []byte // the stored form
}

const redisMagic = "idempotency/1"

// parseReply reads a record, as GET or the claim script return it. It shares the memory of the reply.
func parseReply(reply *redis.StringCmd) (redisRecord, error) {
	head, rest, whole := strings.Cut(reply.Val(), "\n")
	line := words{rest: head, ok: whole}
	magic := line.next("")
	r := redisRecord{state: line.next("")}
	lease := line.number("lease=")
	r.identity = line.rest
	r.token = line.next("token=")
	r.record.Attempt = line.number("attempt=")
	operation, err := uuid.Parse(line.next("operation="))
	fingerprint := r.record.Fingerprint.parse(line.next("fingerprint="))
	created := line.number("created=")
	now := words{rest: rest, ok: true}
	if r.state != stateDone && rest != "" { // else the claim is our own
		r.record.LeaseLeft = max(0, time.Duration(lease-now.number(""))*time.Millisecond)
	}
	if magic != redisMagic || !line.ok || !now.ok || line.rest != "" || err != nil || !fingerprint {
		return redisRecord{}, fmt.Errorf("%w: head of the record in Redis", ErrRecordInvalid)
	}
	r.record.Operation = operation
	r.record.Created = time.UnixMilli(int64(created))
	if r.state == stateDone {
		value, _ := reply.Bytes()
		r.response = value[len(head)+1:]
	}
	return r, nil
}

// decode returns the record with its response.
func (r redisRecord) decode() (Record, error) {
	switch r.state {
	case stateRunning:
		return r.record, nil
	case stateReleased:
		r.record.LeaseLeft = 0
		return r.record, nil
	case stateDone:
		r.record.Response = new(Response)
		err := r.record.Response.UnmarshalBinary(r.response)
		return r.record, err
	default:
		return Record{}, fmt.Errorf("%w: state %q", ErrRecordInvalid, r.state)
	}
}

// redisClaim implements Claim.
type redisClaim struct {
	store    *RedisStore
	name     any // a string, as is the token
	token    any
	identity string // what the head of its record has behind the lease
}

func (c *redisClaim) Context(ctx context.Context) context.Context { return ctx }

func (c *redisClaim) Extend(ctx context.Context, lease time.Duration) error {
	return c.settle(c.store.run(ctx, extendScript, c.name, c.token, lease.Milliseconds(), c.identity))
}

func (c *redisClaim) Complete(ctx context.Context, resp Response, ttl time.Duration) error {
	value := c.encode(resp)
	if len(value) <= inlineSize {
		return c.settle(c.inline(ctx, value, ttl))
	}
	reply, err := again(ctx, func() (*redis.StringCmd, error) { return c.stage(ctx, value, ttl) })
	err = storeError(err)
	switch {
	case errors.Is(err, ErrStoreFull): // but there is room for a record without body: that of the claim
		return c.Complete(ctx, Response{Status: resp.Status, Omitted: true}, ttl)
	case redis.HasErrorPrefix(err, "TRYAGAIN"): // the slot is moving, and no script gets at two keys of it meanwhile
		reply, err = c.inline(ctx, value, ttl)
	}
	return c.settle(reply, err)
}

// inline completes with a record that passes through Lua.
func (c *redisClaim) inline(ctx context.Context, value []byte, ttl time.Duration) (*redis.StringCmd, error) {
	return c.store.run(ctx, completeScript, c.name, c.token, ttl.Milliseconds(), value)
}

func (c *redisClaim) Release(ctx context.Context) error {
	return c.settle(c.store.run(ctx, releaseScript, c.name, c.token))
}

// stagingTTL is how long Redis keeps a staged record that no script picks up.
const stagingTTL = time.Minute

// stage completes with a record that is too large for Lua: it is put under a key of its own, which the script renames
// if the claim still holds. Both go out together, in one round trip.
func (c *redisClaim) stage(ctx context.Context, value []byte, ttl time.Duration) (*redis.StringCmd, error) {
	staged := c.name.(string) + c.token.(string)
	args := []any{"evalsha", completeScript.hash, 2, c.name, staged, c.token, ttl.Milliseconds(), ""}
	reply := redis.NewStringCmd(ctx, args...)
	pipe := c.store.client.Pipeline()
	pipe.Set(ctx, staged, value, stagingTTL)
	_ = pipe.Process(ctx, reply) // never fails
	_, err := pipe.Exec(ctx)
	if isNoScript(err) {
		reply = redis.NewStringCmd(ctx, completeScript.uncached(args)...)
		err = c.store.client.Process(ctx, reply)
	}
	return reply, err
}

// settle translates the reply of a script.
func (c *redisClaim) settle(reply *redis.StringCmd, err error) error {
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
		return fmt.Errorf("%w: %s holds something else", ErrRecordInvalid, c.name)
	}
}

// encode returns the completed record.
func (c *redisClaim) encode(resp Response) []byte {
	b := make([]byte, 0, 64+len(c.identity)+resp.encodedSize())
	b = append(b, redisMagic+" "+stateDone+" lease=0 "...)
	b = append(append(b, c.identity...), '\n')
	b, _ = resp.AppendBinary(b) // never fails
	return b
}
