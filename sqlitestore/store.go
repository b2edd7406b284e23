package sqlitestore

import (
	"context"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

// Store keeps records in a file, for handlers whose effects are elsewhere. A claim is a lease: exactly once holds as
// long as its owner lives. It is safe for concurrent use, and several processes of one machine may share the file.
//
// Attempt of [idempotency.Operation] counts the claims that are in the record. If the file is lost, or its last records
// by [Normal], it begins again with 1.
type Store struct{ *file }

var _ idempotency.Store = (*Store)(nil)

// Open opens the store in the file at path. It makes the file if there is none, for its owner only (mode 0600), and the
// table idempotency_records in it. The directory must exist. A database that holds other tables may be used too, but no
// table of that name that another version of this package has made. Open reports all faults of opts together. It waits
// for other processes that write, for ten seconds or somewhat longer, or until ctx ends. The store does not end with ctx.
//
// [Store.Close] closes the store. Several stores of both kinds, also of several processes, may have the same file open.
func Open(ctx context.Context, path string, opts Options) (*Store, error) {
	f, err := openFile(ctx, path, opts, false)
	if err != nil {
		return nil, err
	}
	return &Store{f}, nil
}

// Begin implements [idempotency.Store]. It reads a record that holds its key without waiting for those who write.
func (s *Store) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	digest := key.Digest()
	seen, err := s.look(ctx, digest[:])
	if err != nil {
		return idempotency.Record{}, nil, failure("claim", err)
	}
	if isHeld, record, err := seen.Held(sqlstore.NamesOf(key), &request); isHeld {
		return record, nil, failure("claim", err)
	}
	return sqlstore.Claim(ctx, leases{s.writer}, key, &request)
}

// leases are what package sqlstore makes claims by, and changes records for operators.
type leases struct{ writer *writer }

// Do implements [sqlstore.Leases].
func (l leases) Do(ctx context.Context, adds bool, run func(sqlstore.Steps) error) (bool, error) {
	return l.writer.do(ctx, adds, func(tx *transaction) error { return run(tx) })
}

// Change implements [sqlstore.Operated].
func (l leases) Change(ctx context.Context, run func(sqlstore.Changes) error) error {
	_, err := l.writer.do(ctx, false, func(tx *transaction) error { return run(tx) })
	return err
}

// Failure implements [sqlstore.Leases] and [sqlstore.Operated].
func (leases) Failure(step string, err error) error { return failure(step, err) }
