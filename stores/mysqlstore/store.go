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
// Attempt of [idempotency.Operation] counts the claims in the record. If the server loses the record, Attempt begins again with 1.
type Store struct {
	*Table
}

var _ idempotency.Store = (*Store)(nil)

// New returns a store on db. The caller closes db. [Migrate] makes the table. The store prepares each statement at its first use,
// and keeps the prepared statement until db is closed. Faults of opts are errors of [idempotency.New], Begin, Check and
// Maintain, which report all faults together.
func New(db *sql.DB, opts Options) *Store { return &Store{NewTable(db, opts)} }

// Begin implements [idempotency.Store]. If a connection breaks, Begin sends the claim again. A claim that the server has granted
// before is recognised by its token. Without a reply, the claim is in doubt, see [idempotency.ClaimInDoubtError].
func (s *Store) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	if s.optionFaults != nil {
		return idempotency.Record{}, nil, s.optionFaults
	}
	if err := s.admitServer(ctx); err != nil {
		return idempotency.Record{}, nil, wrapFailure("claim", err)
	}
	return sqlstore.Claim(ctx, leases{s.Table}, key, &request)
}

// Table is the table of records, with the methods for operators and maintenance. A store has these methods, too; [NewTable] is for
// a job without a store. A Table is safe for concurrent use, also by many processes.
type Table struct {
	db            *sql.DB
	opts          Options
	optionFaults  error
	serverVersion atomic.Pointer[string] // VERSION() of the admitted server; nil: not asked yet
	statements    preparedStatements
	maxPacket     atomic.Int64 // max_allowed_packet of the server, in bytes
	dropMutex     sync.Mutex   // held while connections to a read-only server are closed
}

// Validate implements [idempotency.Validator].
func (t *Table) Validate(idempotency.RunnerOptions) error {
	if t.db == nil {
		return errors.Join(t.optionFaults, errors.New("mysqlstore: the *sql.DB is nil"))
	}
	return t.optionFaults
}

// NewTable returns the table of stores with the same options. Faults of opts are errors of the methods.
func NewTable(db *sql.DB, opts Options) *Table {
	return &Table{db: db, opts: opts, optionFaults: opts.validate(), statements: preparedStatements{db: db, opts: opts}}
}
