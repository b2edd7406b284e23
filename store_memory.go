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

func (o MemoryOptions) validate() error {
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
	hash            func(Key) uint64
	start           time.Time
	claims, answers bounds.Limits
	usage           bounds.Usage
	shards          [64]shard
	faults          error
}

// NewMemoryStore returns an empty store. If opts has faults, [New] and Begin return them.
func NewMemoryStore(opts MemoryOptions) *MemoryStore {
	faults := opts.validate()
	opts = opts.withDefaults()
	claims := bounds.Limits{Total: opts.MaxBytes, User: opts.MaxUserBytes}
	seed := maphash.MakeSeed()
	s := &MemoryStore{
		hash:  func(key Key) uint64 { return maphash.Comparable(seed, key) },
		start: time.Now(), claims: claims, answers: lessReserve(claims), faults: faults,
	}
	s.usage.Init(ErrStoreFull, ErrUserQuota)
	for i := range s.shards {
		s.shards[i].store, s.shards[i].entries = s, make(map[uint64]*entry)
	}
	return s
}

// Validate implements [Validator].
func (s *MemoryStore) Validate(RunnerOptions) error { return s.faults }

// Immediate implements [Immediate]: all records are in memory.
func (s *MemoryStore) Immediate() bool { return true }

// lessReserve returns the limits without the reserve for claims. A claim takes about 400 bytes and an answer may take
// 1 MiB, so an eighth leaves room for many claims and costs few answers.
func lessReserve(l bounds.Limits) bounds.Limits {
	const part = 8
	return bounds.Limits{Total: l.Total - l.Total/part, User: l.User - l.User/part}
}

// shard holds the records of a part of the keys, by the hash of the key: a map with the keys themselves would be three
// times as large. The few records whose hashes are equal are a chain.
type shard struct {
	store    *MemoryStore
	mu       sync.Mutex
	entries  map[uint64]*entry
	expiring expiring
	extras   map[*entry]extras
}

// extras are what the shard keeps for a record beside its entry. Few records have any, so no entry has a place for them.
type extras struct {
	checkpoints map[string][]byte
	resolved    *Resolved
	size        int64 // of all, see add and resolve
}

func (sh *shard) get(hash uint64, key Key) *entry {
	for e := sh.entries[hash]; e != nil; e = e.chain {
		if e.key == key {
			return e
		}
	}
	return nil
}

func (sh *shard) put(hash uint64, e *entry) {
	e.chain = sh.entries[hash]
	sh.entries[hash] = e
}

func (sh *shard) drop(hash uint64, e *entry) {
	first := sh.entries[hash]
	switch {
	case first != e:
		for first.chain != e {
			first = first.chain
		}
		first.chain = e.chain
	case e.chain != nil:
		sh.entries[hash] = e.chain
	default:
		delete(sh.entries, hash)
	}
	e.chain = nil
}

// entry is one attempt at an operation, and the record of it; the next attempt has an entry of its own. So its address
// tells whose a claim is. Times are counted from the start of the store: a monotonic clock, in a third of the space.
type entry struct {
	shard       *shard
	key         Key
	fingerprint Fingerprint
	attempt     int32
	ended       entryEnding
	times
	response Response

	chain *entry
	place int // among those that expire, from 1; 0: removed
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
type times struct {
	created time.Duration
	lease   time.Duration // when it ends
	expires time.Duration // not before the lease
}

func (e *entry) record(now time.Duration) Record {
	r := Record{
		Attempt:     int(e.attempt),
		Fingerprint: e.fingerprint,
		Created:     e.shard.store.start.Add(e.created),
		LeaseLeft:   max(0, e.lease-now),
	}
	if e.ended == completed {
		r.Response, r.Remaining = &e.response, e.expires-now
	}
	return r
}

// entryOverhead estimates what a record takes beyond its bytes.
const entryOverhead = 320

func (e *entry) size() int64 {
	n := entryOverhead + len(e.key.User) + len(e.key.Endpoint) + len(e.key.ID) +
		len(e.response.Note) + len(e.response.Header) + len(e.response.Trailer) + len(e.response.Body)
	return int64(n) + e.shard.extras[e].size
}

// Begin implements [Store].
func (s *MemoryStore) Begin(_ context.Context, key Key, request ClaimRequest) (Record, Claim, error) {
	if s.faults != nil {
		return Record{}, nil, s.faults
	}
	hash := s.hash(key)
	sh := s.lock(hash)
	defer sh.mu.Unlock()
	now := s.now()
	s.trim(sh, now, 2)

	held := s.find(sh, hash, key, now)
	if held != nil && !held.claimable(request, now) {
		return held.record(now), nil, nil
	}
	e := &entry{shard: sh, key: key, fingerprint: request.Fingerprint, attempt: 1, times: times{lease: now + request.Lease}}
	var remaining time.Duration
	if held == nil {
		e.created = now
		if err := s.insert(sh, hash, e, now); err != nil {
			return Record{}, nil, err
		}
	} else {
		e.created, e.attempt = held.created, held.attempt+1
		remaining = held.expires - now
		sh.replace(hash, held, e) // which is of the same size
	}
	sh.expireAfter(e, now, max(request.TTL, request.Lease))
	record := e.record(now)
	record.Remaining = remaining
	return record, e, nil
}

func (e *entry) claimable(request ClaimRequest, now time.Duration) bool {
	if e.ended == completed || e.fingerprint != request.Fingerprint {
		return false
	}
	return e.ended == released || request.TakeOver && e.lease <= now
}

func (s *MemoryStore) now() time.Duration { return time.Since(s.start) }

func (s *MemoryStore) lock(hash uint64) *shard {
	sh := &s.shards[hash%uint64(len(s.shards))]
	sh.mu.Lock()
	return sh
}

// find returns the record of key, unless it has expired.
func (s *MemoryStore) find(sh *shard, hash uint64, key Key, now time.Duration) *entry {
	e := sh.get(hash, key)
	if e != nil && e.expires <= now {
		s.remove(sh, hash, e)
		return nil
	}
	return e
}

// insert adds a record, if there is room for it. The caller lets it expire.
func (s *MemoryStore) insert(sh *shard, hash uint64, e *entry, now time.Duration) error {
	if err := s.take(sh, e.key.User, e.size(), s.claims, now); err != nil {
		return err
	}
	sh.put(hash, e)
	return nil
}

func (s *MemoryStore) remove(sh *shard, hash uint64, e *entry) {
	sh.drop(hash, e)
	sh.forget(e)
	s.usage.Subtract(e.key.User, e.size())
	delete(sh.extras, e)
}

// take reserves n bytes for user, if need be in the place of expired records. The caller holds sh.
func (s *MemoryStore) take(sh *shard, user string, n int64, within bounds.Limits, now time.Duration) error {
	for {
		err := s.usage.Add(user, n, within)
		if err == nil || !s.makeRoom(sh, now) {
			return err
		}
	}
}

// trim removes up to n expired records, and reports whether there were any.
func (s *MemoryStore) trim(sh *shard, now time.Duration, n int) (trimmed bool) {
	for ; n > 0 && len(sh.expiring) > 0 && sh.expiring[0].expires <= now; n-- {
		e := sh.expiring[0]
		s.remove(sh, s.hash(e.key), e)
		trimmed = true
	}
	return trimmed
}

// makeRoom trims every shard that nobody is using, and reports whether there was anything to trim; the caller holds held.
func (s *MemoryStore) makeRoom(held *shard, now time.Duration) (made bool) {
	const each = 16
	for i := range s.shards {
		sh := &s.shards[i]
		if sh == held {
			made = s.trim(sh, now, each) || made
		} else if sh.mu.TryLock() {
			made = s.trim(sh, now, each) || made
			sh.mu.Unlock()
		}
	}
	return made
}

// expiring is a heap of records: the first one expires before all others. How long a record is kept differs from record to
// record, so they do not expire in the order in which they come.
type expiring []*entry

func (x expiring) Len() int           { return len(x) }
func (x expiring) Less(i, j int) bool { return x[i].expires < x[j].expires }

func (x expiring) Swap(i, j int) {
	x[i], x[j] = x[j], x[i]
	x[i].place, x[j].place = i+1, j+1
}

// Push is for [heap.Push].
func (x *expiring) Push(e any) {
	*x = append(*x, e.(*entry))
	e.(*entry).place = len(*x)
}

// Pop is for [heap.Remove].
func (x *expiring) Pop() any {
	last := len(*x) - 1
	e := (*x)[last]
	(*x)[last], *x = nil, (*x)[:last]
	e.place = 0
	return e
}

// expireAfter lets e expire after ttl.
func (sh *shard) expireAfter(e *entry, now, ttl time.Duration) {
	e.expires = now + ttl
	if e.place == 0 {
		heap.Push(&sh.expiring, e)
		return
	}
	heap.Fix(&sh.expiring, e.place-1)
}

// forget takes e out of the heap.
func (sh *shard) forget(e *entry) { heap.Remove(&sh.expiring, e.place-1) }

// Extend implements [Claim].
func (e *entry) Extend(_ context.Context, lease time.Duration) error {
	e.shard.mu.Lock()
	defer e.shard.mu.Unlock()
	if e.ended != notEnded {
		return ErrClaimLost
	}
	now := e.shard.store.now()
	err := e.restore(now, attemptGoesOn)
	if err != nil && err != ErrRestored {
		return err
	}
	e.lease = now + lease
	if e.place == 0 || e.expires < e.lease {
		e.shard.expireAfter(e, now, lease)
	}
	return err
}

// Complete implements [Claim].
func (e *entry) Complete(_ context.Context, resp Response, ttl time.Duration) error {
	resp.Body = bytes.Clone(resp.Body)
	e.shard.mu.Lock()
	defer e.shard.mu.Unlock()
	switch e.ended {
	case completed:
		return nil // this is a repetition, even if the record has expired since
	case released, freed:
		return ErrClaimLost
	}
	now := e.shard.store.now()
	err := e.restore(now, attemptEnds)
	if err != nil && err != ErrRestored {
		return err
	}
	e.shard.dropCheckpoints(e)
	e.respond(resp, now)
	e.lease = now
	e.shard.expireAfter(e, now, ttl)
	return err
}

// future says whether an attempt goes on after a call of its claim.
type future bool

const (
	attemptEnds   future = false
	attemptGoesOn future = true
)

// restore adds the entry again if it has expired, and returns [ErrRestored] then. The caller lets it expire. Any other
// error says why the entry is not the record of its key. If the attempt goes on, the entry gets the checkpoint [RecordLost].
func (e *entry) restore(now time.Duration, attempt future) error {
	if e.live(now) {
		return nil
	}
	sh, s := e.shard, e.shard.store
	hash := s.hash(e.key)
	if s.find(e.shard, hash, e.key, now) != nil {
		return ErrClaimLost
	}
	if attempt == attemptGoesOn {
		var extra extras
		extra.add(RecordLost, nil)
		sh.setExtras(e, extra)
	}
	if err := s.insert(sh, hash, e, now); err != nil {
		delete(sh.extras, e)
		return err
	}
	return ErrRestored
}

// respond takes as much of the response as there is room for. The room for its status is there from the start.
func (e *entry) respond(resp Response, now time.Duration) {
	s, before := e.shard.store, e.size()
	e.ended, e.response = completed, resp
	n := e.size() - before
	if n > 0 && s.take(e.shard, e.key.User, n, s.answers, now) != nil {
		e.response = Response{Status: resp.Status, Omitted: true}
	}
}

// live reports whether the entry is the record of its key.
func (e *entry) live(now time.Duration) bool { return e.place != 0 && e.expires > now }

// Release implements [Claim].
func (e *entry) Release(_ context.Context, ttl time.Duration) error {
	e.shard.mu.Lock()
	defer e.shard.mu.Unlock()
	now := e.shard.store.now()
	before := e.ended
	switch before {
	case completed:
		return ErrClaimLost
	case freed:
		return e.stillFree(now)
	}
	e.ended, e.lease = released, now // also of a record that is gone, for Extend not to restore it
	switch {
	case !e.live(now):
		return ErrClaimLost
	case before == released:
	case ttl == 0:
		e.ended = freed
		e.shard.store.remove(e.shard, e.shard.store.hash(e.key), e)
	default:
		e.shard.expireAfter(e, now, ttl)
	}
	return nil
}

// stillFree returns what a repeated Release says of a key that it has freed.
func (e *entry) stillFree(now time.Duration) error {
	if e.shard.store.find(e.shard, e.shard.store.hash(e.key), e.key, now) != nil {
		return ErrClaimLost
	}
	return nil
}

const (
	extraOverhead = 100         // estimates what a checkpoint, or a Resolved, takes beyond its bytes
	restoredFor   = time.Minute // how long a record is kept that Checkpoint has made again, unless Extend keeps it longer
)

// Checkpoint implements [Checkpointer].
func (e *entry) Checkpoint(_ context.Context, name string, data []byte) (stored []byte, err error) {
	sh, s := e.shard, e.shard.store
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if e.ended != notEnded {
		return nil, ErrClaimLost
	}
	now := s.now()
	restored := e.restore(now, attemptGoesOn)
	switch restored {
	case nil:
	case ErrRestored:
		sh.expireAfter(e, now, restoredFor)
	default:
		return nil, restored
	}
	extra := sh.extras[e]
	if stored, ok := extra.checkpoints[name]; ok {
		return stored, restored
	}
	before := extra.size
	extra.add(name, data)
	if err := s.take(sh, e.key.User, extra.size-before, s.answers, now); err != nil {
		delete(extra.checkpoints, name)
		return nil, err
	}
	sh.setExtras(e, extra)
	return data, restored
}

// add adds a checkpoint.
func (x *extras) add(name string, data []byte) {
	if x.checkpoints == nil {
		x.checkpoints = make(map[string][]byte)
	}
	x.checkpoints[name] = data
	x.size += int64(extraOverhead + len(name) + len(data))
}

// resolve adds how the operation was resolved.
func (x *extras) resolve(how *Resolved) {
	x.resolved = how
	x.size += int64(extraOverhead + len(how.Operator) + len(how.Reason))
}

func (sh *shard) setExtras(e *entry, extra extras) {
	if extra.size == 0 {
		delete(sh.extras, e)
		return
	}
	if sh.extras == nil {
		sh.extras = make(map[*entry]extras)
	}
	sh.extras[e] = extra
}

// replace puts an entry in the place of another one, with the extras of that one. The caller lets it expire.
func (sh *shard) replace(hash uint64, held, next *entry) {
	sh.forget(held)
	sh.drop(hash, held)
	sh.put(hash, next)
	if extra, ok := sh.extras[held]; ok {
		delete(sh.extras, held)
		sh.extras[next] = extra
	}
}

// dropCheckpoints removes the checkpoints of an operation that is completed.
func (sh *shard) dropCheckpoints(e *entry) {
	before, ok := sh.extras[e]
	if !ok {
		return
	}
	var extra extras
	if before.resolved != nil {
		extra.resolve(before.resolved)
	}
	sh.store.usage.Subtract(e.key.User, before.size-extra.size)
	sh.setExtras(e, extra)
}

// Checkpoints implements [Checkpointer].
func (e *entry) Checkpoints(context.Context) (map[string][]byte, error) {
	sh := e.shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	held := sh.store.find(sh, sh.store.hash(e.key), e.key, sh.store.now())
	if e.ended != notEnded || held != nil && held != e {
		return nil, ErrClaimLost
	}
	if held == nil {
		return map[string][]byte{RecordLost: {}}, nil
	}
	return maps.Clone(sh.extras[e].checkpoints), nil
}

var _ Resolver = (*MemoryStore)(nil)

// Inspect implements [Inspector]. It fills every field of an [Entry].
func (s *MemoryStore) Inspect(_ context.Context, key Key) (Entry, error) {
	if s.faults != nil {
		return Entry{}, s.faults
	}
	hash := s.hash(key)
	sh := s.lock(hash)
	defer sh.mu.Unlock()
	now := s.now()
	e := s.find(sh, hash, key, now)
	if e == nil {
		return Entry{}, ErrNoRecord
	}
	shown := e.shown(now)
	shown.Digest, shown.Resolved = key.Digest(), sh.extras[e].resolved
	shown.addSteps(sh.extras[e].checkpoints)
	if e.ended == completed {
		shown.Response = &e.response
	}
	return shown, nil
}

// InspectDigest implements [Resolver]. It looks at all records.
func (s *MemoryStore) InspectDigest(ctx context.Context, digest [sha256.Size]byte) (Entry, error) {
	for i := range s.shards {
		if key, ok := s.shards[i].keyWith(digest); ok {
			return s.Inspect(ctx, key)
		}
	}
	return Entry{}, cmp.Or(s.faults, ErrNoRecord)
}

func (sh *shard) keyWith(digest [sha256.Size]byte) (Key, bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for _, e := range sh.expiring {
		if e.key.Digest() == digest {
			return e.key, true
		}
	}
	return Key{}, false
}

// shown returns what people are told of the record, but for the digest and the response. The caller holds the shard.
func (e *entry) shown(now time.Duration) Entry {
	shown := Entry{
		Key: e.key, State: e.state(now),
		Attempt: int(e.attempt), Created: e.shard.store.start.Add(e.created), Fingerprint: e.fingerprint,
		Remaining: e.expires - now, Size: e.size() - entryOverhead,
	}
	switch shown.State {
	case StateRunning:
		shown.LeaseLeft = e.lease - now
	case StateCompleted:
		shown.Completed, shown.Status = e.shard.store.start.Add(e.lease), e.response.Status
		shown.Note = e.response.Note
	}
	return shown
}

// state says what the record means for a request that comes now.
func (e *entry) state(now time.Duration) State {
	switch {
	case e.ended == completed:
		return StateCompleted
	case e.ended == released:
		return StateReleased
	case e.lease > now:
		return StateRunning
	default:
		return StateAbandoned
	}
}

// Forget implements [Inspector].
func (s *MemoryStore) Forget(_ context.Context, asked Entry) error {
	return s.change(asked, func(sh *shard, hash uint64, e *entry, _ time.Duration) error {
		s.remove(sh, hash, e)
		return nil
	})
}

// Resolve implements [Resolver].
func (s *MemoryStore) Resolve(_ context.Context, asked Entry, r Resolution) error {
	return s.change(asked, func(sh *shard, hash uint64, e *entry, now time.Duration) error {
		return s.resolve(sh, hash, e, asked, r, now)
	})
}

// change does what an operator asks for to the record of an entry, if it has not changed.
func (s *MemoryStore) change(asked Entry, do func(sh *shard, hash uint64, e *entry, now time.Duration) error) error {
	if s.faults != nil {
		return s.faults
	}
	hash := s.hash(asked.Key)
	sh := s.lock(hash)
	defer sh.mu.Unlock()
	now := s.now()
	e := s.find(sh, hash, asked.Key, now)
	if e == nil {
		return ErrNoRecord
	}
	if err := e.shown(now).mayChange(asked); err != nil {
		return err
	}
	return do(sh, hash, e, now)
}

// resolve puts an entry that nobody owns in the place of an abandoned one, if there is room for it. There always is if the
// record does not grow. What is as small as a claim may have the reserve for claims.
func (s *MemoryStore) resolve(sh *shard, hash uint64, held *entry, asked Entry, r Resolution, now time.Duration) error {
	if held.state(now) != StateAbandoned {
		return ErrEntryChanged
	}
	next, within := *held, s.claims
	next.chain, next.place, next.lease = nil, 0, now
	var extra extras
	if r.Response != nil {
		next.ended, next.response = completed, r.Response.Clone()
		if !r.Response.Omitted {
			within = s.answers
		}
	} else {
		next.ended = released
		open := asked.OpenMarks()
		for name, data := range sh.extras[held].checkpoints {
			if !slices.Contains(open, name) {
				extra.add(name, data)
			}
		}
	}
	resolved := r.Resolved(asked)
	extra.resolve(&resolved)
	grows := next.size() + extra.size - held.size()
	if grows <= 0 {
		s.usage.Subtract(held.key.User, -grows)
	} else if err := s.take(sh, held.key.User, grows, within, now); err != nil {
		return err
	}
	sh.replace(hash, held, &next)
	sh.setExtras(&next, extra)
	sh.expireAfter(&next, now, r.TTL)
	return nil
}

// List implements [Inspector]. It looks at all records, whatever ListRequest.Scan says. Claims in the part of the store
// that it is looking at wait: some milliseconds if there are a million records.
func (s *MemoryStore) List(ctx context.Context, request ListRequest) (Listing, error) {
	if s.faults != nil {
		return Listing{}, s.faults
	}
	found, err := newCollector(request)
	if err != nil {
		return Listing{}, err
	}
	for i := range s.shards {
		if err := ctx.Err(); err != nil {
			return Listing{}, err
		}
		s.shards[i].list(request.User, found)
	}
	listing := found.result()
	for i := range listing.Entries {
		listing.Entries[i].Digest = listing.Entries[i].Key.Digest()
	}
	return listing, nil
}

// list adds the records of a user, or of all users.
func (sh *shard) list(user string, to *collector) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := sh.store.now()
	for _, e := range sh.expiring { // which has all of them
		if e.live(now) && (user == "" || user == e.key.User) {
			to.add(e.shown(now))
		}
	}
}
