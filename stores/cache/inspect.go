package cache

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
)

var _ idempotency.Resolver = (*Store)(nil)

// innerAs returns the inner store as a T. If the inner store is no T, innerAs returns the first T behind the inner store.
//
//   - [errors.ErrUnsupported]: no store behind the cache is a T.
//   - Any other error: the options of the cache have faults.
func innerAs[T any](s *Store) (inner T, err error) {
	if s.faults != nil {
		return inner, s.faults
	}
	inner, ok := idempotency.As[T](s.inner)
	if !ok {
		err = fmt.Errorf("cache: a %T is no %s: %w", s.inner, reflect.TypeFor[T]().Name(), errors.ErrUnsupported)
	}
	return inner, err
}

// Inspect implements [idempotency.Inspector]. Inspect always asks the inner store, also about cached records.
func (s *Store) Inspect(ctx context.Context, key idempotency.Key) (idempotency.Entry, error) {
	inner, err := innerAs[idempotency.Inspector](s)
	if err != nil {
		return idempotency.Entry{}, err
	}
	return inner.Inspect(ctx, key)
}

// Forget implements [idempotency.Inspector]. Forget removes the record from this cache, too. The caches of other
// processes may replay the record for up to Options.MaxAge, while the next request elsewhere executes the operation again.
func (s *Store) Forget(ctx context.Context, entry idempotency.Entry) error {
	inner, err := innerAs[idempotency.Inspector](s)
	if err != nil {
		return err
	}
	defer s.forgetCopy(entry) // also after an error, because the inner store may have removed the record all the same
	return inner.Forget(ctx, entry)
}

// List implements [idempotency.Inspector]. List lists the records of the inner store.
func (s *Store) List(ctx context.Context, request idempotency.ListRequest) (idempotency.Listing, error) {
	inner, err := innerAs[idempotency.Inspector](s)
	if err != nil {
		return idempotency.Listing{}, err
	}
	return inner.List(ctx, request)
}

// InspectOperation implements [idempotency.Inspector]. InspectOperation always asks the inner store.
func (s *Store) InspectOperation(ctx context.Context, operation uuid.UUID) (idempotency.Entry, error) {
	inner, err := innerAs[idempotency.Inspector](s)
	if err != nil {
		return idempotency.Entry{}, err
	}
	return inner.InspectOperation(ctx, operation)
}

// Resolve implements [idempotency.Resolver]. The cache needs no change, because caches have completed records only, and
// Resolve changes abandoned records.
func (s *Store) Resolve(ctx context.Context, entry idempotency.Entry, resolution idempotency.Resolution) error {
	inner, err := innerAs[idempotency.Resolver](s)
	if err != nil {
		return err
	}
	return inner.Resolve(ctx, entry, resolution)
}

// forgetCopy removes the cached copy of a record, and makes addRecord refuse records that the inner store was asked for before
// now. Most entries have an ID but no key, so forgetCopy computes the IDs of all cached keys, without holding the lock.
func (s *Store) forgetCopy(entry idempotency.Entry) {
	s.mu.Lock()
	s.forgottenAt = time.Now()
	keys := slices.Collect(maps.Keys(s.entriesByKey))
	s.mu.Unlock()
	i := slices.IndexFunc(keys, func(key idempotency.Key) bool { return key.OperationID() == entry.Operation })
	if i < 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if element := s.entriesByKey[keys[i]]; element != nil {
		s.removeEntry(element)
	}
}
