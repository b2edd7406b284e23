package idempotency

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"sync"
	"time"
)

// CacheOptions are the settings of a [Cache]. The zero value of each field is its default.
type CacheOptions struct {
	// MaxBytes bounds the memory of all records together, estimated with their overhead. When it is used up, the oldest
	// record makes room for the next one. A record that takes more than an eighth of MaxBytes is not kept. Zero means 64
	// MiB.
	MaxBytes int64

	// MaxAge is how long a record is kept at most before the store is asked again. Until then the Cache still replays a
	// record that was deleted in the store, or that expired early because the clock of the store was set forward. While
	// the store is down, no record is replayed for longer than MaxAge either. Zero means a minute.
	MaxAge time.Duration
}

func (o CacheOptions) withDefaults() CacheOptions {
	o.MaxBytes = cmp.Or(o.MaxBytes, 64<<20)
	o.MaxAge = cmp.Or(o.MaxAge, time.Minute)
	return o
}

func (o CacheOptions) validate(inner Store) error {
	var faults faults
	faults.check(inner != nil, "Store is nil")
	faults.check(o.MaxBytes >= 0, "MaxBytes %d is negative", o.MaxBytes)
	faults.check(o.MaxAge >= 0, "MaxAge %v is negative", o.MaxAge)
	return errors.Join(faults...)
}

// Cache is a [Store] that keeps completed records of another store in the memory of the process for a while. A replay
// from the Cache takes no round trip, and works while the other store is down. This helps when many clients retry at
// once, or when one client retries again and again.
//
// An operation that nobody repeats pays for the Cache and gains nothing: its answer is copied. The copy takes its size
// and about 500 bytes, until newer ones come after MaxAge or need the room. A Cache in front of a [MemoryStore] saves
// nothing.
//
// A Cache keeps the records that this process has completed, and those that the other store has replayed to it. All
// other requests go to the other store, and so does each claim. A completed record never changes, so a client gets the
// same answer with a Cache as without, except in these cases:
//
//   - A record that was deleted in the other store, or lost by it, is still replayed by this process for up to
//     CacheOptions.MaxAge. Another process may execute the operation again meanwhile. A record that has merely expired
//     is not replayed: the Cache keeps no record longer than the other store does.
//   - An answer for which the other store had no room is replayed by this process as long as the Cache has it.
//   - A record that another process has forgotten in the other store (see [Inspector]) is still replayed too. Forget of
//     this Cache removes the copy of this process, and no other.
//   - The other store does not see replays by the Cache, and does not count them.
//
// A record that the other store replays is kept only if that store says for how long it keeps it (see
// [ClaimRequest].Remaining).
//
// In front of a store of package seal, a Cache holds the answers in the clear, and replays them without opening them
// again. Behind one, a Cache holds sealed answers.
//
// A Cache does all that the other store does as a [Store] and as an [Inspector]. Call other methods, such as Check, on
// the other store. A Cache has no goroutine and nothing to close. It is safe for concurrent use.
type Cache struct {
	inner  Store
	opts   CacheOptions
	faults error

	mu      sync.Mutex
	bytes   int64
	entries map[Key]*list.Element
	queue   list.List // of *cached, in the order in which they came
	forgot  time.Time // when a record was last forgotten
}

var _ Store = (*Cache)(nil)

// NewCache returns an empty cache in front of store. If opts has faults, Begin returns them.
func NewCache(store Store, opts CacheOptions) *Cache {
	return &Cache{
		inner: store, opts: opts.withDefaults(), faults: opts.validate(store), entries: make(map[Key]*list.Element),
	}
}

// Unwrap returns the other store, which says whether the claims are transactions (see [Transactional]).
func (c *Cache) Unwrap() Store { return c.inner }

// Immediate implements [Immediate]: the Cache waits for nothing but the other store.
func (c *Cache) Immediate() bool { return isImmediate(c.inner) }

// Begin implements [Store].
func (c *Cache) Begin(ctx context.Context, key Key, request ClaimRequest) (Record, Claim, error) {
	if c.faults != nil {
		return Record{}, nil, c.faults
	}
	if record, ok := c.Recall(key); ok {
		return record, nil, nil
	}
	asked := time.Now()
	request.Remaining = true
	record, claim, err := c.inner.Begin(ctx, key, request)
	switch {
	case err != nil:
		return record, claim, err
	case claim != nil:
		return record, &cachedClaim{Claim: claim, cache: c, key: key, record: record}, nil
	case record.Response != nil && record.Fingerprint == request.Fingerprint:
		// Any other fingerprint is for this request alone: to the next one, the store may show another one.
		c.put(key, record, asked)
	}
	return record, nil, nil
}

// cachedClaim implements [Claim].
type cachedClaim struct {
	Claim
	cache  *Cache
	key    Key
	record Record
	tried  bool // Complete was called
}

// Complete implements [Claim]. A repetition succeeds although it changes nothing: it does not say which response is
// stored, nor since when.
func (c *cachedClaim) Complete(ctx context.Context, resp Response, ttl time.Duration) error {
	asked, repeated := time.Now(), c.tried
	c.tried = true
	err := c.Claim.Complete(ctx, resp, ttl)
	if err == nil && !repeated {
		c.keep(resp, ttl, asked)
	}
	return err
}

// keep puts the record into the cache. The store took the response after asked.
func (c *cachedClaim) keep(resp Response, ttl time.Duration, asked time.Time) {
	record := c.record
	record.Response, record.LeaseLeft, record.NoLease = &resp, 0, false
	record.Remaining = ttl.Truncate(time.Millisecond) // no store counts in more than that
	c.cache.put(c.key, record, asked)
}

// cached is a completed record.
type cached struct {
	key     Key
	record  Record
	expires time.Time // not before then in the store
	until   time.Time // when the cache forgets it, no later than that
}

// cacheOverhead estimates what a record takes beyond its bytes.
const cacheOverhead = 512

func cachedSize(key Key, resp *Response) int64 {
	n := cacheOverhead + len(key.User) + len(key.Endpoint) + len(key.ID) +
		len(resp.Header) + len(resp.Trailer) + len(resp.Body)
	return int64(n)
}

// fits reports whether a response is small enough to be kept.
func (c *Cache) fits(key Key, resp *Response) bool { return cachedSize(key, resp) <= c.opts.MaxBytes/8 }

// Recall implements [Recaller].
func (c *Cache) Recall(key Key) (Record, bool) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	element := c.entries[key]
	if element == nil {
		return Record{}, false
	}
	e := element.Value.(*cached)
	if !now.Before(e.until) {
		c.remove(element)
		return Record{}, false
	}
	record := e.record
	record.Remaining = e.expires.Sub(now)
	return record, true
}

// put keeps a record of which the store was asked at a time. Key and response may be parts of something larger, or of a
// buffer that is used again.
func (c *Cache) put(key Key, record Record, asked time.Time) {
	if record.Remaining <= 0 || !c.fits(key, record.Response) {
		return
	}
	key = key.clone()
	resp := record.Response.Clone()
	record.Response = &resp
	e := &cached{
		key: key, record: record,
		expires: asked.Add(record.Remaining), until: asked.Add(min(record.Remaining, c.opts.MaxAge)),
	}
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !asked.After(c.forgot) {
		return // it may be what was forgotten
	}
	if old := c.entries[key]; old != nil {
		if old.Value.(*cached).until.After(e.until) {
			return // what was asked for first may come last
		}
		c.remove(old)
	}
	if !now.Before(e.until) {
		return
	}
	c.entries[key] = c.queue.PushBack(e)
	c.bytes += cachedSize(key, record.Response)
	for c.bytes > c.opts.MaxBytes {
		c.remove(c.queue.Front())
	}
	c.trim(now)
}

// trim removes a few records that are no longer used.
func (c *Cache) trim(now time.Time) {
	for range 2 {
		front := c.queue.Front()
		if now.Before(front.Value.(*cached).until) {
			return
		}
		c.remove(front)
	}
}

func (c *Cache) remove(element *list.Element) {
	e := c.queue.Remove(element).(*cached)
	delete(c.entries, e.key)
	c.bytes -= cachedSize(e.key, e.record.Response)
}
