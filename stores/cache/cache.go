// Package cache keeps completed records of an [idempotency.Store] in the memory of the process for a while:
//
//	cached := cache.New(store, cache.Options{})
//
// A replay from the cache takes no round trip, and works while the store is down. This helps when many clients retry at
// once, or when one client retries again and again.
//
// For an operation that nobody repeats, the cache only costs: it keeps a copy of the answer, and about 500 bytes, until newer
// ones come after MaxAge or need the room. A cache in front of an
// [idempotency.MemoryStore] saves nothing.
package cache

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/idempotency-go/idempotency"
)

// Options are the settings of a [Store]. The zero value of each field is its default.
type Options struct {
	// MaxBytes bounds the memory of all records together, estimated with their overhead. When it is used up, the oldest
	// record makes room for the next one. A record that takes more than an eighth of MaxBytes is not kept. Zero means 64
	// MiB.
	MaxBytes int64

	// MaxAge is how long a record is kept at most before the other store is asked again. Until then the cache still
	// replays a record that was deleted in the other store, or that expired early because the clock of that store was set
	// forward. While that store is down, no record is replayed for longer than MaxAge either. Zero means a minute.
	MaxAge time.Duration
}

func (o Options) withDefaults() Options {
	o.MaxBytes = cmp.Or(o.MaxBytes, 64<<20)
	o.MaxAge = cmp.Or(o.MaxAge, time.Minute)
	return o
}

func (o Options) validate(inner idempotency.Store) error {
	var faults []error
	if inner == nil {
		faults = append(faults, errors.New("cache: Store is nil"))
	}
	if o.MaxBytes < 0 {
		faults = append(faults, fmt.Errorf("cache: MaxBytes %d is negative", o.MaxBytes))
	}
	if o.MaxAge < 0 {
		faults = append(faults, fmt.Errorf("cache: MaxAge %v is negative", o.MaxAge))
	}
	return errors.Join(faults...)
}

// Store is an [idempotency.Store] in front of another one. It keeps the records that this process has completed, and
// those that the other store has replayed to it. All other requests go to the other store, and so does each claim.
//
// A completed record never changes, so a client gets the same answer with a cache as without, except in these cases:
//
//   - A record that was deleted in the other store, or lost by it, is still replayed by this process for up to
//     Options.MaxAge. Another process may execute the operation again meanwhile. A record that has merely expired is not
//     replayed: the cache keeps no record longer than the other store does.
//   - An answer for which the other store had no room is replayed by this process as long as the cache has it.
//   - A record that another process has forgotten in the other store (see [idempotency.Inspector]) is still replayed too.
//     Forget of this Store removes the copy of this process, and no other.
//   - The other store does not see replays by the cache, and does not count them.
//
// A record that the other store replays is kept only if that store says for how long it keeps it (see
// [idempotency.ClaimRequest].Remaining).
//
// In front of a store of package seal, a cache holds the answers in the clear, and replays them without opening them
// again. Behind one, it holds sealed answers.
//
// A Store does all that the other store does as an idempotency.Store and as an Inspector. Call other methods, such as
// Check, on the other store. A Store has no goroutine and nothing to close. It is safe for concurrent use.
type Store struct {
	inner  idempotency.Store
	opts   Options
	faults error

	mu      sync.Mutex
	bytes   int64
	entries map[idempotency.Key]*list.Element
	queue   list.List // of *entry, in the order in which they came
	forgot  time.Time // when a record was last forgotten
}

var _ idempotency.Store = (*Store)(nil)

// New returns an empty cache in front of store. If opts has faults, [idempotency.New] and Begin return them.
func New(store idempotency.Store, opts Options) *Store {
	return &Store{
		inner: store, opts: opts.withDefaults(), faults: opts.validate(store),
		entries: make(map[idempotency.Key]*list.Element),
	}
}

// Unwrap returns the store behind the cache.
func (s *Store) Unwrap() idempotency.Store { return s.inner }

// Validate implements [idempotency.Validator].
func (s *Store) Validate(idempotency.RunnerOptions) error { return s.faults }

// Immediate implements [idempotency.Immediate]: a cache waits for nothing but the other store.
func (s *Store) Immediate() bool {
	inner, ok := s.inner.(idempotency.Immediate)
	return ok && inner.Immediate()
}

// Begin implements [idempotency.Store].
func (s *Store) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	if s.faults != nil {
		return idempotency.Record{}, nil, s.faults
	}
	if record, ok := s.recall(key); ok {
		return record, nil, nil
	}
	asked := time.Now()
	request.Remaining = true
	record, claim, err := s.inner.Begin(ctx, key, request)
	switch {
	case err != nil:
		return record, nil, err
	case claim != nil:
		return record, s.wrap(claim, key, record), nil
	case record.Response != nil && record.Fingerprint == request.Fingerprint:
		// Any other fingerprint is for this request alone: to the next one, the store may show another one.
		s.put(key, record, asked)
	}
	return record, nil, nil
}

// wrap returns a claim of the other store as one of this store. It keeps checkpoints as that one does.
func (s *Store) wrap(claim idempotency.Claim, key idempotency.Key, record idempotency.Record) idempotency.Claim {
	own := &cachedSteps{cachedClaim{Claim: claim, store: s, key: key, record: record}, nil}
	if steps, ok := claim.(idempotency.Checkpointer); ok {
		own.checkpoints = steps
		return own
	}
	return &own.cachedClaim
}

// cachedSteps implements [idempotency.TxCheckpointer].
type cachedSteps struct {
	cachedClaim
	checkpoints
}

// checkpoints are the methods that a Checkpointer has and a Claim has not.
type checkpoints interface {
	Checkpoint(ctx context.Context, name string, data []byte) (stored []byte, err error)
	Checkpoints(ctx context.Context) (map[string][]byte, error)
}

// CheckpointTx implements [idempotency.TxCheckpointer].
func (c *cachedSteps) CheckpointTx(ctx context.Context, step *idempotency.TxStep) ([]byte, error) {
	if inner, ok := c.Claim.(idempotency.TxCheckpointer); ok {
		return inner.CheckpointTx(ctx, step)
	}
	return nil, fmt.Errorf("the other store has no transactions for steps: %w", errors.ErrUnsupported)
}

// cachedClaim implements [idempotency.Claim].
type cachedClaim struct {
	idempotency.Claim
	store  *Store
	key    idempotency.Key
	record idempotency.Record
	tried  bool // Complete was called
}

// Complete implements [idempotency.Claim]. A repetition succeeds although it changes nothing: it does not say which
// response is stored, nor since when.
func (c *cachedClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	asked, repeated := time.Now(), c.tried
	c.tried = true
	err := c.Claim.Complete(ctx, resp, ttl)
	if err == nil && !repeated {
		c.keep(resp, ttl, asked)
	}
	return err
}

// keep puts the record into the cache. The other store took the response after asked.
func (c *cachedClaim) keep(resp idempotency.Response, ttl time.Duration, asked time.Time) {
	record := c.record
	record.Response, record.LeaseLeft = &resp, 0
	record.Remaining = ttl.Truncate(time.Millisecond) // no store counts in more than that
	c.store.put(c.key, record, asked)
}

// entry is a completed record.
type entry struct {
	key     idempotency.Key
	record  idempotency.Record
	expires time.Time // not before then in the other store
	until   time.Time // when the cache forgets it, no later than that
}

// overhead estimates what a record takes beyond its bytes.
const overhead = 512

func size(key idempotency.Key, resp *idempotency.Response) int64 {
	n := overhead + len(key.User) + len(key.Endpoint) + len(key.ID) + len(resp.Note) +
		len(resp.Header) + len(resp.Trailer) + len(resp.Body)
	return int64(n)
}

// recall returns the record of a key, if the cache has it.
func (s *Store) recall(key idempotency.Key) (idempotency.Record, bool) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	element := s.entries[key]
	if element == nil {
		return idempotency.Record{}, false
	}
	e := element.Value.(*entry)
	if !now.Before(e.until) {
		s.remove(element)
		return idempotency.Record{}, false
	}
	record := e.record
	record.Remaining, record.FromCache = e.expires.Sub(now), true
	return record, true
}

// put keeps a record of which the other store was asked at a time. Key and response may be parts of something larger, or
// of a buffer that is used again.
func (s *Store) put(key idempotency.Key, record idempotency.Record, asked time.Time) {
	if record.Remaining <= 0 || size(key, record.Response) > s.opts.MaxBytes/8 {
		return
	}
	key.User, key.Endpoint, key.ID = strings.Clone(key.User), strings.Clone(key.Endpoint), strings.Clone(key.ID)
	resp := record.Response.Clone()
	record.Response = &resp
	e := &entry{
		key: key, record: record,
		expires: asked.Add(record.Remaining), until: asked.Add(min(record.Remaining, s.opts.MaxAge)),
	}
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !asked.After(s.forgot) {
		return // it may be what was forgotten
	}
	if old := s.entries[key]; old != nil {
		if old.Value.(*entry).until.After(e.until) {
			return // what was asked for first may come last
		}
		s.remove(old)
	}
	if !now.Before(e.until) {
		return
	}
	s.entries[key] = s.queue.PushBack(e)
	s.bytes += size(key, record.Response)
	for s.bytes > s.opts.MaxBytes {
		s.remove(s.queue.Front())
	}
	s.trim(now)
}

// trim removes a few records that are no longer used.
func (s *Store) trim(now time.Time) {
	for range 2 {
		front := s.queue.Front()
		if now.Before(front.Value.(*entry).until) {
			return
		}
		s.remove(front)
	}
}

func (s *Store) remove(element *list.Element) {
	e := s.queue.Remove(element).(*entry)
	delete(s.entries, e.key)
	s.bytes -= size(e.key, e.record.Response)
}
