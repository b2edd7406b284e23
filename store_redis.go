package idempotency

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	_ "embed" // the scripts
	"encoding/hex"
	"errors"
	"fmt"
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
	client redis.Cmdable
	prefix string
}

// NewRedisStore returns a store on client, which stays the caller's to close. It may be a *redis.Client (also that of
// NewFailoverClient), a *redis.ClusterClient, or whatever else has their commands.
//
// Deadlines hold if the client has ContextTimeoutEnabled: set it. Of a *redis.Client without it, the store uses the
// connections with settings of its own, in which it is set, but without the hooks that were added to the client.
func NewRedisStore(client redis.Cmdable, opts RedisOptions) *RedisStore {
	return &RedisStore{client: withDeadlines(client), prefix: cmp.Or(opts.Prefix, "idempotency:")}
}

// withDeadlines returns a client that ends by the deadline of the context, if possible.
func withDeadlines(client redis.Cmdable) redis.Cmdable {
	c, ok := client.(*redis.Client)
	if !ok || c.Options().ContextTimeoutEnabled {
		return client
	}
	own := c.WithTimeout(c.Options().ReadTimeout) // same connections, options of its own, no hooks
	own.Options().WriteTimeout = c.Options().WriteTimeout
	own.Options().ContextTimeoutEnabled = true
	own.Options().MaxRetries = 0
	return own
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
	claimScript    = redis.NewScript(recordLua + claimLua)
	extendScript   = redis.NewScript(recordLua + extendLua)
	completeScript = redis.NewScript(recordLua + completeLua)
	releaseScript  = redis.NewScript(recordLua + releaseLua)
)

// inlineSize is the size of a record up to which it passes through Lua. The copying costs the server about a
// microsecond for each kilobyte, during which it does nothing else; a larger one is stored beside the script, and read
// by a second command.
const inlineSize = 8 << 10

// key returns the name of the Redis key. Its hash tag keeps the staging key of the same record in the same slot.
func (s *RedisStore) key(key Key) string {
	digest := key.Digest()
	b := make([]byte, 0, len(s.prefix)+2*len(digest)+2)
	b = append(append(b, s.prefix...), '{')
	b = hex.AppendEncode(b, digest[:])
	return string(append(b, '}'))
}

// Begin implements [Store].
func (s *RedisStore) Begin(ctx context.Context, key Key, attempt Attempt) (Record, Claim, error) {
	name, token := s.key(key), newToken()
	reply, err := s.run(ctx, claimScript, []string{name},
		token, attempt.Fingerprint.String(), uuid.NewString(),
		attempt.Lease.Milliseconds(), max(attempt.TTL, attempt.Lease).Milliseconds(),
		attempt.TakeOver, inlineSize)
	if err != nil {
		return Record{}, nil, err
	}
	held, err := parseReply(reply)
	switch {
	case err != nil:
		return Record{}, nil, err
	case held.state == stateRunning && held.token == token:
		held.record.LeaseLeft = attempt.Lease
		return held.record, &redisClaim{store: s, name: name, token: token, record: held.record}, nil
	case held.state == stateDone && len(held.response) == 0:
		return s.read(ctx, name, key, attempt)
	}
	record, err := held.decode()
	return record, nil, err
}

// read gets a completed record that is too large for the script. If it has expired in the meantime, the key is free, or
// somebody else's.
func (s *RedisStore) read(ctx context.Context, name string, key Key, attempt Attempt) (Record, Claim, error) {
	value, err := again(ctx, func() ([]byte, error) { return s.client.Get(ctx, name).Bytes() })
	if errors.Is(err, redis.Nil) {
		return s.Begin(ctx, key, attempt)
	}
	if err != nil {
		return Record{}, nil, err
	}
	held, err := parseRedisRecord(value, 0)
	if err != nil {
		return Record{}, nil, err
	}
	if held.state != stateDone {
		return s.Begin(ctx, key, attempt)
	}
	record, err := held.decode()
	return record, nil, err
}

// run runs a script until its reply is known.
func (s *RedisStore) run(ctx context.Context, script *redis.Script, keys []string, args ...any) (string, error) {
	return again(ctx, func() (string, error) { return script.Run(ctx, s.client, keys, args...).Text() })
}

// again repeats a step whose reply got lost. That is harmless: a script knows by its token what it has done before.
func again[T any](ctx context.Context, step func() (T, error)) (T, error) {
	const tries = 3
	for try := 1; ; try++ {
		reply, err := step()
		if err == nil {
			return reply, nil
		}
		if strings.Contains(err.Error(), "WRONGTYPE") {
			return reply, fmt.Errorf("%w: %w", ErrRecordInvalid, err)
		}
		var answered redis.Error
		if errors.As(err, &answered) || ctx.Err() != nil || try == tries {
			return reply, fmt.Errorf("idempotency: Redis: %w", err)
		}
	}
}

// newToken returns the secret of a claim.
func newToken() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
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
	record   Record
	response []byte // the stored form
}

const redisMagic = "idempotency/1"

// parseReply reads what the claim script returns: the time, and the record.
func parseReply(reply string) (redisRecord, error) {
	now, record, _ := strings.Cut(reply, "\n")
	milliseconds, err := strconv.Atoi(now)
	if err != nil {
		return redisRecord{}, fmt.Errorf("idempotency: Redis: reply of the claim script: %w", err)
	}
	return parseRedisRecord([]byte(record), milliseconds)
}

// parseRedisRecord reads a record. now is Redis' time in milliseconds.
func parseRedisRecord(value []byte, now int) (redisRecord, error) {
	first, response, _ := bytes.Cut(value, []byte("\n"))
	line := words{rest: string(first), ok: true}
	magic := line.next("")
	r := redisRecord{state: line.next(""), response: response}
	lease := line.number("lease=")
	r.token = line.next("token=")
	r.record.Attempt = line.number("attempt=")
	operation, err1 := uuid.Parse(line.next("operation="))
	fingerprint, err2 := hex.DecodeString(line.next("fingerprint="))
	created := line.number("created=")
	if magic != redisMagic || !line.ok || line.rest != "" || errors.Join(err1, err2) != nil ||
		len(fingerprint) != len(r.record.Fingerprint) {
		return redisRecord{}, fmt.Errorf("%w: head of the record in Redis", ErrRecordInvalid)
	}
	r.record.Operation = operation
	r.record.Fingerprint = Fingerprint(fingerprint)
	r.record.Created = time.UnixMilli(int64(created))
	r.record.LeaseLeft = max(0, time.Duration(lease-now)*time.Millisecond)
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
		r.record.LeaseLeft = 0
		r.record.Response = new(Response)
		err := r.record.Response.UnmarshalBinary(r.response)
		return r.record, err
	default:
		return Record{}, fmt.Errorf("%w: state %q", ErrRecordInvalid, r.state)
	}
}

// redisClaim implements Claim.
type redisClaim struct {
	store  *RedisStore
	name   string
	token  string
	record Record
}

func (c *redisClaim) Context(ctx context.Context) context.Context { return ctx }

func (c *redisClaim) Extend(ctx context.Context, lease time.Duration) error {
	return c.settle(c.store.run(ctx, extendScript, []string{c.name}, c.token, lease.Milliseconds(),
		c.record.Attempt, c.record.Operation.String(), c.record.Fingerprint.String(), c.record.Created.UnixMilli()))
}

func (c *redisClaim) Complete(ctx context.Context, resp Response, ttl time.Duration) error {
	value := c.encode(resp)
	if len(value) <= inlineSize {
		return c.settle(c.store.run(ctx, completeScript, []string{c.name}, c.token, ttl.Milliseconds(), value))
	}
	return c.settle(again(ctx, func() (string, error) { return c.stage(ctx, value, ttl) }))
}

func (c *redisClaim) Release(ctx context.Context) error {
	return c.settle(c.store.run(ctx, releaseScript, []string{c.name}, c.token))
}

// stagingTTL is how long Redis keeps a staged record that no script picks up.
const stagingTTL = time.Minute

// stage completes with a record that is too large for Lua: it is put under a key of its own, which the script renames
// if the claim still holds. Both go out together, in one round trip.
func (c *redisClaim) stage(ctx context.Context, value []byte, ttl time.Duration) (string, error) {
	keys := []string{c.name, c.name + c.token}
	pipe := c.store.client.Pipeline()
	pipe.Set(ctx, keys[1], value, stagingTTL)
	reply := completeScript.EvalSha(ctx, pipe, keys, c.token, ttl.Milliseconds(), "")
	_, err := pipe.Exec(ctx)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		return completeScript.Eval(ctx, c.store.client, keys, c.token, ttl.Milliseconds(), "").Text()
	}
	if err != nil {
		return "", err
	}
	return reply.Text()
}

// settle translates the reply of a script.
func (c *redisClaim) settle(reply string, err error) error {
	if err != nil {
		return err
	}
	switch reply {
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
	b := make([]byte, 0, 256+resp.encodedSize())
	b = fmt.Appendf(b, "%s %s lease=0 token=%s attempt=%d operation=%s fingerprint=%s created=%d\n",
		redisMagic, stateDone, c.token, c.record.Attempt, c.record.Operation, c.record.Fingerprint,
		c.record.Created.UnixMilli())
	b, _ = resp.AppendBinary(b) // never fails
	return b
}
