package idempotency

import (
	"bytes"
	"cmp"
	"container/heap"
	"context"
	"errors"
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// MemoryOptions are the settings of a [MemoryStore]. The zero value of each field is its default.
type MemoryOptions struct {
	// MaxBytes bounds the memory of all records together, estimated with their overhead. At the limit, new claims are
	// refused with [ErrStoreFull]. No record is removed before it expires. The last eighth is reserved for claims: an
	// answer that does not fit into the rest is stored with Omitted set. Zero means 256 MiB.
	MaxBytes int64

	// MaxUserBytes bounds the records of one [Key.User] in the same way. At the limit, new claims of this user are refused
	// with [ErrUserQuota]. The last eighth is reserved for claims here too. Zero means half of MaxBytes. A value of
	// MaxBytes or more means no limit, which suits a service with one user.
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
	return errors.Join(faults...)
}

// MemoryStore keeps records in the memory of the process. It is for tests, and for services that run as one process and
// may lose their records when it ends. It has no goroutine and nothing to close: each claim removes a few expired
// records. It is safe for concurrent use.
type MemoryStore struct {
	hash            func(Key) uint64
	start           time.Time
	claims, answers limits
	usage           usage
	shards          [64]shard
	faults          error
}

// NewMemoryStore returns an empty store. If opts has faults, Begin returns them.
func NewMemoryStore(opts MemoryOptions) *MemoryStore {
	faults := opts.validate()
	opts = opts.withDefaults()
	claims := limits{total: opts.MaxBytes, user: opts.MaxUserBytes}
	seed := maphash.MakeSeed()
	s := &MemoryStore{
		hash:  func(key Key) uint64 { return maphash.Comparable(seed, key) },
		start: time.Now(), claims: claims, answers: claims.lessReserve(), faults: faults,
	}
	s.usage.init()
	for i := range s.shards {
		s.shards[i].store, s.shards[i].entries = s, make(map[uint64]*entry)
	}
	return s
}

// Immediate implements [Immediate]: all records are in memory.
func (s *MemoryStore) Immediate() bool { return true }

// limits are the most bytes that all records may have, and those of one user.
type limits struct{ total, user int64 }

// lessReserve returns the limits without the reserve for claims. A claim takes about 400 bytes and an answer may take
// 1 MiB, so an eighth leaves room for many claims and costs few answers.
func (l limits) lessReserve() limits {
	const part = 8
	return limits{total: l.total - l.total/part, user: l.user - l.user/part}
}

// usage counts the bytes of all records, and those of each user. Users are divided by their hash, so that few wait for
// the same lock. It is safe for concurrent use.
type usage struct {
	seed  maphash.Seed
	total atomic.Int64
	parts [64]userBytes
}

// userBytes counts the bytes of some users. A user without records is not in the map.
type userBytes struct {
	mu    sync.Mutex
	bytes map[string]int64
}

func (u *usage) init() {
	u.seed = maphash.MakeSeed()
	for i := range u.parts {
		u.parts[i].bytes = make(map[string]int64)
	}
}

func (u *usage) part(user string) *userBytes {
	return &u.parts[maphash.String(u.seed, user)%uint64(len(u.parts))]
}

// add counts n more bytes of user. It returns an error and counts nothing if that would exceed a limit.
func (u *usage) add(user string, n int64, within limits) error {
	part := u.part(user)
	part.mu.Lock()
	defer part.mu.Unlock()
	sum := part.bytes[user] + n
	if sum > within.user {
		return ErrUserQuota
	}
	if !u.addTotal(n, within.total) {
		return ErrStoreFull
	}
	part.bytes[user] = sum
	return nil
}

// addTotal checks the limit before it adds. A large answer without room must not make a claim fail in the meantime.
func (u *usage) addTotal(n, limit int64) bool {
	for {
		total := u.total.Load()
		if total+n > limit {
			return false
		}
		if u.total.CompareAndSwap(total, total+n) {
			return true
		}
	}
}

// subtract counts n fewer bytes of user.
func (u *usage) subtract(user string, n int64) {
	part := u.part(user)
	part.mu.Lock()
	defer part.mu.Unlock()
	u.total.Add(-n)
	part.bytes[user] -= n
	if part.bytes[user] == 0 {
		delete(part.bytes, user)
	}
}

// shard holds the records of a part of the keys, by the hash of the key: a map with the keys themselves would be three
// times as large. The few records whose hashes are equal are a chain.
type shard struct {
	store    *MemoryStore
	mu       sync.Mutex
	entries  map[uint64]*entry
	expiring expiring
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
	released    bool
	completed   bool
	created     time.Duration
	lease       time.Duration // when it ends
	expires     time.Duration // not before the lease
	response    Response

	chain *entry
	place int // among those that expire, from 1; 0: removed
}

func (e *entry) record(now time.Duration) Record {
	r := Record{
		Attempt:     int(e.attempt),
		Fingerprint: e.fingerprint,
		Created:     e.shard.store.start.Add(e.created),
		LeaseLeft:   max(0, e.lease-now),
	}
	if e.completed {
		r.Response, r.Remaining = &e.response, e.expires-now
	}
	return r
}

// entryOverhead estimates what a record takes beyond its bytes.
const entryOverhead = 320

func (e *entry) size() int64 {
	n := entryOverhead + len(e.key.User) + len(e.key.Endpoint) + len(e.key.ID) +
		len(e.response.Note) + len(e.response.Header) + len(e.response.Trailer) + len(e.response.Body)
	return int64(n)
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
	e := &entry{shard: sh, key: key, fingerprint: request.Fingerprint, attempt: 1, lease: now + request.Lease}
	var remaining time.Duration
	if held == nil {
		e.created = now
		if err := s.insert(sh, hash, e, now); err != nil {
			return Record{}, nil, err
		}
	} else {
		e.created, e.attempt = held.created, held.attempt+1
		remaining = held.expires - now
		sh.forget(held)
		sh.drop(hash, held)
		sh.put(hash, e) // of the same size
	}
	sh.expireAfter(e, now, max(request.TTL, request.Lease))
	record := e.record(now)
	record.Remaining = remaining
	return record, e, nil
}

func (e *entry) claimable(request ClaimRequest, now time.Duration) bool {
	if e.completed || e.fingerprint != request.Fingerprint {
		return false
	}
	return e.released || request.TakeOver && e.lease <= now
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
	s.usage.subtract(e.key.User, e.size())
}

// take reserves n bytes for user, if need be in the place of expired records. The caller holds sh.
func (s *MemoryStore) take(sh *shard, user string, n int64, within limits, now time.Duration) error {
	for {
		err := s.usage.add(user, n, within)
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

// Context implements [Claim].
func (e *entry) Context(ctx context.Context) context.Context { return ctx }

// Extend implements [Claim].
func (e *entry) Extend(_ context.Context, lease time.Duration) error {
	e.shard.mu.Lock()
	defer e.shard.mu.Unlock()
	if e.completed || e.released {
		return ErrClaimLost
	}
	now := e.shard.store.now()
	err := e.restore(now)
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
	if e.completed {
		return nil // this is a repetition, even if the record has expired since
	}
	if e.released {
		return ErrClaimLost
	}
	now := e.shard.store.now()
	err := e.restore(now)
	if err != nil && err != ErrRestored {
		return err
	}
	e.respond(resp, now)
	e.lease = now
	e.shard.expireAfter(e, now, ttl)
	return err
}

// restore adds the entry again if it has expired, and returns [ErrRestored] then. The caller lets it expire. Any other
// error says why the entry is not the record of its key.
func (e *entry) restore(now time.Duration) error {
	if e.live(now) {
		return nil
	}
	s := e.shard.store
	hash := s.hash(e.key)
	if s.find(e.shard, hash, e.key, now) != nil {
		return ErrClaimLost
	}
	if err := s.insert(e.shard, hash, e, now); err != nil {
		return err
	}
	return ErrRestored
}

// respond takes as much of the response as there is room for. The room for its status is there from the start.
func (e *entry) respond(resp Response, now time.Duration) {
	s, before := e.shard.store, e.size()
	e.completed, e.response = true, resp
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
	if e.completed {
		return ErrClaimLost
	}
	repeated := e.released
	e.released, e.lease = true, now // also of a record that is gone, for Extend not to restore it
	if !e.live(now) {
		return ErrClaimLost
	}
	if !repeated {
		e.shard.expireAfter(e, now, ttl)
	}
	return nil
}

var _ Inspector = (*MemoryStore)(nil)

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
	shown.Digest = key.Digest()
	if e.completed {
		shown.Response = &e.response
	}
	return shown, nil
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
	case e.completed:
		return StateCompleted
	case e.released:
		return StateReleased
	case e.lease > now:
		return StateRunning
	default:
		return StateAbandoned
	}
}

// Forget implements [Inspector].
func (s *MemoryStore) Forget(_ context.Context, asked Entry) error {
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
	if err := e.shown(now).mayForget(asked); err != nil {
		return err
	}
	s.remove(sh, hash, e)
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
