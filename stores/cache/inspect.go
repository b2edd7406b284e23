package cache

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/idempotency-go/idempotency"
)

var _ idempotency.Resolver = (*Store)(nil)

// other returns the other store, or the first one behind it, as what it must be for a method.
func other[T any](s *Store) (inner T, err error) {
	if s.faults != nil {
		return inner, s.faults
	}
	inner, ok := idempotency.As[T](s.inner)
	if !ok {
		err = fmt.Errorf("cache: a %T is no %s: %w", s.inner, reflect.TypeFor[T]().Name(), errors.ErrUnsupported)
	}
	return inner, err
}

// Inspect implements [idempotency.Inspector]. It always asks the other store, even about a record that the cache has.
func (s *Store) Inspect(ctx context.Context, key idempotency.Key) (idempotency.Entry, error) {
	inner, err := other[idempotency.Inspector](s)
	if err != nil {
		return idempotency.Entry{}, err
	}
	return inner.Inspect(ctx, key)
}

// Forget implements [idempotency.Inspector]. The cache forgets the record, too. The caches of other processes do not:
// they may replay it for up to Options.MaxAge, while the next request elsewhere executes the operation again.
func (s *Store) Forget(ctx context.Context, entry idempotency.Entry) error {
	inner, err := other[idempotency.Inspector](s)
	if err != nil {
		return err
	}
	defer s.forget(entry) // also after an error, which need not mean that nothing was removed
	return inner.Forget(ctx, entry)
}

// List implements [idempotency.Inspector]. It lists the records of the other store.
func (s *Store) List(ctx context.Context, request idempotency.ListRequest) (idempotency.Listing, error) {
	inner, err := other[idempotency.Inspector](s)
	if err != nil {
		return idempotency.Listing{}, err
	}
	return inner.List(ctx, request)
}

// InspectDigest implements [idempotency.Resolver]. It always asks the other store.
func (s *Store) InspectDigest(ctx context.Context, digest [sha256.Size]byte) (idempotency.Entry, error) {
	inner, err := other[idempotency.Resolver](s)
	if err != nil {
		return idempotency.Entry{}, err
	}
	return inner.InspectDigest(ctx, digest)
}

// Resolve implements [idempotency.Resolver]. No cache has a record that was abandoned, so there is none to forget.
func (s *Store) Resolve(ctx context.Context, entry idempotency.Entry, resolution idempotency.Resolution) error {
	inner, err := other[idempotency.Resolver](s)
	if err != nil {
		return err
	}
	return inner.Resolve(ctx, entry, resolution)
}

// forget removes the copy of a record, and keeps out what the other store was asked for before now. Most entries have no
// key, so it is found among all of the cache: their digests are made without the lock.
func (s *Store) forget(entry idempotency.Entry) {
	s.mu.Lock()
	s.forgot = time.Now()
	keys := slices.Collect(maps.Keys(s.entries))
	s.mu.Unlock()
	i := slices.IndexFunc(keys, func(key idempotency.Key) bool { return key.Digest() == entry.Digest })
	if i < 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if element := s.entries[keys[i]]; element != nil {
		s.remove(element)
	}
}
