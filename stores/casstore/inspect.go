package casstore

import (
	"context"
	"crypto/sha256"
	"errors"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

var _ idempotency.Resolver = (*Store)(nil)

// Inspect implements [idempotency.Inspector].
func (s *Store) Inspect(ctx context.Context, key idempotency.Key) (idempotency.Entry, error) {
	return s.InspectDigest(ctx, key.Digest())
}

// InspectDigest implements [idempotency.Resolver], as Inspect does.
func (s *Store) InspectDigest(ctx context.Context, digest [sha256.Size]byte) (idempotency.Entry, error) {
	if s.optionFaults != nil {
		return idempotency.Entry{}, s.optionFaults
	}
	return sqlstore.Inspect(ctx, &leases{Store: s}, digest)
}

// List returns [errors.ErrUnsupported]: a [Table] cannot list.
func (s *Store) List(context.Context, idempotency.ListRequest) (idempotency.Listing, error) {
	return idempotency.Listing{}, (&leases{}).Failure("list", errors.ErrUnsupported)
}

// Forget implements [idempotency.Inspector].
func (s *Store) Forget(ctx context.Context, entry idempotency.Entry) error {
	if s.optionFaults != nil {
		return s.optionFaults
	}
	return sqlstore.Forget(ctx, &leases{Store: s}, entry)
}

// Resolve implements [idempotency.Resolver].
func (s *Store) Resolve(ctx context.Context, entry idempotency.Entry, resolution idempotency.Resolution) error {
	if s.optionFaults != nil {
		return s.optionFaults
	}
	return sqlstore.Resolve(ctx, &leases{Store: s}, entry, resolution)
}

// Forget implements [sqlstore.Changes].
func (s *steps) Forget(digest []byte, _ *sqlstore.Seen) (bool, error) {
	return s.callWrite(func(ctx context.Context) error {
		return s.table.Delete(ctx, tableKey(digest), s.returnedRecord.version)
	})
}

// Resolve implements [sqlstore.Changes].
func (s *steps) Resolve(digest []byte, _, own *sqlstore.Seen, ttl time.Duration) (bool, error) {
	next := s.returnedRecord.Seen
	next.Token, next.Response, next.Steps, next.Resolved = own.Token, own.Response, own.Steps, own.Resolved
	s.endLease(&next, ttl)
	return s.writeRecord(digest, s.returnedRecord.version, &next)
}

// InDoubt implements [sqlstore.Changes].
func (s *steps) InDoubt() bool { return s.mayHaveChanged }
