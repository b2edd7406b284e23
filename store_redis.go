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
	conn         *redisconn.Conn
	keyPrefix    string
	optionsFault error // of the options
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
	return &RedisStore{conn: conn, keyPrefix: prefix, optionsFault: errors.Join(checkPrefix(prefix), err)}
}

// Validate implements [Validator].
func (s *RedisStore) Validate(RunnerOptions) error { return s.optionsFault }

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
func (s *RedisStore) keyName(digest [sha256.Size]byte) string {
	var space [128]byte
	b := append(append(space[:0], s.keyPrefix...), '{')
	b = hex.AppendEncode(b, digest[:])
	return string(append(b, '}'))
}

// half returns the part of a name that the record has as its key.
func (s *RedisStore) digestHalf(name string) string {
	start := len(s.keyPrefix) + len("{")
	return name[start : start+recordline.KeySize]
}

// Begin implements [Store].
func (s *RedisStore) Begin(ctx context.Context, key Key, request ClaimRequest) (Record, Claim, error) {
	if s.optionsFault != nil {
		return Record{}, nil, s.optionsFault
	}
	name, now := s.keyName(key.Digest()), time.Now().UnixMilli()
	claim := newRedisClaim(s, name, request, now)
	storedRecord, replyLost, err := claim.claimKey(ctx, request.TakeOver)
	switch {
	case err != nil && replyLost:
		return Record{}, nil, &ClaimInDoubtError{claim, err}
	case err != nil:
		return Record{}, nil, err
	case storedRecord == nil:
		record := Record{Attempt: 1, Fingerprint: request.Fingerprint, Created: time.UnixMilli(now), LeaseLeft: request.Lease}
		return record, claim, nil
	}
	head, err := s.parseRecord(storedRecord, name)
	if err != nil {
		return Record{}, nil, err
	}
	if head.State == recordline.Running && bytes.Equal(head.Token, recordline.TokenOf(claim.runningRecord.Text)) {
		record := recordFromHead(head)
		record.LeaseLeft, record.Remaining = request.Lease, fromMilliseconds(head.AppendedNumber)
		return record, claim.nextClaim(head.Line), nil
	}
	record, err := storedRecordFrom(head)
	if err == nil && request.Remaining && head.State == recordline.Done {
		record.Remaining = s.readRemaining(ctx, name, head.Line)
	}
	return record, nil, err
}

// remaining returns how long the completed record with that head is still kept, or zero if that is not known soon: the
// record itself is there already.
func (s *RedisStore) readRemaining(ctx context.Context, name any, head []byte) time.Duration {
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
	store         *RedisStore
	keyName       any             // a string
	runningRecord redisconn.Value // the record, byte for byte as Redis has it for as long as the claim lasts
	leaseMillis   int64           // in milliseconds, as the record names it
	ttlMillis     any             // likewise; to put a number into an any costs an allocation
	recordSpace   [256]byte       // as much as the head of a record may have

	mayHaveSteps atomic.Bool // there may be steps

	redisSettlement
}

// redisSettlement says how far a claim is settled.
type redisSettlement struct {
	mu               sync.Mutex // held while the record is settled or made again
	hasTriedComplete bool       // Complete was called
	isSettled        bool       // Complete or Release has ended the claim
}

// newRedisClaim returns a claim to a new operation, which Redis does not know yet.
func newRedisClaim(s *RedisStore, name string, request ClaimRequest, now int64) *redisClaim {
	ttl := toMilliseconds(max(request.TTL, request.Lease))
	c := &redisClaim{store: s, keyName: name, leaseMillis: toMilliseconds(request.Lease), ttlMillis: ttl}
	c.runningRecord.Text = recordline.AppendRunning(
		c.recordSpace[:0], s.digestHalf(name), request.Fingerprint, c.leaseMillis, ttl, now)
	return c
}

// next returns the claim to a further attempt, which has that head in Redis.
func (c *redisClaim) nextClaim(head []byte) *redisClaim {
	next := &redisClaim{store: c.store, keyName: c.keyName, leaseMillis: c.leaseMillis, ttlMillis: c.ttlMillis}
	next.runningRecord.Text = head
	next.mayHaveSteps.Store(true) // perhaps, by the attempts before
	return next
}

// take puts the record under its name. It returns nothing if there was none, and else the record that is there then, which
// may be that of the claim.
func (c *redisClaim) claimKey(ctx context.Context, takeOver bool) (storedRecord []byte, replyLost bool, err error) {
	isSet, storedRecord, setLost, err := c.store.conn.SetNX(ctx, c.keyName, &c.runningRecord, c.ttlMillis)
	if err != nil || isSet || storedRecord != nil && !recordline.IsOpen(storedRecord) {
		return storedRecord, setLost, err
	}
	reply, scriptLost, err := c.store.conn.Run(ctx, redisscript.Claim, c.keyName,
		stepsName(c.keyName), &c.runningRecord, c.ttlMillis, takeOver)
	return []byte(reply), setLost || scriptLost, err
}

func (c *redisClaim) Extend(ctx context.Context, lease time.Duration) error {
	verdict, _, err := c.runScript(ctx, redisscript.Extend, &c.runningRecord, c.expiryMillis(lease))
	if err == nil && verdict == "missing" {
		return c.restoreRecord(ctx, lease)
	}
	return verdictError(verdict, err)
}

// restore makes the record again, unless the claim has ended: nobody would renew or settle it then.
func (c *redisClaim) restoreRecord(ctx context.Context, lease time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isSettled {
		return ErrClaimLost
	}
	script, args := redisscript.Extend, []any{&c.runningRecord, c.expiryMillis(lease), "again"}
	if c.mayHaveSteps.Load() { // the steps are lost, too, which must not be left unsaid
		script, args = script.WithRequired(1), slices.Insert(args, 0, any(stepsName(c.keyName)))
	}
	verdict, _, err := c.store.conn.Run(ctx, script, c.keyName, args...)
	return verdictError(verdict, err)
}

// expiry returns for how many milliseconds Redis is to keep the record, if the lease is to run for so long from now.
func (c *redisClaim) expiryMillis(lease time.Duration) int64 {
	return c.ttlMillis.(int64) + toMilliseconds(lease) - c.leaseMillis
}

func (c *redisClaim) Release(ctx context.Context, ttl time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	verdict, _, err := c.runScript(ctx, redisscript.Release, &c.runningRecord, toMilliseconds(ttl))
	return c.noteSettled(verdict, err)
}

func (c *redisClaim) Complete(ctx context.Context, resp Response, ttl time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.noteSettled(c.completeRecord(ctx, resp, toMilliseconds(ttl)))
}

func (c *redisClaim) completeRecord(ctx context.Context, resp Response, ttl int64) (verdict string, err error) {
	buffer := bounds.NewBuffer(len(c.runningRecord.Text) + resp.encodedSize())
	buffer.B, _ = resp.AppendBinary(recordline.AppendDone(buffer.B, c.runningRecord.Text)) // never fails
	verdict, replyLost, err := c.putCompleted(ctx, buffer.B, ttl)
	if err == nil && !replyLost { // else the client may still be about to send it
		buffer.Free()
	}
	if errors.Is(err, ErrStoreFull) && len(buffer.B) > maxSpareSize {
		// A record without a body fits into the room of the running record.
		return c.completeRecord(ctx, resp.toTombstone(), ttl)
	}
	return verdict, err
}

// What passes through Lua is copied there, at some microseconds for each kilobyte, while the server does nothing else.
const (
	maxInlineSize = 2 << 10 // of records that are stored by a script; larger ones are stored beside it
	maxSpareSize  = 8 << 10 // likewise, of a server that has no memory for anything beside
)

// put stores a completed record in the place of the running one. What is not as it should be is left to the script, which
// knows more.
func (c *redisClaim) putCompleted(ctx context.Context, completed []byte, ttl int64) (verdict string, replyLost bool, err error) {
	conn := c.store.conn
	stepsKeys := make([]any, 0, 4) // of a size that needs no allocation
	if c.mayHaveSteps.Load() {
		stepsKeys = append(stepsKeys, stepsName(c.keyName))
	}
	if !c.hasTriedComplete && len(stepsKeys) == 0 {
		c.hasTriedComplete = true // a repetition will hardly find what it is to replace
		swapped, tryLost, err := conn.Swap(ctx, c.keyName, &c.runningRecord, completed, ttl)
		if swapped || err != nil {
			return "OK", tryLost, err
		}
		replyLost = tryLost
	}
	if len(completed) > maxInlineSize {
		stagedName := c.keyName.(string) + string(recordline.TokenOf(c.runningRecord.Text))
		verdict, tryLost, err := conn.RunStaged(ctx, redisscript.Complete.With(len(stepsKeys)), c.keyName,
			stagedName, completed, append(stepsKeys, &c.runningRecord, "", ttl)...)
		replyLost = replyLost || tryLost
		isFull := errors.Is(err, ErrStoreFull) && len(completed) <= maxSpareSize
		if !isFull && !redisconn.IsSlotMoving(err) {
			return verdict, replyLost, err
		}
	}
	verdict, tryLost, err := conn.RunCopied(ctx, redisscript.Complete.With(len(stepsKeys)), c.keyName,
		append(stepsKeys, &c.runningRecord, completed, ttl)...)
	return verdict, replyLost || tryLost, err
}

// settle notes that the claim has ended, if it has.
func (c *redisClaim) noteSettled(verdict string, err error) error {
	err = verdictError(verdict, err)
	c.isSettled = c.isSettled || err == nil || errors.Is(err, ErrRestored) || errors.Is(err, ErrClaimLost)
	return err
}

// stepsName returns the name of the hash that has the checkpoints of a record: in its slot.
func stepsName(name any) string { return name.(string) + ":steps" }

// run runs a script on the record and, if there may be any, on its steps.
func (c *redisClaim) runScript(ctx context.Context, script redisconn.Script, args ...any) (reply string, lost bool, err error) {
	if c.mayHaveSteps.Load() {
		script, args = script.With(1), slices.Insert(args, 0, any(stepsName(c.keyName)))
	}
	return c.store.conn.Run(ctx, script, c.keyName, args...)
}

// Checkpoint implements [Checkpointer].
func (c *redisClaim) Checkpoint(ctx context.Context, name string, data []byte) (stored []byte, err error) {
	c.mayHaveSteps.Store(true)
	args := []any{stepsName(c.keyName), &c.runningRecord, name, data, c.ttlMillis}
	reply, _, err := c.store.conn.RunCopied(ctx, redisscript.Checkpoint, c.keyName, args...)
	if err == nil && reply == "missing" {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.isSettled {
			return nil, ErrClaimLost
		}
		reply, _, err = c.store.conn.RunCopied(ctx, redisscript.Checkpoint, c.keyName, append(args, "again")...)
	}
	verdict, text, before := strings.Cut(reply, "\n")
	if before {
		data = []byte(text)
	}
	return data, verdictError(verdict, err)
}

// Checkpoints implements [Checkpointer].
func (c *redisClaim) Checkpoints(ctx context.Context) (map[string][]byte, error) {
	reply, _, err := c.store.conn.Run(ctx, redisscript.Checkpoints, c.keyName, stepsName(c.keyName), &c.runningRecord)
	verdict, list, _ := strings.Cut(reply, "\n")
	if err == nil && verdict == "missing" {
		return c.reportLostSteps()
	}
	if err := verdictError(verdict, err); err != nil {
		return nil, err
	}
	steps, ok := recordline.ParseSteps(list)
	if !ok {
		return nil, fmt.Errorf("%w: steps in Redis", ErrRecordInvalid)
	}
	return steps, nil
}

// lostSteps returns what Checkpoints returns if the record is gone.
func (c *redisClaim) reportLostSteps() (map[string][]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isSettled {
		return nil, ErrClaimLost
	}
	return map[string][]byte{RecordLost: {}}, nil
}

// outcome translates the reply of a script, or of SET.
func verdictError(verdict string, err error) error {
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
func (s *RedisStore) parseRecord(value []byte, name string) (recordline.Head, error) {
	head, err := recordline.Parse(value, s.digestHalf(name))
	if err != nil {
		return head, fmt.Errorf("%w: %w", ErrRecordInvalid, err)
	}
	return head, nil
}

// recordOf returns what a head says of a record that nobody has claimed now.
func recordFromHead(h recordline.Head) Record {
	return Record{Attempt: h.Attempt, Fingerprint: h.Fingerprint, Created: time.UnixMilli(h.Created)}
}

// heldBy returns the record that somebody else holds, with its response.
func storedRecordFrom(h recordline.Head) (Record, error) {
	record := recordFromHead(h)
	switch h.State {
	case recordline.Running, recordline.Released:
		record.LeaseLeft = fromMilliseconds(h.AppendedNumber)
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
func toMilliseconds(d time.Duration) int64 {
	n := d.Milliseconds()
	if d%time.Millisecond > 0 {
		n++
	}
	return n
}

func fromMilliseconds(n int64) time.Duration {
	return time.Duration(min(n, int64(math.MaxInt64/time.Millisecond))) * time.Millisecond
}
