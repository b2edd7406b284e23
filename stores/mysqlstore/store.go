package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// Store keeps records in MySQL or MariaDB. One statement decides each step, by the clock of the server. [DoTx] writes rows in the
// same database exactly once. A Store is safe for concurrent use.
//
// Attempt of [idempotency.Operation] counts the claims that are in the record. If the server loses the record, it begins
// again with 1.
type Store struct {
	*Table
}

var _ idempotency.Store = (*Store)(nil)

// New returns a store on db. The caller closes db. [Migrate] makes the table. The store prepares its statements when it
// first needs them, and keeps them until db is closed. Faults of opts are errors of [idempotency.New], Begin,
// Check and Maintain, which report all of them together.
func New(db *sql.DB, opts Options) *Store { return &Store{NewTable(db, opts)} }

// Begin implements [idempotency.Store]. If a connection breaks, it asks again. If the first question has claimed the
// key, the second one recognises its own token. If no answer comes, the claim is in doubt.
func (s *Store) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	if s.faults != nil {
		return idempotency.Record{}, nil, s.faults
	}
	if err := s.admit(ctx); err != nil {
		return idempotency.Record{}, nil, failure("claim", err)
	}
	return sqlstore.Claim(ctx, leases{s.Table}, key, &request)
}

// Table is the table that a store keeps its records in, with the methods that look after it. A store has these methods,
// too; [NewTable] is for a job that does nothing else. It is safe for concurrent use, also by many processes.
type Table struct {
	db         *sql.DB
	opts       Options
	says       atomic.Pointer[string] // what VERSION() of a server that was admitted returned; nil: not asked
	faults     error                  // of opts
	statements prepared
	largest    atomic.Int64 // packet that the server takes, in bytes
	dropping   sync.Mutex   // held while connections to a read-only server are closed
}

// Validate implements [idempotency.Validator].
func (t *Table) Validate(idempotency.RunnerOptions) error {
	if t.db == nil {
		return errors.Join(t.faults, errors.New("mysqlstore: the *sql.DB is nil"))
	}
	return t.faults
}

// NewTable returns the table that stores with the same options use. Faults of opts are errors of its methods.
func NewTable(db *sql.DB, opts Options) *Table {
	return &Table{db: db, opts: opts, faults: opts.validate(), statements: prepared{db: db, opts: opts}}
}
