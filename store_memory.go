package idempotency

import (
	"bytes"
	"cmp"
	"context"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// MemoryOptions are the settings of a [MemoryStore]. The zero value of each field is its default.
type MemoryOptions struct {
	// MaxBytes bounds the memory of all records together, estimated with their overhead. At the limit new claims are
	// refused with [ErrStoreFull], rather than a record forgotten before its time. Zero means 256 MiB.
	MaxBytes int64
}

// MemoryStore keeps records in the memory of the process: for tests, and for services that run as one process and may
// forget their records with it. It has no goroutine and nothing to close: each claim removes a few expired records.
// It is safe for concurrent use.
type MemoryStore struct {
	hash   func(Key) uint64
	start  time.Time
	max    int64
	size   atomic.Int64
	shards [64]shard
}

// NewMemoryStore returns an empty store.
func NewMemoryStore(opts MemoryOptions) *MemoryStore {
	seed := maphash.MakeSeed()
	s := &MemoryStore{
		hash:  func(key Key) uint64 { return maphash.Comparable(seed, key) },
		start: time.Now(), max: cmp.Or(opts.MaxBytes, 256<<20),
	}
	for i := range s.shards {
		s.shards[i].store, s.shards[i].entries = s, make(map[uint64]*entry)
	}
	return s
}

// shard holds the records of a part of the keys, by the hash of the key: a map with the keys themselves would be three
// times as large. The few records whose hashes are equal are a chain.
type shard struct {
	store   *MemoryStore
	mu      sync.Mutex
	entries map[uint64]*entry
	queues  []*queue
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
	operation   uuid.UUID
	fingerprint Fingerprint
	attempt     int32
	released    bool
	completed   bool
	created     time.Duration
	lease       time.Duration // when it ends
	expires     time.Duration // not before the lease
	response    Response

	chain      *entry
	queue      *queue // nil: removed
	prev, next *entry
}

func (e *entry) record(now time.Duration) Record {
	r := Record{
		Operation:   e.operation,
		Attempt:     int(e.attempt),
		Fingerprint: e.fingerprint,
		Created:     e.shard.store.start.Add(e.created),
		LeaseLeft:   max(0, e.lease-now),
	}
	if e.completed {
		r.Response = &e.response
	}
	return r
}

// entryOverhead estimates what a record takes beyond its bytes.
const entryOverhead = 320

func (e *entry) size() int64 {
	n := entryOverhead + len(e.key.User) + len(e.key.Endpoint) + len(e.key.ID) +
		len(e.response.Header) + len(e.response.Trailer) + len(e.response.Body)
	return int64(n)
}

// Begin implements [Store].
func (s *MemoryStore) Begin(_ context.Context, key Key, request ClaimRequest) (Record, Claim, error) {
	hash := s.hash(key)
	sh := s.lock(hash)
	defer sh.mu.Unlock()
	now := time.Since(s.start)
	s.trim(sh, now, 2)

	held := s.find(sh, hash, key, now)
	if held != nil && !held.claimable(request, now) {
		return held.record(now), nil, nil
	}
	e := &entry{shard: sh, key: key, fingerprint: request.Fingerprint, attempt: 1, lease: now + request.Lease}
	if held == nil {
		e.operation, e.created = newOperation(), now
		if !s.insert(sh, hash, e, now) {
			return Record{}, nil, ErrStoreFull
		}
	} else {
		e.operation, e.created, e.attempt = held.operation, held.created, held.attempt+1
		held.queue.remove(held)
		sh.drop(hash, held)
		sh.put(hash, e) // of the same size
	}
	sh.enqueue(e, now, max(request.TTL, request.Lease))
	return e.record(now), e, nil
}

func (e *entry) claimable(request ClaimRequest, now time.Duration) bool {
	if e.completed || e.fingerprint != request.Fingerprint {
		return false
	}
	return e.released || request.TakeOver && e.lease <= now
}

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

// insert adds a record, if there is room for it.
func (s *MemoryStore) insert(sh *shard, hash uint64, e *entry, now time.Duration) bool {
	if !s.take(sh, e.size(), now) {
		return false
	}
	sh.put(hash, e)
	return true
}

func (s *MemoryStore) remove(sh *shard, hash uint64, e *entry) {
	sh.drop(hash, e)
	e.queue.remove(e)
	s.size.Add(-e.size())
}

// take reserves n bytes, if need be in the place of expired records. The caller holds sh.
func (s *MemoryStore) take(sh *shard, n int64, now time.Duration) bool {
	for !s.reserve(n) {
		if !s.makeRoom(sh, now) {
			return false
		}
	}
	return true
}

func (s *MemoryStore) reserve(n int64) bool {
	if s.size.Add(n) <= s.max {
		return true
	}
	s.size.Add(-n)
	return false
}

// trim removes up to n expired records, and reports whether there were any.
func (s *MemoryStore) trim(sh *shard, now time.Duration, n int) (trimmed bool) {
	for _, q := range sh.queues {
		for ; n > 0 && q.head != nil && q.head.expires <= now; n-- {
			s.remove(sh, s.hash(q.head.key), q.head)
			trimmed = true
		}
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

// queue holds the records with one TTL in the order in which they expire: that in which they were added.
type queue struct {
	ttl        time.Duration
	head, tail *entry
}

// enqueue lets e expire after ttl.
func (sh *shard) enqueue(e *entry, now, ttl time.Duration) {
	if e.queue != nil {
		e.queue.remove(e)
	}
	e.expires = now + ttl
	sh.queueFor(ttl).add(e)
}

// queueFor returns the queue for ttl. There are as many as the middlewares on the store have different settings.
func (sh *shard) queueFor(ttl time.Duration) *queue {
	for _, q := range sh.queues {
		if q.ttl == ttl {
			return q
		}
	}
	sh.queues = slices.DeleteFunc(sh.queues, func(q *queue) bool { return q.head == nil })
	q := &queue{ttl: ttl}
	sh.queues = append(sh.queues, q)
	return q
}

func (q *queue) add(e *entry) {
	e.queue, e.prev = q, q.tail
	if q.tail == nil {
		q.head = e
	} else {
		q.tail.next = e
	}
	q.tail = e
}

func (q *queue) remove(e *entry) {
	if e.prev == nil {
		q.head = e.next
	} else {
		e.prev.next = e.next
	}
	if e.next == nil {
		q.tail = e.prev
	} else {
		e.next.prev = e.prev
	}
	e.queue, e.prev, e.next = nil, nil, nil
}

// Context implements [Claim].
func (e *entry) Context(ctx context.Context) context.Context { return ctx }

// Extend implements [Claim].
func (e *entry) Extend(_ context.Context, lease time.Duration) error {
	return e.restoring(func(now time.Duration) error {
		if e.completed || e.released {
			return ErrClaimLost
		}
		e.lease = now + lease
		if e.expires < e.lease {
			e.shard.enqueue(e, now, lease)
		}
		return nil
	})
}

// Complete implements [Claim].
func (e *entry) Complete(_ context.Context, resp Response, ttl time.Duration) error {
	resp.Body = bytes.Clone(resp.Body)
	return e.restoring(func(now time.Duration) error {
		if e.released {
			return ErrClaimLost
		}
		if !e.completed { // else this is a repetition
			e.respond(resp, now)
			e.lease = now
			e.shard.enqueue(e, now, ttl)
		}
		return nil
	})
}

// respond takes as much of the response as there is room for. The room for its status is there from the start.
func (e *entry) respond(resp Response, now time.Duration) {
	before := e.size()
	e.completed, e.response = true, resp
	if !e.shard.store.take(e.shard, e.size()-before, now) {
		e.response = Response{Status: resp.Status, Omitted: true}
	}
}

// restoring calls step under the lock of the shard. If the entry has expired, it is added again.
func (e *entry) restoring(step func(now time.Duration) error) error {
	sh, s := e.shard, e.shard.store
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := time.Since(s.start)
	if e.live(now) {
		return step(now)
	}
	hash := s.hash(e.key)
	if s.find(sh, hash, e.key, now) != nil {
		return ErrClaimLost
	}
	if !s.insert(sh, hash, e, now) {
		return ErrStoreFull
	}
	sh.enqueue(e, now, 1) // step says for how long; were it expired already, it would have to make room
	if err := step(now); err != nil {
		s.remove(sh, hash, e)
		return err
	}
	return ErrRestored
}

// live reports whether the entry is the record of its key.
func (e *entry) live(now time.Duration) bool { return e.queue != nil && e.expires > now }

// Release implements [Claim].
func (e *entry) Release(context.Context) error {
	e.shard.mu.Lock()
	defer e.shard.mu.Unlock()
	now := time.Since(e.shard.store.start)
	if e.completed {
		return ErrClaimLost
	}
	e.released, e.lease = true, now // also of a record that is gone, for Extend not to restore it
	if !e.live(now) {
		return ErrClaimLost
	}
	return nil
}
