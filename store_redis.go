package idempotency

import (
	"bytes"
	"cmp"
	"context"
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

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/idempotency-go/idempotency/internal/bounds"
	"github.com/idempotency-go/idempotency/internal/recordline"
	"github.com/idempotency-go/idempotency/internal/redisconn"
	"github.com/idempotency-go/idempotency/internal/redisscript"
)

// RedisOptions are the settings of a [RedisStore]. The zero value of each field is its default.
type RedisOptions struct {
	// Prefix begins the name of every Redis key. Empty means "idempotency:". With a hash tag in Prefix, for example
	// "{one slot}:", a Cluster keeps all records in one slot. The first "{" in Prefix must not be followed by "}".
	Prefix string

	// Replicas is the number of replicas that must have stored a response or a checkpoint before Complete or
	// Checkpoint succeeds. The store sends the command WAIT with the write, in the same round trip. If too few replicas
	// acknowledge the response, Complete fails, and the middleware repeats Complete until the end of StoreTimeout. The
	// client then gets its response nevertheless ([OutcomeUnrecorded]), and the middleware goes on in the background
	// until enough replicas have the response. With too few replicas, each first execution therefore takes
	// StoreTimeout. Replays do not wait, so a retry may get a response that the replicas do not have yet.
	//
	// A response that all replicas have survives every failover. If Replicas is less than the number of replicas, a
	// failover by command may promote a replica without the response. Begin, Extend and Release do not wait, so an
	// operation that is running during a failover may run again.
	//
	// The default is 0. Any other value requires a *redis.Client or a *redis.ClusterClient.
	Replicas int

	// MaxUserRecords bounds the records of one [Key.User] that have not expired, in any state. If a user has as many,
	// Begin refuses a key without a record with [ErrUserQuota]. A key with a record is never refused. The key of a
	// [Release] with a TTL of zero counts for two leases. Zero means no bound.
	//
	// The store counts by an index of each user, a sorted set beside the records. Each claim and each replay is then a
	// script, still in one round trip. Give the same value to all processes: records that a process without the option
	// has made are not counted, nor are the records of an index that Redis has lost. A Cluster has the records of a user
	// in several slots, so the option is refused there, with an error that wraps [errors.ErrUnsupported].
	MaxUserRecords int
}

// RedisStore keeps records in Redis 7.0 or newer, or Valkey: one server, Sentinel or Cluster. A RedisStore is safe
// for concurrent use.
//
// A first execution takes two round trips and a replay takes one, whatever the size of the answer. The command SET
// with NX and GET claims a key, or reads the stored answer. The command SET with IFEQ (Valkey 8.1, Redis 8.4) stores
// an answer in place of the record of the claim, if the record is unchanged. On servers without IFEQ, a short script
// does the same. Scripts decide everything else, for example what happens to a key that is running or was released.
// Redis runs each script atomically and by its own clock. Servers that do not support SET with both NX and GET, such as
// Redis 6.2, are not supported; the store works there, with one more round trip for each claim and each replay.
//
// Redis computes the age of a lease from the expiry of its record. Extend moves the expiry, but never to an earlier
// time. Redis therefore keeps the record of a running operation for the TTL from its last renewal, and an Extend with a
// short lease does not shorten the lease.
// [Record.Created] is by the clock of the process that claimed the key first.
//
// If no connection of the client's pool is free in time, Begin returns [ErrStoreBusy], and FailOpen does not run the
// handler. A call that times out also returns ErrStoreBusy while more calls are under way than the pool has
// connections, because the call may have waited for its connection most of the time. FailOpen does run the handler in
// these cases:
//
//   - The server refuses connections: every request runs.
//   - The server hangs, or the network drops packets: as many requests run at a time as the pool has connections. One
//     minute after the last reply, every request runs.
//   - The server has reached its maxclients and closes connections: the server counts as down. Set maxclients above
//     the number of connections of all processes together.
//
// The results of steps (see package step) are in a hash beside the record. While a Cluster moves a slot, the record and
// the hash of an operation may be on two servers, and no script can use both. Until the slot has moved, a step of such an
// operation may run and then fail, because its result cannot be stored.
//
// The store assumes ten connections for each processor if the client does not tell the size of its pool.
//
// Applications must not change the expiry of a record: EXPIRE on the record of a running operation ends or prolongs
// the lease. In miniredis, keys expire and leases lapse only when a test calls FastForward.
//
// A claim on Redis is a lease: an operation happens exactly once as long as its owner lives and Redis keeps the data
// that it has acknowledged. [RedisStore.Check] reports settings that weaken this guarantee.
type RedisStore struct {
	conn           *redisconn.Conn
	keyPrefix      string
	maxUserRecords int // 0 means no bound
	optionsFault   error
}

// NewRedisStore returns a store that uses client. The caller closes client after [Middleware.Shutdown]. The client
// may be a *redis.Client (also the one from NewFailoverClient), a *redis.ClusterClient, or any type with their
// commands. NewRedisStore refuses a *redis.Ring, because a Ring moves the keys of a server that is down to
// servers without their records. NewRedisStore also refuses a redis.Pipeliner, which sends nothing before Exec, and a
// *redis.Conn and a *redis.Tx, whose single connection is not replaced after a failure.
//
// Every call ends by the deadline of its context. Set ContextTimeoutEnabled on the client, so that the client itself
// ends the call. If ContextTimeoutEnabled is not set on a *redis.Client, or a timeout is -2 (which switches all
// deadlines off), the store uses a copy of the client with deadlines. The copy shares the connections of the client,
// but hooks do not run on the copy. For any other client without deadlines, each call runs in a goroutine. If the
// deadline passes first, the store returns without waiting for the goroutine, which ends by the timeouts of the
// client. A hook that panics in such a goroutine ends the process.
//
// A *redis.AutoPipeliner sends the calls of concurrent requests together. With 64 requests under way at a time, an
// AutoPipeliner saves a quarter of the processor time of client and server. With 16 or fewer, requests take longer.
// No call relies on the order of other calls, so several batches may be under way at once (MaxConcurrentBatches,
// Unordered).
//
// If opts has a fault, or NewRedisStore refuses client, [New], Begin and Check return the error. The error wraps
// [errors.ErrUnsupported] if the reason is the type of client.
func NewRedisStore(client redis.Cmdable, opts RedisOptions) *RedisStore {
	prefix := cmp.Or(opts.Prefix, "idempotency:")
	conn, err := redisconn.New(client, opts.Replicas, redisconn.Errors{
		Busy: ErrStoreBusy, Full: ErrStoreFull, Foreign: ErrRecordInvalid,
	})
	if client == nil { // instead of the error of redisconn, which would show the type <nil>
		err = errors.New("idempotency: the Redis client is nil")
	}
	return &RedisStore{
		conn: conn, keyPrefix: prefix, maxUserRecords: opts.MaxUserRecords,
		optionsFault: errors.Join(checkPrefix(prefix), checkMaxUserRecords(client, opts.MaxUserRecords), err),
	}
}

// Validate implements [Validator].
func (s *RedisStore) Validate(RunnerOptions) error { return s.optionsFault }

// checkPrefix refuses a prefix whose first "{" is followed by "}". Such a prefix makes a Cluster ignore all later
// hash tags in a key name, so the record and its staging key (see maxInlineSize) would be in different slots.
func checkPrefix(prefix string) error {
	if _, tag, ok := strings.Cut(prefix, "{"); ok && strings.HasPrefix(tag, "}") {
		return fmt.Errorf("idempotency: RedisOptions.Prefix %q begins its first hash tag with \"{}\": "+
			"put text between the braces, or leave them out", prefix)
	}
	return nil
}

// checkMaxUserRecords refuses a negative bound, and any bound in a Cluster.
func checkMaxUserRecords(client redis.Cmdable, bound int) error {
	if bound < 0 {
		return fmt.Errorf("idempotency: RedisOptions.MaxUserRecords %d is negative", bound)
	}
	if bound > 0 && redisconn.IsCluster(client) {
		return fmt.Errorf("idempotency: RedisOptions.MaxUserRecords is %d with a Redis Cluster, "+
			"which cannot count the records of a user, because they are in several slots: %w", bound, errors.ErrUnsupported)
	}
	return nil
}

// keyName returns the name of the Redis key for the record of operation. The hash tag in the name puts the record, its
// staging key and its steps into the same slot.
func (s *RedisStore) keyName(operation uuid.UUID) string {
	id, _ := operation.MarshalText() // never fails; String would allocate
	return s.keyPrefix + "{" + string(id) + "}"
}

// indexName returns the name of the Redis key for the index of a user (see index.lua).
func (s *RedisStore) indexName(user [16]byte) string {
	return s.keyPrefix + "user:" + hex.EncodeToString(user[:])
}

// operationIn returns the ID of the operation in name, as text. Each record contains this text, so that a record that
// was copied to another name is found invalid.
func (s *RedisStore) operationIn(name string) string {
	return name[len(s.keyPrefix)+len("{") : len(name)-len("}")]
}

// Begin implements [Store].
func (s *RedisStore) Begin(ctx context.Context, key Key, request ClaimRequest) (Record, Claim, error) {
	if s.optionsFault != nil {
		return Record{}, nil, s.optionsFault
	}
	name, user, now := s.keyName(key.OperationID()), digestUser(key.User), time.Now().UnixMilli()
	claim := newRedisClaim(s, name, user, request, now)
	storedRecord, replyLost, err := claim.claimKey(ctx, user, request.TakeOver)
	switch {
	case err != nil && replyLost:
		return Record{}, nil, &ClaimInDoubtError{claim, err}
	case err != nil:
		return Record{}, nil, err
	case storedRecord == nil:
		record := Record{Attempt: 1, Fingerprint: request.Fingerprint, Created: time.UnixMilli(now), LeaseLeft: request.Lease}
		return record, claim, nil
	}
	head, err := s.parseRecord(storedRecord, name, &user)
	if err != nil {
		return Record{}, nil, err
	}
	if head.State == recordline.Running && bytes.Equal(head.Token, recordline.TokenOf(claim.runningRecord.Text)) {
		// The key has the record of this claim: the claim script has granted the attempt, or an earlier try, whose reply was
		// lost, was granted.
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

// readRemaining returns how long Redis still keeps the completed record with the given head. Begin has the record
// already, so readRemaining returns zero after an error, and gives up after a second.
func (s *RedisStore) readRemaining(ctx context.Context, name any, head []byte) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	reply, _, err := s.conn.Run(ctx, redisscript.Remaining, name, head)
	if err != nil {
		return 0
	}
	remaining, _ := strconv.ParseInt(reply, 10, 64)
	return fromMilliseconds(remaining)
}

// redisClaim implements [Claim] and [Checkpointer] for one record in Redis.
type redisClaim struct {
	store         *RedisStore
	keyName       any             // a string, as redisconn takes names
	runningRecord redisconn.Value // byte for byte as in Redis while the claim lasts
	leaseMillis   int64           // as in the record
	ttlMillis     any             // an int64, as in the record; converted once, because a conversion to any allocates
	recordSpace   [320]byte       // the memory of the first runningRecord, enough for the longest head

	mayHaveSteps atomic.Bool // this attempt or an earlier one may have stored steps

	redisSettlement
}

// redisSettlement records how far a claim is settled.
type redisSettlement struct {
	mu           sync.Mutex // held while the claim settles or restores its record
	hasTriedSwap bool       // Complete has tried SET with IFEQ, which is worth one try
	isSettled    bool       // Complete or Release has ended the claim
}

// newRedisClaim returns a claim on a new operation, before Redis has granted the claim.
func newRedisClaim(s *RedisStore, name string, user [16]byte, request ClaimRequest, now int64) *redisClaim {
	ttl := toMilliseconds(max(request.TTL, request.Lease))
	c := &redisClaim{store: s, keyName: name, leaseMillis: toMilliseconds(request.Lease), ttlMillis: ttl}
	c.runningRecord.Text = recordline.AppendRunning(c.recordSpace[:0], s.operationIn(name), &recordline.Head{
		Lease: c.leaseMillis, TTL: ttl, User: user, Fingerprint: request.Fingerprint, Created: now,
	})
	return c
}

// nextClaim returns the claim whose running record in Redis is head. The attempt may be a further one.
func (c *redisClaim) nextClaim(head []byte) *redisClaim {
	next := &redisClaim{store: c.store, keyName: c.keyName, leaseMillis: c.leaseMillis, ttlMillis: c.ttlMillis}
	next.runningRecord.Text = head
	next.mayHaveSteps.Store(true) // there may have been earlier attempts, which may have stored steps
	return next
}

// claimKey tries to store the running record under the key. The result storedRecord is nil if the key had no record, so
// the claim is granted. Otherwise storedRecord is the record that the key has now: the record of this claim if a
// script or an earlier try of SET has granted the claim, or else the record that holds the key. The result replyLost
// reports that the reply to a try was lost, so Redis may have granted the claim although claimKey returns an error.
func (c *redisClaim) claimKey(
	ctx context.Context, user [16]byte, takeOver bool,
) (storedRecord []byte, replyLost bool, err error) {
	if c.store.maxUserRecords > 0 {
		return c.claimCounted(ctx, c.store.indexName(user), takeOver)
	}
	set, err := c.store.conn.SetNX(ctx, c.keyName, &c.runningRecord, c.ttlMillis)
	if err != nil || set.IsSet || set.Current != nil && !recordline.IsOpen(set.Current) {
		return set.Current, set.Lost, err
	}
	reply, scriptLost, err := c.store.conn.Run(ctx, redisscript.Claim, c.keyName,
		stepsName(c.keyName), &c.runningRecord, c.ttlMillis, takeOver)
	return []byte(reply), set.Lost || scriptLost, err
}

// claimCounted is claimKey with a bound on the records of the user. One script counts the records and claims the key.
func (c *redisClaim) claimCounted(
	ctx context.Context, index string, takeOver bool,
) (storedRecord []byte, replyLost bool, err error) {
	reply, replyLost, err := c.store.conn.Run(ctx, redisscript.ClaimCounted, c.keyName,
		stepsName(c.keyName), index, &c.runningRecord, c.ttlMillis, takeOver, c.store.maxUserRecords)
	switch {
	case err != nil:
		return nil, replyLost, err
	case reply == "quota":
		return nil, replyLost, ErrUserQuota
	case reply == string(c.runningRecord.Text): // the first attempt, as after SET
		return nil, replyLost, nil
	default:
		return []byte(reply), replyLost, nil
	}
}

func (c *redisClaim) Extend(ctx context.Context, lease time.Duration) error {
	verdict, _, err := c.runScript(ctx, redisscript.Extend, &c.runningRecord, c.expiryMillis(lease))
	if err == nil && verdict == "missing" {
		return c.restoreRecord(ctx, lease)
	}
	return verdictError(verdict, err)
}

// restoreRecord creates the lost record again, unless the claim is settled: a settled claim would never renew or
// settle the new record.
func (c *redisClaim) restoreRecord(ctx context.Context, lease time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isSettled {
		return ErrClaimLost
	}
	script, args := redisscript.Extend, []any{&c.runningRecord, c.expiryMillis(lease), "again"}
	if c.mayHaveSteps.Load() { // the steps are lost as well; required, because without the hash the script omits RecordLost
		script, args = script.WithRequired(1), slices.Insert(args, 0, any(stepsName(c.keyName)))
	}
	verdict, _, err := c.store.conn.Run(ctx, script, c.keyName, args...)
	return verdictError(verdict, err)
}

// expiryMillis returns for how many milliseconds Redis must keep the record so that the lease lasts for lease from now.
// Lease and expiry end at a fixed distance (see record.lua), so the result is the TTL plus the change of the lease.
func (c *redisClaim) expiryMillis(lease time.Duration) int64 {
	return c.ttlMillis.(int64) + toMilliseconds(lease) - c.leaseMillis
}

func (c *redisClaim) Release(ctx context.Context, end Release) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	args := []any{&c.runningRecord, toMilliseconds(end.TTL), string(end.Reason), end.Abandoned}
	if c.store.maxUserRecords > 0 {
		args = append(args, "counted")
	}
	verdict, _, err := c.runScript(ctx, redisscript.Release, args...)
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
	if err == nil && !replyLost { // otherwise the client may still read the buffer to send it
		buffer.Free()
	}
	if errors.Is(err, ErrStoreFull) && len(buffer.B) > maxSpareSize {
		// putCompleted has tried smaller records through Lua. Of a larger one, only the status is stored: that record is small
		// enough for the script, which Redis lets finish without free memory (see put in record.lua).
		return c.completeRecord(ctx, resp.toTombstone(), ttl)
	}
	return verdict, err
}

// A script copies the values that pass through Lua. The copy takes some microseconds for each kilobyte, and blocks
// the server.
const (
	maxInlineSize = 2 << 10 // a larger record is staged under a key of its own, and the script renames that key
	maxSpareSize  = 8 << 10 // the largest record that passes through Lua if the server has no memory for the staging key
)

// putCompleted replaces the running record by the completed record. If the operation has no steps, the first try is a SET
// with IFEQ, which succeeds in the usual case. A script handles the other cases, for example a record that is gone or that
// another attempt has claimed.
func (c *redisClaim) putCompleted(
	ctx context.Context, completed []byte, ttl int64,
) (verdict string, replyLost bool, err error) {
	conn := c.store.conn
	stepsKeys := make([]any, 0, 4) // with room for the arguments, so that append does not allocate
	if c.mayHaveSteps.Load() {
		stepsKeys = append(stepsKeys, stepsName(c.keyName))
	}
	if !c.hasTriedSwap && len(stepsKeys) == 0 {
		c.hasTriedSwap = true // a repetition will hardly find the running record
		swapped, tryLost, err := conn.Swap(ctx, c.keyName, &c.runningRecord, completed, ttl)
		if swapped || err != nil {
			return "OK", tryLost, err
		}
		replyLost = tryLost
	}
	if len(completed) > maxInlineSize {
		stagedName := c.keyName.(string) + string(recordline.TokenOf(c.runningRecord.Text))
		verdict, tryLost, err := conn.RunStaged(ctx, redisscript.Complete.With(len(stepsKeys)), c.keyName,
			stagedName, completed, append(stepsKeys, &c.runningRecord, "", ttl)...) // "": the record is under stagedName
		replyLost = replyLost || tryLost
		mayPassInline := errors.Is(err, ErrStoreFull) && len(completed) <= maxSpareSize
		if !mayPassInline && !redisconn.IsSlotMoving(err) { // while the slot moves, the staging key may be on another server
			return verdict, replyLost, err
		}
	}
	verdict, tryLost, err := conn.RunCopied(ctx, redisscript.Complete.With(len(stepsKeys)), c.keyName,
		append(stepsKeys, &c.runningRecord, completed, ttl)...)
	return verdict, replyLost || tryLost, err
}

// noteSettled translates the verdict and err into the error of Release and Complete, and notes whether the claim has
// ended.
func (c *redisClaim) noteSettled(verdict string, err error) error {
	err = verdictError(verdict, err)
	c.isSettled = c.isSettled || err == nil || errors.Is(err, ErrRestored) || errors.Is(err, ErrClaimLost)
	return err
}

// stepsName returns the name of the hash with the checkpoints of a record. The hash is in the slot of the record.
func stepsName(name any) string { return name.(string) + ":steps" }

// runScript runs script on the record, and passes the key of the steps if the operation may have steps.
func (c *redisClaim) runScript(
	ctx context.Context, script redisconn.Script, args ...any,
) (reply string, replyLost bool, err error) {
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
		return nil, fmt.Errorf("%w: the checkpoints in Redis are malformed", ErrRecordInvalid)
	}
	return steps, nil
}

// reportLostSteps returns the result of Checkpoints for a record that is gone.
func (c *redisClaim) reportLostSteps() (map[string][]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isSettled {
		return nil, ErrClaimLost
	}
	return map[string][]byte{RecordLost: {}}, nil
}

// verdictError translates the verdict of a script, or of SET, into an error of a [Claim].
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
		return fmt.Errorf("%w: the Redis key holds a value that is no record", ErrRecordInvalid)
	}
}

// parseRecord parses the record that was stored under name, for the user with the given digest. A nil user means that
// the caller does not know the user.
func (s *RedisStore) parseRecord(value []byte, name string, user *[16]byte) (recordline.Head, error) {
	head, err := recordline.Parse(value, s.operationIn(name))
	if err == nil && user != nil && head.User != *user {
		err = recordline.ErrUser
	}
	if err != nil {
		return head, fmt.Errorf("%w: %w", ErrRecordInvalid, err)
	}
	return head, nil
}

// recordFromHead returns the fields of a [Record] that are in the head of a record in Redis.
func recordFromHead(h recordline.Head) Record {
	return Record{Attempt: h.Attempt, Fingerprint: h.Fingerprint, Created: time.UnixMilli(h.Created)}
}

// storedRecordFrom returns the [Record] that holds a key, with its lease or its response.
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
		return Record{}, fmt.Errorf("%w: the record in Redis has an unknown state", ErrRecordInvalid)
	}
}

// toMilliseconds returns d in milliseconds, rounded up so that no lease ends early.
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
