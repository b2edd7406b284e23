// Package cache keeps completed records of an [idempotency.Store] in the memory of the process:
//
//	cached := cache.New(store, cache.Options{})
//
// A replay from the cache takes no round trip, and works while the store is down. A cache helps when many clients retry at
// the same time, or when one client retries often.
//
// A cache costs memory for operations without a retry: a copy of the answer and about 500 bytes, until MaxAge has passed or
// newer records need the room. A cache in front of an [idempotency.MemoryStore] saves nothing.
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
	// MaxBytes bounds the estimated memory of all records together, with their overhead. When MaxBytes is used up, the cache
	// drops the oldest record. The cache keeps only records of up to an eighth of MaxBytes. Zero means 64 MiB.
	MaxBytes int64

	// MaxAge bounds how long the cache replays a record before the cache asks the inner store again. Within MaxAge the cache
	// also replays records that the inner store has deleted, or has expired early because its clock was set forward. The bound
	// holds while the inner store is down, too. Zero means a minute.
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

// Store is an [idempotency.Store] in front of an inner store. The cache keeps the records that this process has completed, and
// the records that the inner store has replayed to this process. All other requests and all claims go to the inner store.
//
// A completed record never changes, so clients get the same answers with a cache as without, with these exceptions:
//
//   - Deleted or lost records: this process replays a record for up to Options.MaxAge after the inner store has deleted or lost
//     the record, while another process may execute the operation again. The
//     cache never replays a record whose TTL has passed, because the cache counts the TTL itself.
//   - Full store: this process replays an answer for which the inner store had no room, as long as the cache has the answer.
//   - Forgotten records: Forget of this Store (see [idempotency.Inspector]) removes the copy of this process. The caches of other
//     processes keep their copies for up to Options.MaxAge.
//   - Counts: the inner store does not see replays by the cache.
//
// The cache keeps a record that the inner store replays only if the inner store tells how long the record lives (see
// [idempotency.ClaimRequest].Remaining).
//
// A cache in front of a store of package seal holds the answers in plain text, and replays them without decrypting. A cache
// behind a store of package seal holds encrypted answers.
//
// A Store has the abilities of the inner store as an idempotency.Store and as an Inspector. Call other methods, such as Check, on
// the inner store. A Store has no goroutine and nothing to close. A Store is safe for concurrent use.
type Store struct {
	inner  idempotency.Store
	opts   Options
	faults error

	mu           sync.Mutex
	usedBytes    int64
	entriesByKey map[idempotency.Key]*list.Element
	oldestFirst  list.List // of *entry, in the order of addRecord
	forgottenAt  time.Time // of the last call of Forget
}

var _ idempotency.Store = (*Store)(nil)

// New returns an empty cache in front of store. If opts has faults, [idempotency.New] and Begin return them.
func New(store idempotency.Store, opts Options) *Store {
	return &Store{
		inner: store, opts: opts.withDefaults(), faults: opts.validate(store),
		entriesByKey: make(map[idempotency.Key]*list.Element),
	}
}

// Unwrap returns the inner store.
func (s *Store) Unwrap() idempotency.Store { return s.inner }

// Validate implements [idempotency.Validator].
func (s *Store) Validate(idempotency.RunnerOptions) error { return s.faults }

// Immediate implements [idempotency.Immediate]: a cache waits only for the inner store.
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
	if record, ok := s.findRecord(key); ok {
		return record, nil, nil
	}
	askedAt := time.Now()
	request.Remaining = true
	record, claim, err := s.inner.Begin(ctx, key, request)
	switch {
	case err != nil:
		return record, nil, err
	case claim != nil:
		return record, s.wrapClaim(claim, key, record), nil
	case record.Response != nil && record.Fingerprint == request.Fingerprint:
		// With another fingerprint, the record is for this request only: the inner store may show a different fingerprint to
		// the next request.
		s.addRecord(key, record, askedAt)
	}
	return record, nil, nil
}

// wrapClaim makes a claim of the cache of a claim of the inner store. The claim keeps checkpoints if the inner claim does.
func (s *Store) wrapClaim(claim idempotency.Claim, key idempotency.Key, record idempotency.Record) idempotency.Claim {
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

// checkpoints are the methods of a Checkpointer besides those of a Claim.
type checkpoints interface {
	Checkpoint(ctx context.Context, name string, data []byte) (stored []byte, err error)
	Checkpoints(ctx context.Context) (map[string][]byte, error)
}

// CheckpointTx implements [idempotency.TxCheckpointer].
func (c *cachedSteps) CheckpointTx(ctx context.Context, step *idempotency.TxStep) ([]byte, error) {
	if inner, ok := c.Claim.(idempotency.TxCheckpointer); ok {
		return inner.CheckpointTx(ctx, step)
	}
	return nil, fmt.Errorf("cache: the inner store has no transactions for steps: %w", errors.ErrUnsupported)
}

// cachedClaim implements [idempotency.Claim].
type cachedClaim struct {
	idempotency.Claim
	store    *Store
	key      idempotency.Key
	record   idempotency.Record
	wasTried bool // Complete was called
}

// Complete implements [idempotency.Claim]. Only the first call adds the record to the cache, because a repetition succeeds without
// telling which response the inner store has, and since when.
func (c *cachedClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	askedAt, isRepetition := time.Now(), c.wasTried
	c.wasTried = true
	err := c.Claim.Complete(ctx, resp, ttl)
	if err == nil && !isRepetition {
		c.keepRecord(resp, ttl, askedAt)
	}
	return err
}

// keepRecord adds the completed record to the cache. The inner store took the response after askedAt.
func (c *cachedClaim) keepRecord(resp idempotency.Response, ttl time.Duration, askedAt time.Time) {
	record := c.record
	record.Response, record.LeaseLeft = &resp, 0
	record.Remaining = ttl.Truncate(time.Millisecond) // the finest unit of all stores
	c.store.addRecord(c.key, record, askedAt)
}

// entry is a completed record.
type entry struct {
	key       idempotency.Key
	record    idempotency.Record
	expiresAt time.Time // in the inner store, or later
	dropAt    time.Time // from the cache: at expiresAt, or earlier because of MaxAge
}

// recordOverhead estimates the memory of a record without the bytes of its key and response.
const recordOverhead = 512

// recordSize estimates the memory of a record.
func recordSize(key idempotency.Key, resp *idempotency.Response) int64 {
	n := recordOverhead + len(key.User) + len(key.Endpoint) + len(key.ID) + len(resp.Note) +
		len(resp.Header) + len(resp.Trailer) + len(resp.Body)
	return int64(n)
}

// findRecord returns the cached record of key.
func (s *Store) findRecord(key idempotency.Key) (idempotency.Record, bool) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	element := s.entriesByKey[key]
	if element == nil {
		return idempotency.Record{}, false
	}
	e := element.Value.(*entry)
	if !now.Before(e.dropAt) {
		s.removeEntry(element)
		return idempotency.Record{}, false
	}
	record := e.record
	record.Remaining, record.FromCache = e.expiresAt.Sub(now), true
	return record, true
}

// addRecord adds a record that the inner store has replayed or taken. The cache asked the inner store at askedAt, so the record
// expires no earlier than record.Remaining after askedAt. The cache copies key and response, because both may share the memory of
// a buffer that the caller uses again.
func (s *Store) addRecord(key idempotency.Key, record idempotency.Record, askedAt time.Time) {
	if record.Remaining <= 0 || recordSize(key, record.Response) > s.opts.MaxBytes/8 {
		return
	}
	key.User, key.Endpoint, key.ID = strings.Clone(key.User), strings.Clone(key.Endpoint), strings.Clone(key.ID)
	resp := record.Response.Clone()
	record.Response = &resp
	e := &entry{
		key: key, record: record,
		expiresAt: askedAt.Add(record.Remaining), dropAt: askedAt.Add(min(record.Remaining, s.opts.MaxAge)),
	}
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !askedAt.After(s.forgottenAt) {
		return // the record may be the forgotten one
	}
	if old := s.entriesByKey[key]; old != nil {
		if old.Value.(*entry).dropAt.After(e.dropAt) {
			return // an older reply has arrived later
		}
		s.removeEntry(old)
	}
	if !now.Before(e.dropAt) {
		return
	}
	s.entriesByKey[key] = s.oldestFirst.PushBack(e)
	s.usedBytes += recordSize(key, record.Response)
	for s.usedBytes > s.opts.MaxBytes {
		s.removeEntry(s.oldestFirst.Front())
	}
	s.removeExpired(now)
}

// removeExpired removes up to two records whose time in the cache is over.
func (s *Store) removeExpired(now time.Time) {
	for range 2 {
		front := s.oldestFirst.Front()
		if now.Before(front.Value.(*entry).dropAt) {
			return
		}
		s.removeEntry(front)
	}
}

func (s *Store) removeEntry(element *list.Element) {
	e := s.oldestFirst.Remove(element).(*entry)
	delete(s.entriesByKey, e.key)
	s.usedBytes -= recordSize(e.key, e.record.Response)
}
