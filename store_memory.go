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
	seed   maphash.Seed
	start  time.Time
	max    int64
	size   atomic.Int64
	tokens atomic.Uint64
	shards [64]shard
}

// NewMemoryStore returns an empty store.
func NewMemoryStore(opts MemoryOptions) *MemoryStore {
	s := &MemoryStore{seed: maphash.MakeSeed(), start: time.Now(), max: cmp.Or(opts.MaxBytes, 256<<20)}
	for i := range s.shards {
		s.shards[i].entries = make(map[Key]*entry)
	}
	return s
}

// shard holds the records of a part of the keys.
type shard struct {
	mu      sync.Mutex
	entries map[Key]*entry
	queues  []*queue
}

// entry is one attempt at an operation, and the record of it; the next attempt has an entry of its own. So its address
// tells whose a claim is. Times are counted from the start of the store: a monotonic clock, in a third of the space.
type entry struct {
	store       *MemoryStore
	key         Key
	operation   uuid.UUID
	fingerprint Fingerprint
	attempt     int
	created     time.Duration
	lease       time.Duration // when it ends
	expires     time.Duration // not before the lease
	released    bool
	completed   bool
	response    Response

	queue      *queue // nil: removed
	prev, next *entry
}

func (e *entry) record(now time.Duration) Record {
	r := Record{
		Operation:   e.operation,
		Attempt:     e.attempt,
		Fingerprint: e.fingerprint,
		Created:     e.store.start.Add(e.created),
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
func (s *MemoryStore) Begin(_ context.Context, key Key, attempt Attempt) (Record, Claim, error) {
	sh := s.lock(key)
	defer sh.mu.Unlock()
	now := time.Since(s.start)
	s.trim(sh, now, 2)

	held := s.find(sh, key, now)
	if held != nil && !held.claimable(attempt, now) {
		return held.record(now), nil, nil
	}
	e := &entry{store: s, key: key, fingerprint: attempt.Fingerprint, attempt: 1, lease: now + attempt.Lease}
	if held == nil {
		e.operation, e.created = newOperation(), now
		if !s.insert(sh, e, now) {
			return Record{}, nil, ErrStoreFull
		}
	} else {
		e.operation, e.created, e.attempt = held.operation, held.created, held.attempt+1
		held.queue.remove(held)
		sh.entries[key] = e // of the same size
	}
	sh.enqueue(e, now, max(attempt.TTL, attempt.Lease))
	return e.record(now), e, nil
}

func (e *entry) claimable(attempt Attempt, now time.Duration) bool {
	if e.completed || e.fingerprint != attempt.Fingerprint {
		return false
	}
	return e.released || attempt.TakeOver && e.lease <= now
}

func (s *MemoryStore) lock(key Key) *shard {
	sh := &s.shards[maphash.String(s.seed, key.ID)%uint64(len(s.shards))]
	sh.mu.Lock()
	return sh
}

// find returns the record of key, unless it has expired.
func (s *MemoryStore) find(sh *shard, key Key, now time.Duration) *entry {
	e := sh.entries[key]
	if e != nil && e.expires <= now {
		s.remove(sh, e)
		return nil
	}
	return e
}

// insert adds a record, if there is room for it.
func (s *MemoryStore) insert(sh *shard, e *entry, now time.Duration) bool {
	if !s.reserve(e.size()) {
		s.makeRoom(sh, now)
		if !s.reserve(e.size()) {
			return false
		}
	}
	sh.entries[e.key] = e
	return true
}

func (s *MemoryStore) remove(sh *shard, e *entry) {
	delete(sh.entries, e.key)
	e.queue.remove(e)
	s.size.Add(-e.size())
}

func (s *MemoryStore) reserve(n int64) bool {
	if s.size.Add(n) <= s.max {
		return true
	}
	s.size.Add(-n)
	return false
}

// trim removes up to n expired records.
func (s *MemoryStore) trim(sh *shard, now time.Duration, n int) {
	for _, q := range sh.queues {
		for ; n > 0 && q.head != nil && q.head.expires <= now; n-- {
			s.remove(sh, q.head)
		}
	}
}

// makeRoom trims every shard that nobody is using; the caller holds held.
func (s *MemoryStore) makeRoom(held *shard, now time.Duration) {
	const each = 16
	for i := range s.shards {
		sh := &s.shards[i]
		if sh == held {
			s.trim(sh, now, each)
		} else if sh.mu.TryLock() {
			s.trim(sh, now, each)
			sh.mu.Unlock()
		}
	}
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
	return e.restoring(func(sh *shard, now time.Duration) error {
		if e.completed || e.released {
			return ErrClaimLost
		}
		e.lease = now + lease
		if e.expires < e.lease {
			sh.enqueue(e, now, lease)
		}
		return nil
	})
}

// Complete implements [Claim].
func (e *entry) Complete(_ context.Context, resp Response, ttl time.Duration) error {
	resp.Body = bytes.Clone(resp.Body)
	return e.restoring(func(sh *shard, now time.Duration) error {
		if e.released {
			return ErrClaimLost
		}
		if !e.completed { // else this is a repetition
			e.respond(sh, resp, now)
			e.lease = now
			sh.enqueue(e, now, ttl)
		}
		return nil
	})
}

// respond takes as much of the response as there is room for. The room for its status is there from the start.
func (e *entry) respond(sh *shard, resp Response, now time.Duration) {
	s, before := e.store, e.size()
	e.completed, e.response = true, resp
	grown := e.size() - before
	if s.reserve(grown) {
		return
	}
	s.makeRoom(sh, now)
	if !s.reserve(grown) {
		e.response = Response{Status: resp.Status, Omitted: true}
	}
}

// restoring calls step under the lock of the shard. If the entry has expired, it is added again.
func (e *entry) restoring(step func(*shard, time.Duration) error) error {
	s := e.store
	sh := s.lock(e.key)
	defer sh.mu.Unlock()
	now := time.Since(s.start)
	switch s.find(sh, e.key, now) {
	case e:
		return step(sh, now)
	case nil:
		if !s.insert(sh, e, now) {
			return ErrStoreFull
		}
		sh.enqueue(e, now, 1) // step says for how long; were it expired already, it would have to make room
		return cmp.Or(step(sh, now), ErrRestored)
	default:
		return ErrClaimLost
	}
}

// Release implements [Claim].
func (e *entry) Release(context.Context) error {
	s := e.store
	sh := s.lock(e.key)
	defer sh.mu.Unlock()
	now := time.Since(s.start)
	if s.find(sh, e.key, now) != e || e.completed {
		return ErrClaimLost
	}
	e.released, e.lease = true, now
	return nil
}
