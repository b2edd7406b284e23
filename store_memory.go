package idempotency

import (
	"bytes"
	"cmp"
	"container/heap"
	"context"
	"errors"
	"hash/maphash"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency/internal/bounds"
)

// MemoryOptions are the settings of a [MemoryStore]. The zero value of each field is its default.
type MemoryOptions struct {
	// MaxBytes bounds the estimated memory of all records, including overhead. At the limit, the store refuses new
	// claims with [ErrStoreFull]. The store never removes a record before the record expires. The last eighth of
	// MaxBytes is reserved for claims: if an answer does not fit into the rest, the store keeps the answer with
	// Omitted set. Zero means 256 MiB.
	MaxBytes int64

	// MaxUserBytes bounds the records of one [Key.User] in the same way. At the limit, the store refuses new claims
	// of this user with [ErrUserQuota]. The last eighth is reserved for claims here as well, so a step with a result
	// that does not fit into the rest fails with the same error. Zero means half of MaxBytes. A value of MaxBytes or
	// more means no limit, which suits a service with one user.
	//
	// The default of one half prevents a single user from filling the store, by mistake or on purpose, and leaves
	// room for a user with most of the work, as is usual in a service that is one process. Two users together can
	// still fill the store. If one person can have several accounts, set a smaller limit: with MaxBytes/N, filling
	// the store takes N accounts.
	MaxUserBytes int64
}

func (o MemoryOptions) withDefaults() MemoryOptions {
	o.MaxBytes = cmp.Or(o.MaxBytes, 256<<20)
	o.MaxUserBytes = cmp.Or(o.MaxUserBytes, o.MaxBytes/2)
	if o.MaxUserBytes >= o.MaxBytes {
		o.MaxUserBytes = math.MaxInt64 // without a limit for users, a full store always returns ErrStoreFull
	}
	return o
}

func (o MemoryOptions) checkOptions() error {
	var faults faults
	faults.check(o.MaxBytes >= 0, "MaxBytes %d is negative", o.MaxBytes)
	faults.check(o.MaxUserBytes >= 0, "MaxUserBytes %d is negative", o.MaxUserBytes)
	if faults == nil {
		o = o.withDefaults()
		faults.check(o.MaxBytes > entryOverhead, "MaxBytes %d has no room for a record", o.MaxBytes)
		faults.check(o.MaxUserBytes > entryOverhead, "MaxUserBytes %d has no room for a record", o.MaxUserBytes)
	}
	return errors.Join(faults...)
}

// MemoryStore keeps records in the memory of the process. Use a MemoryStore for tests, and for services that run as
// one process and may lose their records when the process ends. A MemoryStore has no goroutine and needs no Close:
// each claim removes a few expired records. A MemoryStore is safe for concurrent use.
type MemoryStore struct {
	shardSeed                 maphash.Seed // random, so that clients cannot send all their keys to one shard
	startTime                 time.Time
	claimLimits, answerLimits bounds.Limits
	byteUsage                 bounds.Usage
	shards                    [64]shard
	optionFaults              error
}

// NewMemoryStore returns an empty store. If opts has faults, [New] and Begin return them.
func NewMemoryStore(opts MemoryOptions) *MemoryStore {
	faults := opts.checkOptions()
	opts = opts.withDefaults()
	claims := bounds.Limits{Total: opts.MaxBytes, User: opts.MaxUserBytes}
	s := &MemoryStore{
		shardSeed: maphash.MakeSeed(), startTime: time.Now(),
		claimLimits: claims, answerLimits: subtractReserve(claims), optionFaults: faults,
	}
	s.byteUsage.Init(ErrStoreFull, ErrUserQuota)
	for i := range s.shards {
		s.shards[i].store, s.shards[i].entries = s, make(map[uuid.UUID]*entry)
	}
	return s
}

// Validate implements [Validator].
func (s *MemoryStore) Validate(RunnerOptions) error { return s.optionFaults }

// Immediate implements [Immediate]. It returns true, because all records are in memory.
func (s *MemoryStore) Immediate() bool { return true }

// subtractReserve returns the limits without the reserve for claims. A claim takes about 400 bytes, and an answer may
// take 1 MiB, so an eighth of the limits has room for many claims and costs few answers.
func subtractReserve(l bounds.Limits) bounds.Limits {
	const part = 8
	return bounds.Limits{Total: l.Total - l.Total/part, User: l.User - l.User/part}
}

// shard holds the records of a part of the operations.
type shard struct {
	store         *MemoryStore
	mu            sync.Mutex
	entries       map[uuid.UUID]*entry // by Key.OperationID
	byExpiry      expiryHeap
	extrasByEntry map[*entry]extras
}

// extras is the data that the shard keeps beside an entry. Few records have extras, so an entry has no field for
// them.
type extras struct {
	checkpoints map[string][]byte
	resolved    *Resolved
	byteCount   int64 // estimated by addCheckpoint and addResolved
}

// entry is one attempt at an operation, and the record of the attempt. The next attempt gets a new entry, so the
// address of an entry identifies the claim. Times are durations since the start of the store: they are monotonic, and
// take a third of the space of a time.Time.
type entry struct {
	shard       *shard
	operation   uuid.UUID // the ID of key
	key         Key
	fingerprint Fingerprint
	attempt     int32
	endedBy     entryEnding
	endReason   EndReason // of Release
	entryTimes
	response Response

	heapPlace int // the index in byExpiry plus 1, or 0 after the entry was removed
}

// entryEnding is the way in which an attempt has ended.
type entryEnding uint8

const (
	notEnded  entryEnding = iota
	released              // by Release, also if the record was gone at that time
	freed                 // by Release with a ttl of zero, which has removed the record
	completed             // by Complete
)

// entryTimes are the times of an entry, as durations since the start of the store.
type entryTimes struct {
	createdAt time.Duration
	leaseEnd  time.Duration // after Complete: the time of the completion
	expiresAt time.Duration // never before leaseEnd
}

func (e *entry) makeRecord(now time.Duration) Record {
	r := Record{
		Attempt:     int(e.attempt),
		Fingerprint: e.fingerprint,
		Created:     e.shard.store.startTime.Add(e.createdAt),
		LeaseLeft:   max(0, e.leaseEnd-now),
	}
	if e.endedBy == completed {
		r.Response, r.Remaining = &e.response, e.expiresAt-now
	}
	return r
}

// entryOverhead estimates the memory of a record in addition to its text.
const entryOverhead = 320

func (e *entry) countBytes() int64 {
	n := entryOverhead + len(e.key.User) + len(e.key.Endpoint) + len(e.key.ID) +
		len(e.response.Note) + len(e.response.Header) + len(e.response.Trailer) + len(e.response.Body)
	return int64(n) + e.shard.extrasByEntry[e].byteCount
}

// Begin implements [Store].
func (s *MemoryStore) Begin(_ context.Context, key Key, request ClaimRequest) (Record, Claim, error) {
	if s.optionFaults != nil {
		return Record{}, nil, s.optionFaults
	}
	operation := key.OperationID()
	sh := s.lockShard(operation)
	defer sh.mu.Unlock()
	now := s.timeSinceStart()
	s.removeExpired(sh, now, 2)

	stored := s.findLive(sh, operation, now)
	if stored != nil && !stored.isClaimable(request, now) {
		return stored.makeRecord(now), nil, nil
	}
	e := &entry{shard: sh, operation: operation, key: key, fingerprint: request.Fingerprint, attempt: 1}
	e.leaseEnd = now + request.Lease
	var remaining time.Duration
	if stored == nil {
		e.createdAt = now
		if err := s.insertEntry(sh, e, now); err != nil {
			return Record{}, nil, err
		}
	} else {
		e.createdAt, e.attempt = stored.createdAt, stored.attempt+1
		remaining = stored.expiresAt - now
		sh.replaceEntry(stored, e) // of the same size, so byteUsage stays
	}
	sh.expireAfter(e, now, max(request.TTL, request.Lease))
	record := e.makeRecord(now)
	record.Remaining = remaining
	return record, e, nil
}

// isClaimable reports whether Begin may grant request on the record, by the rules of [Store.Begin].
func (e *entry) isClaimable(request ClaimRequest, now time.Duration) bool {
	if e.endedBy == completed || e.fingerprint != request.Fingerprint {
		return false
	}
	return e.endedBy == released || request.TakeOver && e.leaseEnd <= now
}

func (s *MemoryStore) timeSinceStart() time.Duration { return time.Since(s.startTime) }

func (s *MemoryStore) lockShard(operation uuid.UUID) *shard {
	sh := &s.shards[maphash.Comparable(s.shardSeed, operation)%uint64(len(s.shards))]
	sh.mu.Lock()
	return sh
}

// findLive returns the record of operation. An expired record is removed, and counts as missing.
func (s *MemoryStore) findLive(sh *shard, operation uuid.UUID, now time.Duration) *entry {
	e := sh.entries[operation]
	if e != nil && e.expiresAt <= now {
		s.removeEntry(sh, e)
		return nil
	}
	return e
}

// insertEntry adds a record if the limits allow. The caller sets the expiry by expireAfter.
func (s *MemoryStore) insertEntry(sh *shard, e *entry, now time.Duration) error {
	if err := s.reserveBytes(sh, e.key.User, e.countBytes(), s.claimLimits, now); err != nil {
		return err
	}
	sh.entries[e.operation] = e
	return nil
}

func (s *MemoryStore) removeEntry(sh *shard, e *entry) {
	delete(sh.entries, e.operation)
	sh.removeFromHeap(e)
	s.byteUsage.Subtract(e.key.User, e.countBytes())
	delete(sh.extrasByEntry, e)
}

// reserveBytes reserves n bytes for user, and removes expired records if the limits are reached. The caller holds the
// lock of sh.
func (s *MemoryStore) reserveBytes(sh *shard, user string, n int64, within bounds.Limits, now time.Duration) error {
	for {
		err := s.byteUsage.Add(user, n, within)
		if err == nil || !s.makeRoom(sh, now) {
			return err
		}
	}
}

// removeExpired removes up to n expired records of sh, and reports whether there were any.
func (s *MemoryStore) removeExpired(sh *shard, now time.Duration, n int) (removedAny bool) {
	for ; n > 0 && len(sh.byExpiry) > 0 && sh.byExpiry[0].expiresAt <= now; n-- {
		e := sh.byExpiry[0]
		s.removeEntry(sh, e)
		removedAny = true
	}
	return removedAny
}

// makeRoom removes some expired records of every shard whose lock is free, and reports whether there were any. The
// caller holds the lock of locked.
func (s *MemoryStore) makeRoom(locked *shard, now time.Duration) (removedAny bool) {
	const maxPerShard = 16
	for i := range s.shards {
		sh := &s.shards[i]
		if sh == locked {
			removedAny = s.removeExpired(sh, now, maxPerShard) || removedAny
		} else if sh.mu.TryLock() {
			removedAny = s.removeExpired(sh, now, maxPerShard) || removedAny
			sh.mu.Unlock()
		}
	}
	return removedAny
}

// expiryHeap is a heap of records in the order of their expiry. Records have different TTLs, so they
// do not expire in the order in which they were added.
type expiryHeap []*entry

func (x expiryHeap) Len() int           { return len(x) }
func (x expiryHeap) Less(i, j int) bool { return x[i].expiresAt < x[j].expiresAt }

func (x expiryHeap) Swap(i, j int) {
	x[i], x[j] = x[j], x[i]
	x[i].heapPlace, x[j].heapPlace = i+1, j+1
}

// Push implements [heap.Interface].
func (x *expiryHeap) Push(e any) {
	*x = append(*x, e.(*entry))
	e.(*entry).heapPlace = len(*x)
}

// Pop implements [heap.Interface].
func (x *expiryHeap) Pop() any {
	last := len(*x) - 1
	e := (*x)[last]
	(*x)[last], *x = nil, (*x)[:last]
	e.heapPlace = 0
	return e
}

// expireAfter sets the expiry of e to ttl from now.
func (sh *shard) expireAfter(e *entry, now, ttl time.Duration) {
	e.expiresAt = now + ttl
	if e.heapPlace == 0 {
		heap.Push(&sh.byExpiry, e)
		return
	}
	heap.Fix(&sh.byExpiry, e.heapPlace-1)
}

// removeFromHeap removes e from the heap.
func (sh *shard) removeFromHeap(e *entry) { heap.Remove(&sh.byExpiry, e.heapPlace-1) }

// Extend implements [Claim].
func (e *entry) Extend(_ context.Context, lease time.Duration) error {
	e.shard.mu.Lock()
	defer e.shard.mu.Unlock()
	if e.endedBy != notEnded {
		return ErrClaimLost
	}
	now := e.shard.store.timeSinceStart()
	err := e.restoreEntry(now, attemptGoesOn)
	if err != nil && err != ErrRestored {
		return err
	}
	e.leaseEnd = now + lease
	if e.heapPlace == 0 || e.expiresAt < e.leaseEnd {
		e.shard.expireAfter(e, now, lease)
	}
	return err
}

// Complete implements [Claim].
func (e *entry) Complete(_ context.Context, resp Response, ttl time.Duration) error {
	resp.Body = bytes.Clone(resp.Body)
	e.shard.mu.Lock()
	defer e.shard.mu.Unlock()
	switch e.endedBy {
	case completed:
		return nil // a repetition, even if the record has expired since the first call
	case released, freed:
		return ErrClaimLost
	}
	now := e.shard.store.timeSinceStart()
	err := e.restoreEntry(now, attemptEnds)
	if err != nil && err != ErrRestored {
		return err
	}
	e.shard.dropCheckpoints(e)
	e.storeResponse(resp, now)
	e.leaseEnd = now
	e.shard.expireAfter(e, now, ttl)
	return err
}

// attemptFuture tells restoreEntry whether the attempt goes on after the present call.
type attemptFuture bool

const (
	attemptEnds   attemptFuture = false
	attemptGoesOn attemptFuture = true
)

// restoreEntry checks that the entry is the record of its key. If the record has expired, restoreEntry adds the entry
// again and returns [ErrRestored]; the caller sets the expiry. If the attempt goes on, a restored entry gets the
// checkpoint [RecordLost]. Other errors are [ErrClaimLost], if the key has another record, and those of the limits.
func (e *entry) restoreEntry(now time.Duration, attempt attemptFuture) error {
	if e.isLive(now) {
		return nil
	}
	sh, s := e.shard, e.shard.store
	if s.findLive(e.shard, e.operation, now) != nil {
		return ErrClaimLost
	}
	if attempt == attemptGoesOn {
		var extra extras
		extra.addCheckpoint(RecordLost, nil)
		sh.setExtras(e, extra)
	}
	if err := s.insertEntry(sh, e, now); err != nil {
		delete(sh.extrasByEntry, e)
		return err
	}
	return ErrRestored
}

// storeResponse stores the response, or its status alone if the body exceeds the limits. The claim has already
// reserved the bytes for the status.
func (e *entry) storeResponse(resp Response, now time.Duration) {
	s, before := e.shard.store, e.countBytes()
	e.endedBy, e.response = completed, resp
	n := e.countBytes() - before
	if n > 0 && s.reserveBytes(e.shard, e.key.User, n, s.answerLimits, now) != nil {
		e.response = Response{Status: resp.Status, Omitted: true}
	}
}

// isLive reports whether the entry is the record of its key.
func (e *entry) isLive(now time.Duration) bool { return e.heapPlace != 0 && e.expiresAt > now }

// Release implements [Claim].
func (e *entry) Release(_ context.Context, end Release) error {
	e.shard.mu.Lock()
	defer e.shard.mu.Unlock()
	now := e.shard.store.timeSinceStart()
	before := e.endedBy
	switch before {
	case completed:
		return ErrClaimLost
	case freed:
		return e.checkStillFree(now)
	}
	e.leaseEnd, e.endReason = min(now, e.leaseEnd), end.Reason
	if end.Abandoned && before == notEnded && e.isLive(now) {
		return nil
	}
	// A record that is gone is marked as released too, so that Extend does not restore the record.
	e.endedBy, e.leaseEnd = released, now
	switch {
	case !e.isLive(now):
		return ErrClaimLost
	case before == released:
	case end.TTL == 0:
		e.endedBy = freed
		e.shard.store.removeEntry(e.shard, e)
	default:
		e.shard.expireAfter(e, now, end.TTL)
	}
	return nil
}

// checkStillFree returns the result of a repeated Release with a ttl of zero: [ErrClaimLost] if the key has a record
// again.
func (e *entry) checkStillFree(now time.Duration) error {
	if e.shard.store.findLive(e.shard, e.operation, now) != nil {
		return ErrClaimLost
	}
	return nil
}

const (
	extraOverhead = 100         // estimates the memory of a checkpoint or a Resolved in addition to its text
	restoredTTL   = time.Minute // the TTL of a record that Checkpoint has restored; the next Extend prolongs the TTL
)

// Checkpoint implements [Checkpointer].
func (e *entry) Checkpoint(_ context.Context, name string, data []byte) (stored []byte, err error) {
	sh, s := e.shard, e.shard.store
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if e.endedBy != notEnded {
		return nil, ErrClaimLost
	}
	now := s.timeSinceStart()
	restored := e.restoreEntry(now, attemptGoesOn)
	switch restored {
	case nil:
	case ErrRestored:
		sh.expireAfter(e, now, restoredTTL)
	default:
		return nil, restored
	}
	extra := sh.extrasByEntry[e]
	if stored, ok := extra.checkpoints[name]; ok {
		return stored, restored
	}
	before := extra.byteCount
	extra.addCheckpoint(name, data)
	if err := s.reserveBytes(sh, e.key.User, extra.byteCount-before, s.answerLimits, now); err != nil {
		delete(extra.checkpoints, name)
		return nil, err
	}
	sh.setExtras(e, extra)
	return data, restored
}

// addCheckpoint adds a checkpoint and its size.
func (x *extras) addCheckpoint(name string, data []byte) {
	if x.checkpoints == nil {
		x.checkpoints = make(map[string][]byte)
	}
	x.checkpoints[name] = data
	x.byteCount += int64(extraOverhead + len(name) + len(data))
}

// addResolved adds the resolution of the operation and its size.
func (x *extras) addResolved(how *Resolved) {
	x.resolved = how
	x.byteCount += int64(extraOverhead + len(how.Operator) + len(how.Reason))
}

func (sh *shard) setExtras(e *entry, extra extras) {
	if extra.byteCount == 0 {
		delete(sh.extrasByEntry, e)
		return
	}
	if sh.extrasByEntry == nil {
		sh.extrasByEntry = make(map[*entry]extras)
	}
	sh.extrasByEntry[e] = extra
}

// replaceEntry replaces stored by next, and moves the extras to next. The caller sets the expiry.
func (sh *shard) replaceEntry(stored, next *entry) {
	sh.removeFromHeap(stored)
	sh.entries[next.operation] = next
	if extra, ok := sh.extrasByEntry[stored]; ok {
		delete(sh.extrasByEntry, stored)
		sh.extrasByEntry[next] = extra
	}
}

// dropCheckpoints removes the checkpoints of a completed operation, and keeps its resolution.
func (sh *shard) dropCheckpoints(e *entry) {
	before, ok := sh.extrasByEntry[e]
	if !ok {
		return
	}
	var extra extras
	if before.resolved != nil {
		extra.addResolved(before.resolved)
	}
	sh.store.byteUsage.Subtract(e.key.User, before.byteCount-extra.byteCount)
	sh.setExtras(e, extra)
}

// Checkpoints implements [Checkpointer].
func (e *entry) Checkpoints(context.Context) (map[string][]byte, error) {
	sh := e.shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	stored := sh.store.findLive(sh, e.operation, sh.store.timeSinceStart())
	if e.endedBy != notEnded || stored != nil && stored != e {
		return nil, ErrClaimLost
	}
	if stored == nil {
		return map[string][]byte{RecordLost: {}}, nil
	}
	return maps.Clone(sh.extrasByEntry[e].checkpoints), nil
}

var _ Resolver = (*MemoryStore)(nil)

// Inspect implements [Inspector], and sets every field of an [Entry].
func (s *MemoryStore) Inspect(ctx context.Context, key Key) (Entry, error) {
	return s.InspectOperation(ctx, key.OperationID())
}

// InspectOperation implements [Inspector], and sets every field of an [Entry].
func (s *MemoryStore) InspectOperation(_ context.Context, operation uuid.UUID) (Entry, error) {
	if s.optionFaults != nil {
		return Entry{}, s.optionFaults
	}
	sh := s.lockShard(operation)
	defer sh.mu.Unlock()
	now := s.timeSinceStart()
	e := s.findLive(sh, operation, now)
	if e == nil {
		return Entry{}, ErrNoRecord
	}
	described := e.describeEntry(now)
	described.Resolved = sh.extrasByEntry[e].resolved
	described.addSteps(sh.extrasByEntry[e].checkpoints)
	if e.endedBy == completed {
		described.Response = &e.response
	}
	return described, nil
}

// describeEntry returns the [Entry] for the record, without response. The caller holds the lock of the shard.
func (e *entry) describeEntry(now time.Duration) Entry {
	described := Entry{
		Key: e.key, Operation: e.operation, State: e.stateAt(now),
		Attempt: int(e.attempt), Created: e.shard.store.startTime.Add(e.createdAt), Fingerprint: e.fingerprint, Ended: e.endReason,
		Remaining: e.expiresAt - now, Size: e.countBytes() - entryOverhead,
	}
	switch described.State {
	case StateRunning:
		described.LeaseLeft = e.leaseEnd - now
	case StateCompleted:
		described.Completed, described.Status = e.shard.store.startTime.Add(e.leaseEnd), e.response.Status
		described.Note = e.response.Note
	}
	return described
}

// stateAt returns the state of the record at the time now.
func (e *entry) stateAt(now time.Duration) State {
	switch {
	case e.endedBy == completed:
		return StateCompleted
	case e.endedBy == released:
		return StateReleased
	case e.leaseEnd > now:
		return StateRunning
	default:
		return StateAbandoned
	}
}

// Forget implements [Inspector].
func (s *MemoryStore) Forget(_ context.Context, inspected Entry) error {
	return s.changeEntry(inspected, func(sh *shard, e *entry, _ time.Duration) error {
		s.removeEntry(sh, e)
		return nil
	})
}

// Resolve implements [Resolver].
func (s *MemoryStore) Resolve(_ context.Context, inspected Entry, r Resolution) error {
	return s.changeEntry(inspected, func(sh *shard, e *entry, now time.Duration) error {
		return s.resolveEntry(sh, e, inspected, r, now)
	})
}

// changeEntry calls do for the record of inspected, unless the record has changed since the operator inspected the
// entry.
func (s *MemoryStore) changeEntry(
	inspected Entry, do func(sh *shard, e *entry, now time.Duration) error,
) error {
	if s.optionFaults != nil {
		return s.optionFaults
	}
	sh := s.lockShard(inspected.Operation)
	defer sh.mu.Unlock()
	now := s.timeSinceStart()
	e := s.findLive(sh, inspected.Operation, now)
	if e == nil {
		return ErrNoRecord
	}
	if err := e.describeEntry(now).checkUnchanged(inspected); err != nil {
		return err
	}
	return do(sh, e, now)
}

// resolveEntry replaces an abandoned entry by an entry without an owner. If the new entry is larger, the additional
// bytes must fit the limits. A whole response must leave the reserve for claims untouched. A released entry or a
// tombstone is as small as a claim, and may use the reserve.
func (s *MemoryStore) resolveEntry(
	sh *shard, stored *entry, inspected Entry, r Resolution, now time.Duration,
) error {
	if stored.stateAt(now) != StateAbandoned {
		return ErrEntryChanged
	}
	next, within := *stored, s.claimLimits
	next.heapPlace, next.leaseEnd, next.endReason = 0, now, ""
	var extra extras
	if r.Response != nil {
		next.endedBy, next.response = completed, r.Response.Clone()
		if !r.Response.Omitted {
			within = s.answerLimits
		}
	} else {
		next.endedBy = released
		open := inspected.OpenMarks()
		for name, data := range sh.extrasByEntry[stored].checkpoints {
			if !slices.Contains(open, name) {
				extra.addCheckpoint(name, data)
			}
		}
	}
	resolved := r.Resolved(inspected)
	extra.addResolved(&resolved)
	addedBytes := next.countBytes() + extra.byteCount - stored.countBytes()
	if addedBytes <= 0 {
		s.byteUsage.Subtract(stored.key.User, -addedBytes)
	} else if err := s.reserveBytes(sh, stored.key.User, addedBytes, within, now); err != nil {
		return err
	}
	sh.replaceEntry(stored, &next)
	sh.setExtras(&next, extra)
	sh.expireAfter(&next, now, r.TTL)
	return nil
}

// List implements [Inspector]. List visits all records, and ignores ListRequest.Scan and Progress. While List visits a
// shard, claims on the keys of this shard wait: some milliseconds in a store with a million records.
func (s *MemoryStore) List(ctx context.Context, request ListRequest) (Listing, error) {
	if s.optionFaults != nil {
		return Listing{}, s.optionFaults
	}
	collected, err := newCollector(request)
	if err != nil {
		return Listing{}, err
	}
	for i := range s.shards {
		if err := ctx.Err(); err != nil {
			return Listing{}, err
		}
		if err := s.shards[i].listEntries(collected); err != nil {
			return Listing{}, err
		}
	}
	return collected.makeListing(), nil
}

// listEntries adds the records of the shard to collected.
func (sh *shard) listEntries(collected *collector) error {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := sh.store.timeSinceStart()
	for _, e := range sh.byExpiry { // contains every record of the shard
		if !e.isLive(now) {
			continue
		}
		if err := collected.addEntry(e.describeEntry(now)); err != nil {
			return err
		}
	}
	return nil
}
