package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// Store keeps records in a file. It is safe for concurrent use, and several processes of one machine may share the file.
//
// Attempt of [idempotency.Operation] counts the claims that are in the record. If the file is lost, or its last records
// by [Normal], it begins again with 1.
type Store struct {
	path             string
	opts             Options
	writing, reading *sql.DB
	writer           *writer
	readers          *readers
	lister           *readers // one, so that a listing keeps none of the others

	closing
}

// closing is the end of a store.
type closing struct {
	once   sync.Once
	closed chan struct{}
	failed error // of Close
}

var _ idempotency.Store = (*Store)(nil)

// Open opens the store in the file at path. It makes the file if there is none, for its owner only (mode 0600), and the
// table idempotency_records in it. The directory must exist. A database that holds other tables may be used too, but no
// table of that name that another version of this package has made. Open reports all faults of opts together. It waits
// for other processes that write, for ten seconds or somewhat longer, or until ctx ends. The store does not end with ctx.
//
// [Store.Close] closes the store. Several stores, also of several processes, may have the same file open.
func Open(ctx context.Context, path string, opts Options) (*Store, error) {
	if err := opts.validate(); err != nil {
		return nil, err
	}
	path, err := create(path)
	if err != nil {
		return nil, fmt.Errorf("sqlitestore: %w", err)
	}
	s := &Store{path: path, opts: opts, closing: closing{closed: make(chan struct{})}}
	if err := s.open(ctx); err != nil {
		return nil, fmt.Errorf("sqlitestore: %s: %w", path, errors.Join(err, s.disconnect()))
	}
	go s.writer.run()
	return s, nil
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
	return sqlstore.Claim(ctx, leases{s}, key, &request)
}
