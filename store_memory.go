package idempotency

import (
	"bytes"
	"cmp"
	"context"
	"hash/maphash"
	"net/http"
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

// entry is a record. Times are counted from the start of the store: a monotonic clock, in a third of the space.
type entry struct {
	key         Key
	operation   uuid.UUID
	fingerprint Fingerprint
	attempt     int
	created     time.Duration
	lease       time.Duration // when it ends
	expires     time.Duration // not before the lease
	token       uint64        // of the last claim
	released    bool
	response    *Response

	queue      *queue
	prev, next *entry
}

func (e *entry) record(s *MemoryStore, now time.Duration) Record {
	return Record{
		Operation:   e.operation,
		Attempt:     e.attempt,
		Fingerprint: e.fingerprint,
		Created:     s.start.Add(e.created),
		LeaseLeft:   max(0, e.lease-now),
		Response:    e.response,
	}
}

// entryOverhead estimates what a record takes beyond its bytes.
const entryOverhead = 320

func (e *entry) size() int64 {
	n := entryOverhead + len(e.key.User) + len(e.key.Endpoint) + len(e.key.ID)
	if e.response != nil {
		n += len(e.response.Body) + headerSize(e.response.Header) + headerSize(e.response.Trailer)
	}
	return int64(n)
}

func headerSize(h http.Header) int {
	n := 0
	for name, values := range h {
		n += len(name) + 48
		for _, v := range values {
			n += len(v) + 16
		}
	}
	return n
}

// Begin implements [Store].
func (s *MemoryStore) Begin(_ context.Context, key Key, attempt Attempt) (Record, Claim, error) {
	sh := s.lock(key)
	defer sh.mu.Unlock()
	now := time.Since(s.start)
	s.trim(sh, now, 2)

	e := s.find(sh, key, now)
	if e != nil && !e.claimable(attempt, now) {
		return e.record(s, now), nil, nil
	}
	if e == nil {
		e = &entry{key: key, operation: uuid.New(), fingerprint: attempt.Fingerprint, created: now}
		if !s.insert(sh, e, now) {
			return Record{}, nil, ErrStoreFull
		}
	}
	e.attempt++
	e.token = s.tokens.Add(1)
	e.released = false
	e.lease = now + attempt.Lease
	sh.enqueue(e, now, max(attempt.TTL, attempt.Lease))
	return e.record(s, now), &memoryClaim{s, e, e.token}, nil
}

func (e *entry) claimable(attempt Attempt, now time.Duration) bool {
	if e.response != nil || e.fingerprint != attempt.Fingerprint {
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

// memoryClaim implements Claim. The entry is its own as long as the token is, also when it has expired and was removed.
type memoryClaim struct {
	store *MemoryStore
	entry *entry
	token uint64
}

// Context implements [Claim].
func (c *memoryClaim) Context(ctx context.Context) context.Context { return ctx }

// Extend implements [Claim].
func (c *memoryClaim) Extend(_ context.Context, lease time.Duration) error {
	return c.restoring(func(sh *shard, e *entry, now time.Duration) error {
		if e.response != nil || e.released {
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
func (c *memoryClaim) Complete(_ context.Context, resp Response, ttl time.Duration) error {
	resp.Body = bytes.Clone(resp.Body)
	return c.restoring(func(sh *shard, e *entry, now time.Duration) error {
		if e.released {
			return ErrClaimLost
		}
		if e.response == nil { // else this is a repetition
			c.store.respond(sh, e, &resp, now)
			e.lease = now
			sh.enqueue(e, now, ttl)
		}
		return nil
	})
}

// respond puts as much of the response into e as there is room for. The room for its status is there from the start.
func (s *MemoryStore) respond(sh *shard, e *entry, resp *Response, now time.Duration) {
	before := e.size()
	e.response = resp
	grown := e.size() - before
	if s.reserve(grown) {
		return
	}
	s.makeRoom(sh, now)
	if !s.reserve(grown) {
		e.response = &Response{Status: resp.Status, Omitted: true}
	}
}

// restoring calls step with the entry of the claim. If the entry has expired, it is added again.
func (c *memoryClaim) restoring(step func(*shard, *entry, time.Duration) error) error {
	s, e := c.store, c.entry
	sh := s.lock(e.key)
	defer sh.mu.Unlock()
	now := time.Since(s.start)
	current := s.find(sh, e.key, now)
	if e.token != c.token || current != nil && current != e {
		return ErrClaimLost
	}
	if current == e {
		return step(sh, e, now)
	}
	if !s.insert(sh, e, now) {
		return ErrStoreFull
	}
	sh.enqueue(e, now, 1) // step says for how long; were it expired already, it would have to make room
	return cmp.Or(step(sh, e, now), ErrRestored)
}

// Release implements [Claim].
func (c *memoryClaim) Release(context.Context) error {
	s, e := c.store, c.entry
	sh := s.lock(e.key)
	defer sh.mu.Unlock()
	now := time.Since(s.start)
	if s.find(sh, e.key, now) != e || e.token != c.token || e.response != nil {
		return ErrClaimLost
	}
	e.released, e.lease = true, now
	return nil
}
