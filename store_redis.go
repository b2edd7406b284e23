package idempotency

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idempotency-go/idempotency/internal/bounds"
	"github.com/idempotency-go/idempotency/internal/recordline"
	"github.com/idempotency-go/idempotency/internal/redisconn"
	"github.com/idempotency-go/idempotency/internal/redisscript"
)

// RedisOptions are the settings of a [RedisStore]. The zero value of each field is its default.
type RedisOptions struct {
	// Prefix begins the name of every Redis key. Empty means "idempotency:". If it contains a hash tag, as "{one
	// slot}:" does, a Cluster keeps all records in one slot. Its first "{" must not be followed by "}".
	Prefix string

	// Replicas is how many replicas must have an answer before Complete succeeds. The command WAIT goes out with the
	// answer, in the same round trip. If too few replicas have the answer, the store tries again until the end of
	// StoreTimeout. Then the client gets its answer all the same ([OutcomeUnrecorded]), and the background goes on until
	// there are enough replicas. So with too few replicas, each first execution takes StoreTimeout. Replays do not wait: a
	// retry may get an answer that the replicas do not have yet.
	//
	// An answer that all replicas have survives every failover. If Replicas is less than their number, a failover by
	// command may promote a replica that does not have the answer. Claims do not wait, so an operation that is under way
	// at a failover may run again.
	//
	// The default is 0. Any other value needs a *redis.Client or a *redis.ClusterClient.
	Replicas int
}

// RedisStore keeps records in Redis 7.0 or newer, or Valkey: one server, Sentinel or Cluster. It is safe for concurrent use.
//
// A first execution takes two round trips and a replay takes one, whatever the size of the answer. The command SET with
// NX and GET claims a key, or reads its answer. The command SET with IFEQ stores an answer: it replaces the record of
// the claim and no other. Valkey 8.1 and Redis 8.4 have IFEQ. If the server has no IFEQ, a short script does the same.
// Scripts decide everything else, such as a key that is in use or was released. Redis runs them atomically and by its
// own clock. A server that does not know SET with both NX and GET, such as Redis 6.2, takes another round trip for each
// claim and each replay.
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
// The results of steps, see package step, are in a hash beside the record. While a Cluster moves a slot, a script gets at both
// only if both are there, and on the same server. Until the slot has moved, a step of any other operation may fail, and its
// result is not stored.
//
// If a client does not tell the size of its pool, the store assumes ten connections for each processor.
//
// Nothing else may change the expiry of a record: EXPIRE on the record of a running operation ends its lease, or
// prolongs it. In a miniredis no key expires by itself, and no lease lapses, unless a test calls FastForward.
//
// A claim has a lease. Exactly once holds as long as the owner lives and Redis keeps what it has acknowledged.
// [RedisStore.Check] reports settings that weaken this.
type RedisStore struct {
	conn   *redisconn.Conn
	prefix string
	fault  error // of the options
}

// NewRedisStore returns a store on client. The caller closes the client, after [Middleware.Shutdown]. The client may be
// a *redis.Client (also that of NewFailoverClient), a *redis.ClusterClient, or whatever else has their commands. A
// *redis.Ring is refused, because it moves keys to servers that do not have the records; so are a redis.Pipeliner, a *redis.Conn
// and a *redis.Tx.
//
// Every step ends by the deadline of its context. Set ContextTimeoutEnabled on the client, so that the client itself
// ends the step. If a *redis.Client does not have it set, or has a timeout of -2 (which switches all deadlines off), the store
// uses a copy that shares its connections and has deadlines. Hooks do not run on the copy. For any other client without
// deadlines, each step runs in a goroutine. The store leaves that goroutine behind at the deadline, and the timeouts of the
// client end it. A hook that panics there ends the process.
//
// A *redis.AutoPipeliner sends the steps of concurrent requests together. With 64 requests under way at a time, it
// saves a quarter of the processor time of client and server. With 16 or fewer, requests take longer than without it. No
// step relies on the order of others, so several batches may be under way at once (MaxConcurrentBatches, Unordered).
//
// If opts has a fault, or client is refused, [New], Begin and Check return the error; for a client it wraps
// [errors.ErrUnsupported].
func NewRedisStore(client redis.Cmdable, opts RedisOptions) *RedisStore {
	prefix := cmp.Or(opts.Prefix, "idempotency:")
	conn, err := redisconn.New(client, opts.Replicas, redisconn.Errors{
		Busy: ErrStoreBusy, Full: ErrStoreFull, Foreign: ErrRecordInvalid,
	})
	if client == nil {
		err = errors.New("idempotency: the Redis client is nil")
	}
	return &RedisStore{conn: conn, prefix: prefix, fault: errors.Join(checkPrefix(prefix), err)}
}

// Validate implements [Validator].
func (s *RedisStore) Validate(RunnerOptions) error { return s.fault }

// checkPrefix refuses a prefix that would put a record and its staging key into different slots: the first "{}" in a name
// makes a Cluster ignore all hash tags behind it.
func checkPrefix(prefix string) error {
	if _, tag, ok := strings.Cut(prefix, "{"); ok && strings.HasPrefix(tag, "}") {
		return fmt.Errorf("idempotency: RedisOptions.Prefix %q: its first \"{\" is followed by \"}\"", prefix)
	}
	return nil
}

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
	return name[start : start+recordline.KeySize]
}

// Begin implements [Store].
func (s *RedisStore) Begin(ctx context.Context, key Key, request ClaimRequest) (Record, Claim, error) {
	if s.fault != nil {
		return Record{}, nil, s.fault
	}
	name, now := s.name(key.Digest()), time.Now().UnixMilli()
	claim := newRedisClaim(s, name, request, now)
	held, lost, err := claim.take(ctx, request.TakeOver)
	switch {
	case err != nil && lost:
		return Record{}, nil, &ClaimInDoubtError{claim, err}
	case err != nil:
		return Record{}, nil, err
	case held == nil:
		record := Record{Attempt: 1, Fingerprint: request.Fingerprint, Created: time.UnixMilli(now), LeaseLeft: request.Lease}
		return record, claim, nil
	}
	found, err := s.parse(held, name)
	if err != nil {
		return Record{}, nil, err
	}
	if found.State == recordline.Running && bytes.Equal(found.Token, recordline.TokenOf(claim.own.Text)) {
		record := recordOf(found)
		record.LeaseLeft, record.Remaining = request.Lease, fromMilliseconds(found.Told)
		return record, claim.next(found.Line), nil
	}
	record, err := heldBy(found)
	if err == nil && request.Remaining && found.State == recordline.Done {
		record.Remaining = s.remaining(ctx, name, found.Line)
	}
	return record, nil, err
}

// remaining returns how long the completed record with that head is still kept, or zero if that is not known soon: the
// record itself is there already.
func (s *RedisStore) remaining(ctx context.Context, name any, head []byte) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	reply, _, err := s.conn.Run(ctx, redisscript.Remaining, name, head)
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(reply, 10, 64)
	return fromMilliseconds(n)
}

// redisClaim implements Claim.
type redisClaim struct {
	store *RedisStore
	name  any             // a string
	own   redisconn.Value // the record, byte for byte as Redis has it for as long as the claim lasts
	lease int64           // in milliseconds, as the record names it
	ttl   any             // likewise; to put a number into an any costs an allocation
	space [256]byte       // as much as the head of a record may have

	stepped atomic.Bool // there may be steps

	redisSettlement
}

// redisSettlement says how far a claim is settled.
type redisSettlement struct {
	mu      sync.Mutex // held while the record is settled or made again
	tried   bool       // Complete was called
	settled bool       // Complete or Release has ended the claim
}

// newRedisClaim returns a claim to a new operation, which Redis does not know yet.
func newRedisClaim(s *RedisStore, name string, request ClaimRequest, now int64) *redisClaim {
	ttl := milliseconds(max(request.TTL, request.Lease))
	c := &redisClaim{store: s, name: name, lease: milliseconds(request.Lease), ttl: ttl}
	c.own.Text = recordline.AppendRunning(c.space[:0], s.half(name), request.Fingerprint, c.lease, ttl, now)
	return c
}

// next returns the claim to a further attempt, which has that head in Redis.
func (c *redisClaim) next(head []byte) *redisClaim {
	next := &redisClaim{store: c.store, name: c.name, own: redisconn.Value{Text: head}, lease: c.lease, ttl: c.ttl}
	next.stepped.Store(true) // perhaps, by the attempts before
	return next
}

// take puts the record under its name. It returns nothing if there was none, and else the record that is there then, which
// may be that of the claim.
func (c *redisClaim) take(ctx context.Context, takeOver bool) (held []byte, lost bool, err error) {
	set, held, lost, err := c.store.conn.SetNX(ctx, c.name, &c.own, c.ttl)
	if err != nil || set || held != nil && !recordline.IsOpen(held) {
		return held, lost, err
	}
	reply, again, err := c.store.conn.Run(ctx, redisscript.Claim, c.name, stepsName(c.name), &c.own, c.ttl, takeOver)
	return []byte(reply), lost || again, err
}

func (c *redisClaim) Extend(ctx context.Context, lease time.Duration) error {
	verdict, _, err := c.run(ctx, redisscript.Extend, &c.own, c.expiry(lease))
	if err == nil && verdict == "missing" {
		return c.restore(ctx, lease)
	}
	return outcome(verdict, err)
}

// restore makes the record again, unless the claim has ended: nobody would renew or settle it then.
func (c *redisClaim) restore(ctx context.Context, lease time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.settled {
		return ErrClaimLost
	}
	script, args := redisscript.Extend, []any{&c.own, c.expiry(lease), "again"}
	if c.stepped.Load() { // the steps are lost, too, which must not be left unsaid
		script, args = script.Needs(1), slices.Insert(args, 0, any(stepsName(c.name)))
	}
	verdict, _, err := c.store.conn.Run(ctx, script, c.name, args...)
	return outcome(verdict, err)
}

// expiry returns for how many milliseconds Redis is to keep the record, if the lease is to run for so long from now.
func (c *redisClaim) expiry(lease time.Duration) int64 {
	return c.ttl.(int64) + milliseconds(lease) - c.lease
}

func (c *redisClaim) Release(ctx context.Context, ttl time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	verdict, _, err := c.run(ctx, redisscript.Release, &c.own, milliseconds(ttl))
	return c.settle(verdict, err)
}

func (c *redisClaim) Complete(ctx context.Context, resp Response, ttl time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.settle(c.complete(ctx, resp, milliseconds(ttl)))
}

func (c *redisClaim) complete(ctx context.Context, resp Response, ttl int64) (verdict string, err error) {
	b := bounds.NewBuffer(len(c.own.Text) + resp.encodedSize())
	b.B, _ = resp.AppendBinary(recordline.AppendDone(b.B, c.own.Text)) // never fails
	verdict, lost, err := c.put(ctx, b.B, ttl)
	if err == nil && !lost { // else the client may still be about to send it
		b.Free()
	}
	if errors.Is(err, ErrStoreFull) && len(b.B) > spareSize { // but there is room for a record without body: that of the claim
		return c.complete(ctx, resp.tombstone(), ttl)
	}
	return verdict, err
}

// What passes through Lua is copied there, at some microseconds for each kilobyte, while the server does nothing else.
const (
	inlineSize = 2 << 10 // of records that are stored by a script; larger ones are stored beside it
	spareSize  = 8 << 10 // likewise, of a server that has no memory for anything beside
)

// put stores a completed record in the place of the running one. What is not as it should be is left to the script, which
// knows more.
func (c *redisClaim) put(ctx context.Context, done []byte, ttl int64) (verdict string, lost bool, err error) {
	conn := c.store.conn
	steps := make([]any, 0, 4) // of a size that needs no allocation
	if c.stepped.Load() {
		steps = append(steps, stepsName(c.name))
	}
	if !c.tried && len(steps) == 0 {
		c.tried = true // a repetition will hardly find what it is to replace
		swapped, again, err := conn.Swap(ctx, c.name, &c.own, done, ttl)
		if swapped || err != nil {
			return "OK", again, err
		}
		lost = again
	}
	if len(done) > inlineSize {
		staged := c.name.(string) + string(recordline.TokenOf(c.own.Text))
		verdict, again, err := conn.RunStaged(ctx, redisscript.Complete.With(len(steps)), c.name, staged, done, append(steps, &c.own, "", ttl)...)
		lost = lost || again
		full := errors.Is(err, ErrStoreFull) && len(done) <= spareSize
		if !full && !redisconn.IsSlotMoving(err) {
			return verdict, lost, err
		}
	}
	verdict, again, err := conn.RunCopied(ctx, redisscript.Complete.With(len(steps)), c.name, append(steps, &c.own, done, ttl)...)
	return verdict, lost || again, err
}

// settle notes that the claim has ended, if it has.
func (c *redisClaim) settle(verdict string, err error) error {
	err = outcome(verdict, err)
	c.settled = c.settled || err == nil || errors.Is(err, ErrRestored) || errors.Is(err, ErrClaimLost)
	return err
}

// stepsName returns the name of the hash that has the checkpoints of a record: in its slot.
func stepsName(name any) string { return name.(string) + ":steps" }

// run runs a script on the record and, if there may be any, on its steps.
func (c *redisClaim) run(ctx context.Context, script redisconn.Script, args ...any) (reply string, lost bool, err error) {
	if c.stepped.Load() {
		script, args = script.With(1), slices.Insert(args, 0, any(stepsName(c.name)))
	}
	return c.store.conn.Run(ctx, script, c.name, args...)
}

// Checkpoint implements [Checkpointer].
func (c *redisClaim) Checkpoint(ctx context.Context, name string, data []byte) (stored []byte, err error) {
	c.stepped.Store(true)
	args := []any{stepsName(c.name), &c.own, name, data, c.ttl}
	reply, _, err := c.store.conn.RunCopied(ctx, redisscript.Checkpoint, c.name, args...)
	if err == nil && reply == "missing" {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.settled {
			return nil, ErrClaimLost
		}
		reply, _, err = c.store.conn.RunCopied(ctx, redisscript.Checkpoint, c.name, append(args, "again")...)
	}
	verdict, text, before := strings.Cut(reply, "\n")
	if before {
		data = []byte(text)
	}
	return data, outcome(verdict, err)
}

// Checkpoints implements [Checkpointer].
func (c *redisClaim) Checkpoints(ctx context.Context) (map[string][]byte, error) {
	reply, _, err := c.store.conn.Run(ctx, redisscript.Checkpoints, c.name, stepsName(c.name), &c.own)
	verdict, list, _ := strings.Cut(reply, "\n")
	if err == nil && verdict == "missing" {
		return c.lostSteps()
	}
	if err := outcome(verdict, err); err != nil {
		return nil, err
	}
	steps, ok := recordline.ParseSteps(list)
	if !ok {
		return nil, fmt.Errorf("%w: steps in Redis", ErrRecordInvalid)
	}
	return steps, nil
}

// lostSteps returns what Checkpoints returns if the record is gone.
func (c *redisClaim) lostSteps() (map[string][]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.settled {
		return nil, ErrClaimLost
	}
	return map[string][]byte{RecordLost: {}}, nil
}

// outcome translates the reply of a script, or of SET.
func outcome(verdict string, err error) error {
	if err != nil {
		return err
	}
	switch verdict {
	case "OK":
		return nil
	case "restored":
		return ErrRestored
	case "lost":
		return ErrClaimLost
	default:
		return fmt.Errorf("%w: Redis holds something else", ErrRecordInvalid)
	}
}

// parse reads the record with that name.
func (s *RedisStore) parse(value []byte, name string) (recordline.Head, error) {
	head, err := recordline.Parse(value, s.half(name))
	if err != nil {
		return head, fmt.Errorf("%w: %w", ErrRecordInvalid, err)
	}
	return head, nil
}

// recordOf returns what a head says of a record that nobody has claimed now.
func recordOf(h recordline.Head) Record {
	return Record{Attempt: h.Attempt, Fingerprint: h.Fingerprint, Created: time.UnixMilli(h.Created)}
}

// heldBy returns the record that somebody else holds, with its response.
func heldBy(h recordline.Head) (Record, error) {
	record := recordOf(h)
	switch h.State {
	case recordline.Running, recordline.Released:
		record.LeaseLeft = fromMilliseconds(h.Told)
		return record, nil
	case recordline.Done:
		record.Response = new(Response)
		err := record.Response.UnmarshalBinary(h.Response)
		return record, err
	default:
		return Record{}, fmt.Errorf("%w: state of the record in Redis", ErrRecordInvalid)
	}
}

// milliseconds returns what Redis counts. A part of one is a whole one: no lease is to end early.
func milliseconds(d time.Duration) int64 {
	n := d.Milliseconds()
	if d%time.Millisecond > 0 {
		n++
	}
	return n
}

func fromMilliseconds(n int64) time.Duration {
	return time.Duration(min(n, int64(math.MaxInt64/time.Millisecond))) * time.Millisecond
}
