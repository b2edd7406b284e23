package casstore

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

var _ idempotency.Resolver = (*Store)(nil)

// Inspect implements [idempotency.Inspector].
func (s *Store) Inspect(ctx context.Context, key idempotency.Key) (idempotency.Entry, error) {
	return s.InspectOperation(ctx, key.OperationID())
}

// InspectOperation implements [idempotency.Inspector], as Inspect does.
func (s *Store) InspectOperation(ctx context.Context, operation uuid.UUID) (idempotency.Entry, error) {
	if s.optionFaults != nil {
		return idempotency.Entry{}, s.optionFaults
	}
	return sqlstore.Inspect(ctx, &leases{Store: s}, operation)
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
func (s *steps) Forget(operation uuid.UUID, _ *sqlstore.Seen) (bool, error) {
	return s.callWrite(func(ctx context.Context) error {
		return s.table.Delete(ctx, operation.String(), s.returnedRecord.version)
	})
}

// Resolve implements [sqlstore.Changes].
func (s *steps) Resolve(operation uuid.UUID, _, own *sqlstore.Seen, ttl time.Duration) (bool, error) {
	next := s.returnedRecord.Seen
	next.Token, next.Response, next.Steps, next.Resolved, next.Ended = own.Token, own.Response, own.Steps, own.Resolved, nil
	s.endLease(&next, ttl)
	return s.writeRecord(operation, s.returnedRecord.version, &next)
}

// InDoubt implements [sqlstore.Changes].
func (s *steps) InDoubt() bool { return s.mayHaveChanged }
