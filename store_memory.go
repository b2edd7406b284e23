package idempotency

import (
	"bytes"
	"cmp"
	"container/heap"
	"context"
	"crypto/sha256"
	"errors"
	"hash/maphash"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/idempotency-go/idempotency/internal/bounds"
)

// MemoryOptions are the settings of a [MemoryStore]. The zero value of each field is its default.
type MemoryOptions struct {
	// MaxBytes bounds the memory of all records together, estimated with their overhead. At the limit, new claims are
	// refused with [ErrStoreFull]. No record is removed before it expires. The last eighth is reserved for claims: an
	// answer that does not fit into the rest is stored with Omitted set. Zero means 256 MiB.
	MaxBytes int64

	// MaxUserBytes bounds the records of one [Key.User] in the same way. At the limit, new claims of this user are refused
	// with [ErrUserQuota]. The last eighth is reserved for claims here too: so a step whose result does not fit into the
	// rest fails with the same error. Zero means half of MaxBytes. A value of MaxBytes or more means no limit, which suits
	// a service with one user.
	//
	// The half keeps one user from filling the store, by mistake or on purpose, and leaves room to a user who has most of
	// the work, as is usual in a service that is one process. But two users together can fill the store. If somebody can
	// have several accounts, set less: with MaxBytes/N, it takes N accounts.
	MaxUserBytes int64
}

func (o MemoryOptions) withDefaults() MemoryOptions {
	o.MaxBytes = cmp.Or(o.MaxBytes, 256<<20)
	o.MaxUserBytes = cmp.Or(o.MaxUserBytes, o.MaxBytes/2)
	if o.MaxUserBytes >= o.MaxBytes {
		o.MaxUserBytes = math.MaxInt64 // then a full store is always ErrStoreFull
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

// MemoryStore keeps records in the memory of the process. It is for tests, and for services that run as one process and
// may lose their records when it ends. It has no goroutine and nothing to close: each claim removes a few expired
// records. It is safe for concurrent use.
type MemoryStore struct {
	hashKey                   func(Key) uint64
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
	seed := maphash.MakeSeed()
	s := &MemoryStore{
		hashKey:   func(key Key) uint64 { return maphash.Comparable(seed, key) },
		startTime: time.Now(), claimLimits: claims, answerLimits: subtractReserve(claims), optionFaults: faults,
	}
	s.byteUsage.Init(ErrStoreFull, ErrUserQuota)
	for i := range s.shards {
		s.shards[i].store, s.shards[i].entriesByHash = s, make(map[uint64]*entry)
	}
	return s
}

// Validate implements [Validator].
func (s *MemoryStore) Validate(RunnerOptions) error { return s.optionFaults }

// Immediate implements [Immediate]: all records are in memory.
func (s *MemoryStore) Immediate() bool { return true }

// lessReserve returns the limits without the reserve for claims. A claim takes about 400 bytes and an answer may take
// 1 MiB, so an eighth leaves room for many claims and costs few answers.
func subtractReserve(l bounds.Limits) bounds.Limits {
	const part = 8
	return bounds.Limits{Total: l.Total - l.Total/part, User: l.User - l.User/part}
}

// shard holds the records of a part of the keys, by the hash of the key: a map with the keys themselves would be three
// times as large. The few records whose hashes are equal are a chain.
type shard struct {
	store         *MemoryStore
	mu            sync.Mutex
	entriesByHash map[uint64]*entry
	byExpiry      expiryHeap
	extrasByEntry map[*entry]extras
}

// extras are what the shard keeps for a record beside its entry. Few records have any, so no entry has a place for them.
type extras struct {
	checkpoints map[string][]byte
	resolved    *Resolved
	byteCount   int64 // of all, see add and resolve
}

func (sh *shard) findEntry(hash uint64, key Key) *entry {
	for e := sh.entriesByHash[hash]; e != nil; e = e.nextInChain {
		if e.key == key {
			return e
		}
	}
	return nil
}

func (sh *shard) addEntry(hash uint64, e *entry) {
	e.nextInChain = sh.entriesByHash[hash]
	sh.entriesByHash[hash] = e
}

func (sh *shard) unlinkEntry(hash uint64, e *entry) {
	first := sh.entriesByHash[hash]
	switch {
	case first != e:
		for first.nextInChain != e {
			first = first.nextInChain
		}
		first.nextInChain = e.nextInChain
	case e.nextInChain != nil:
		sh.entriesByHash[hash] = e.nextInChain
	default:
		delete(sh.entriesByHash, hash)
	}
	e.nextInChain = nil
}

// entry is one attempt at an operation, and the record of it; the next attempt has an entry of its own. So its address
// tells whose a claim is. Times are counted from the start of the store: a monotonic clock, in a third of the space.
type entry struct {
	shard       *shard
	key         Key
	fingerprint Fingerprint
	attempt     int32
	endedBy     entryEnding
	entryTimes
	response Response

	nextInChain *entry
	heapPlace   int // among those that expire, from 1; 0: removed
}

// entryEnding says how an attempt has ended.
type entryEnding uint8

const (
	notEnded  entryEnding = iota
	released              // by Release, or because the record was gone then
	freed                 // by Release: the entry is the record of no key
	completed             // by Complete
)

// times of an entry.
type entryTimes struct {
	createdAt time.Duration
	leaseEnd  time.Duration // when it ends
	expiresAt time.Duration // not before the lease
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

// entryOverhead estimates what a record takes beyond its bytes.
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
	hash := s.hashKey(key)
	sh := s.lockShard(hash)
	defer sh.mu.Unlock()
	now := s.timeSinceStart()
	s.removeExpired(sh, now, 2)

	stored := s.findLive(sh, hash, key, now)
	if stored != nil && !stored.isClaimable(request, now) {
		return stored.makeRecord(now), nil, nil
	}
	e := &entry{shard: sh, key: key, fingerprint: request.Fingerprint, attempt: 1}
	e.leaseEnd = now + request.Lease
	var remaining time.Duration
	if stored == nil {
		e.createdAt = now
		if err := s.insertEntry(sh, hash, e, now); err != nil {
			return Record{}, nil, err
		}
	} else {
		e.createdAt, e.attempt = stored.createdAt, stored.attempt+1
		remaining = stored.expiresAt - now
		sh.replaceEntry(hash, stored, e) // which is of the same size
	}
	sh.expireAfter(e, now, max(request.TTL, request.Lease))
	record := e.makeRecord(now)
	record.Remaining = remaining
	return record, e, nil
}

func (e *entry) isClaimable(request ClaimRequest, now time.Duration) bool {
	if e.endedBy == completed || e.fingerprint != request.Fingerprint {
		return false
	}
	return e.endedBy == released || request.TakeOver && e.leaseEnd <= now
}

func (s *MemoryStore) timeSinceStart() time.Duration { return time.Since(s.startTime) }

func (s *MemoryStore) lockShard(hash uint64) *shard {
	sh := &s.shards[hash%uint64(len(s.shards))]
	sh.mu.Lock()
	return sh
}

// find returns the record of key, unless it has expired.
func (s *MemoryStore) findLive(sh *shard, hash uint64, key Key, now time.Duration) *entry {
	e := sh.findEntry(hash, key)
	if e != nil && e.expiresAt <= now {
		s.removeEntry(sh, hash, e)
		return nil
	}
	return e
}

// insert adds a record, if there is room for it. The caller lets it expire.
func (s *MemoryStore) insertEntry(sh *shard, hash uint64, e *entry, now time.Duration) error {
	if err := s.reserveBytes(sh, e.key.User, e.countBytes(), s.claimLimits, now); err != nil {
		return err
	}
	sh.addEntry(hash, e)
	return nil
}

func (s *MemoryStore) removeEntry(sh *shard, hash uint64, e *entry) {
	sh.unlinkEntry(hash, e)
	sh.removeFromHeap(e)
	s.byteUsage.Subtract(e.key.User, e.countBytes())
	delete(sh.extrasByEntry, e)
}

// take reserves n bytes for user, if need be in the place of expired records. The caller holds sh.
func (s *MemoryStore) reserveBytes(sh *shard, user string, n int64, within bounds.Limits, now time.Duration) error {
	for {
		err := s.byteUsage.Add(user, n, within)
		if err == nil || !s.makeRoom(sh, now) {
			return err
		}
	}
}

// trim removes up to n expired records, and reports whether there were any.
func (s *MemoryStore) removeExpired(sh *shard, now time.Duration, n int) (trimmed bool) {
	for ; n > 0 && len(sh.byExpiry) > 0 && sh.byExpiry[0].expiresAt <= now; n-- {
		e := sh.byExpiry[0]
		s.removeEntry(sh, s.hashKey(e.key), e)
		trimmed = true
	}
	return trimmed
}

// makeRoom trims every shard that nobody is using, and reports whether there was anything to trim; the caller holds held.
func (s *MemoryStore) makeRoom(locked *shard, now time.Duration) (made bool) {
	const each = 16
	for i := range s.shards {
		sh := &s.shards[i]
		if sh == locked {
			made = s.removeExpired(sh, now, each) || made
		} else if sh.mu.TryLock() {
			made = s.removeExpired(sh, now, each) || made
			sh.mu.Unlock()
		}
	}
	return made
}

// expiring is a heap of records: the first one expires before all others. How long a record is kept differs from record to
// record, so they do not expire in the order in which they come.
type expiryHeap []*entry

func (x expiryHeap) Len() int           { return len(x) }
func (x expiryHeap) Less(i, j int) bool { return x[i].expiresAt < x[j].expiresAt }

func (x expiryHeap) Swap(i, j int) {
	x[i], x[j] = x[j], x[i]
	x[i].heapPlace, x[j].heapPlace = i+1, j+1
}

// Push is for [heap.Push].
func (x *expiryHeap) Push(e any) {
	*x = append(*x, e.(*entry))
	e.(*entry).heapPlace = len(*x)
}

// Pop is for [heap.Remove].
func (x *expiryHeap) Pop() any {
	last := len(*x) - 1
	e := (*x)[last]
	(*x)[last], *x = nil, (*x)[:last]
	e.heapPlace = 0
	return e
}

// expireAfter lets e expire after ttl.
func (sh *shard) expireAfter(e *entry, now, ttl time.Duration) {
	e.expiresAt = now + ttl
	if e.heapPlace == 0 {
		heap.Push(&sh.byExpiry, e)
		return
	}
	heap.Fix(&sh.byExpiry, e.heapPlace-1)
}

// forget takes e out of the heap.
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
		return nil // this is a repetition, even if the record has expired since
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

// future says whether an attempt goes on after a call of its claim.
type attemptFuture bool

const (
	attemptEnds   attemptFuture = false
	attemptGoesOn attemptFuture = true
)

// restore adds the entry again if it has expired, and returns [ErrRestored] then. The caller lets it expire. Any other
// error says why the entry is not the record of its key. If the attempt goes on, the entry gets the checkpoint [RecordLost].
func (e *entry) restoreEntry(now time.Duration, attempt attemptFuture) error {
	if e.isLive(now) {
		return nil
	}
	sh, s := e.shard, e.shard.store
	hash := s.hashKey(e.key)
	if s.findLive(e.shard, hash, e.key, now) != nil {
		return ErrClaimLost
	}
	if attempt == attemptGoesOn {
		var extra extras
		extra.addCheckpoint(RecordLost, nil)
		sh.setExtras(e, extra)
	}
	if err := s.insertEntry(sh, hash, e, now); err != nil {
		delete(sh.extrasByEntry, e)
		return err
	}
	return ErrRestored
}

// respond takes as much of the response as there is room for. The room for its status is there from the start.
func (e *entry) storeResponse(resp Response, now time.Duration) {
	s, before := e.shard.store, e.countBytes()
	e.endedBy, e.response = completed, resp
	n := e.countBytes() - before
	if n > 0 && s.reserveBytes(e.shard, e.key.User, n, s.answerLimits, now) != nil {
		e.response = Response{Status: resp.Status, Omitted: true}
	}
}

// live reports whether the entry is the record of its key.
func (e *entry) isLive(now time.Duration) bool { return e.heapPlace != 0 && e.expiresAt > now }

// Release implements [Claim].
func (e *entry) Release(_ context.Context, ttl time.Duration) error {
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
	// A record that is gone is marked as released too, so that Extend does not restore it.
	e.endedBy, e.leaseEnd = released, now
	switch {
	case !e.isLive(now):
		return ErrClaimLost
	case before == released:
	case ttl == 0:
		e.endedBy = freed
		e.shard.store.removeEntry(e.shard, e.shard.store.hashKey(e.key), e)
	default:
		e.shard.expireAfter(e, now, ttl)
	}
	return nil
}

// stillFree returns what a repeated Release says of a key that it has freed.
func (e *entry) checkStillFree(now time.Duration) error {
	if e.shard.store.findLive(e.shard, e.shard.store.hashKey(e.key), e.key, now) != nil {
		return ErrClaimLost
	}
	return nil
}

const (
	extraOverhead = 100         // estimates what a checkpoint, or a Resolved, takes beyond its bytes
	restoredTTL   = time.Minute // how long a record is kept that Checkpoint has made again, unless Extend keeps it longer
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

// add adds a checkpoint.
func (x *extras) addCheckpoint(name string, data []byte) {
	if x.checkpoints == nil {
		x.checkpoints = make(map[string][]byte)
	}
	x.checkpoints[name] = data
	x.byteCount += int64(extraOverhead + len(name) + len(data))
}

// resolve adds how the operation was resolved.
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

// replace puts an entry in the place of another one, with the extras of that one. The caller lets it expire.
func (sh *shard) replaceEntry(hash uint64, stored, next *entry) {
	sh.removeFromHeap(stored)
	sh.unlinkEntry(hash, stored)
	sh.addEntry(hash, next)
	if extra, ok := sh.extrasByEntry[stored]; ok {
		delete(sh.extrasByEntry, stored)
		sh.extrasByEntry[next] = extra
	}
}

// dropCheckpoints removes the checkpoints of an operation that is completed.
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
	stored := sh.store.findLive(sh, sh.store.hashKey(e.key), e.key, sh.store.timeSinceStart())
	if e.endedBy != notEnded || stored != nil && stored != e {
		return nil, ErrClaimLost
	}
	if stored == nil {
		return map[string][]byte{RecordLost: {}}, nil
	}
	return maps.Clone(sh.extrasByEntry[e].checkpoints), nil
}

var _ Resolver = (*MemoryStore)(nil)

// Inspect implements [Inspector]. It fills every field of an [Entry].
func (s *MemoryStore) Inspect(_ context.Context, key Key) (Entry, error) {
	if s.optionFaults != nil {
		return Entry{}, s.optionFaults
	}
	hash := s.hashKey(key)
	sh := s.lockShard(hash)
	defer sh.mu.Unlock()
	now := s.timeSinceStart()
	e := s.findLive(sh, hash, key, now)
	if e == nil {
		return Entry{}, ErrNoRecord
	}
	described := e.describeEntry(now)
	described.Digest, described.Resolved = key.Digest(), sh.extrasByEntry[e].resolved
	described.addSteps(sh.extrasByEntry[e].checkpoints)
	if e.endedBy == completed {
		described.Response = &e.response
	}
	return described, nil
}

// InspectDigest implements [Resolver]. It looks at all records.
func (s *MemoryStore) InspectDigest(ctx context.Context, digest [sha256.Size]byte) (Entry, error) {
	for i := range s.shards {
		if key, ok := s.shards[i].findKeyByDigest(digest); ok {
			return s.Inspect(ctx, key)
		}
	}
	return Entry{}, cmp.Or(s.optionFaults, ErrNoRecord)
}

func (sh *shard) findKeyByDigest(digest [sha256.Size]byte) (Key, bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for _, e := range sh.byExpiry {
		if e.key.Digest() == digest {
			return e.key, true
		}
	}
	return Key{}, false
}

// shown returns what people are told of the record, but for the digest and the response. The caller holds the shard.
func (e *entry) describeEntry(now time.Duration) Entry {
	described := Entry{
		Key: e.key, State: e.stateAt(now),
		Attempt: int(e.attempt), Created: e.shard.store.startTime.Add(e.createdAt), Fingerprint: e.fingerprint,
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

// state says what the record means for a request that comes now.
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
	return s.changeEntry(inspected, func(sh *shard, hash uint64, e *entry, _ time.Duration) error {
		s.removeEntry(sh, hash, e)
		return nil
	})
}

// Resolve implements [Resolver].
func (s *MemoryStore) Resolve(_ context.Context, inspected Entry, r Resolution) error {
	return s.changeEntry(inspected, func(sh *shard, hash uint64, e *entry, now time.Duration) error {
		return s.resolveEntry(sh, hash, e, inspected, r, now)
	})
}

// change does what an operator asks for to the record of an entry, if it has not changed.
func (s *MemoryStore) changeEntry(inspected Entry, do func(sh *shard, hash uint64, e *entry, now time.Duration) error) error {
	if s.optionFaults != nil {
		return s.optionFaults
	}
	hash := s.hashKey(inspected.Key)
	sh := s.lockShard(hash)
	defer sh.mu.Unlock()
	now := s.timeSinceStart()
	e := s.findLive(sh, hash, inspected.Key, now)
	if e == nil {
		return ErrNoRecord
	}
	if err := e.describeEntry(now).checkUnchanged(inspected); err != nil {
		return err
	}
	return do(sh, hash, e, now)
}

// resolve puts an entry that nobody owns in the place of an abandoned one, if there is room for it. There always is if the
// record does not grow. What is as small as a claim may have the reserve for claims.
func (s *MemoryStore) resolveEntry(
	sh *shard, hash uint64, stored *entry, inspected Entry, r Resolution, now time.Duration,
) error {
	if stored.stateAt(now) != StateAbandoned {
		return ErrEntryChanged
	}
	next, within := *stored, s.claimLimits
	next.nextInChain, next.heapPlace, next.leaseEnd = nil, 0, now
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
	grows := next.countBytes() + extra.byteCount - stored.countBytes()
	if grows <= 0 {
		s.byteUsage.Subtract(stored.key.User, -grows)
	} else if err := s.reserveBytes(sh, stored.key.User, grows, within, now); err != nil {
		return err
	}
	sh.replaceEntry(hash, stored, &next)
	sh.setExtras(&next, extra)
	sh.expireAfter(&next, now, r.TTL)
	return nil
}

// List implements [Inspector]. It looks at all records, whatever ListRequest.Scan says. Claims in the part of the store
// that it is looking at wait: some milliseconds if there are a million records.
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
		s.shards[i].listEntries(request.User, collected)
	}
	listing := collected.makeListing()
	for i := range listing.Entries {
		listing.Entries[i].Digest = listing.Entries[i].Key.Digest()
	}
	return listing, nil
}

// list adds the records of a user, or of all users.
func (sh *shard) listEntries(user string, collected *collector) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := sh.store.timeSinceStart()
	for _, e := range sh.byExpiry { // which has all of them
		if e.isLive(now) && (user == "" || user == e.key.User) {
			collected.addEntry(e.describeEntry(now))
		}
	}
}
