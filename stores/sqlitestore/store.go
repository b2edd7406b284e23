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

// Store keeps records in a file. A Store is safe for concurrent use, and several processes of one machine may share the
// file.
//
// Attempt of [idempotency.Operation] counts the claims in the record. If the file is lost, or [Normal] has lost the
// last records, Attempt begins again with 1.
type Store struct {
	filePath        string
	opts            Options
	writeDB, readDB *sql.DB
	writer          *writer
	readers         *readers
	listReaders     *readers // a single reader, so that listings leave the readers free

	closing
}

// closing is the state of Close.
type closing struct {
	closeOnce    sync.Once
	closeStarted chan struct{} // closed when Close starts
	closeErr     error         // result of Close
}

var _ idempotency.Store = (*Store)(nil)

// Open opens the store in the file at path. If the file is missing, Open creates the file with mode 0600. If the table
// idempotency_records is missing, Open creates the table. The directory must exist. The file may hold other tables, but
// a table idempotency_records of a different version of this package is an error. Open reports all faults of opts
// together. Open waits for other writing processes until ctx ends, but for little more than ten seconds. The end of ctx
// does not close the store.
//
// [Store.Close] closes the store. Several stores, in one process or in several processes, may have the same file open.
func Open(ctx context.Context, path string, opts Options) (*Store, error) {
	if err := opts.validate(); err != nil {
		return nil, err
	}
	path, err := createFile(path)
	if err != nil {
		return nil, fmt.Errorf("sqlitestore: %w", err)
	}
	s := &Store{filePath: path, opts: opts, closing: closing{closeStarted: make(chan struct{})}}
	if err := s.openConnections(ctx); err != nil {
		return nil, fmt.Errorf("sqlitestore: %s: %w", path, errors.Join(err, s.closeConnections()))
	}
	go s.writer.runQueue()
	return s, nil
}

// Begin implements [idempotency.Store]. If a record already holds the key, Begin returns without waiting for writers.
func (s *Store) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	seen, err := s.readCurrentRow(ctx, key.OperationID())
	if err != nil {
		return idempotency.Record{}, nil, wrapFailure("claim", err)
	}
	if isHeld, record, err := seen.Held(sqlstore.NamesOf(key), &request); isHeld {
		return record, nil, wrapFailure("claim", err)
	}
	return sqlstore.Claim(ctx, leases{s}, key, &request)
}
