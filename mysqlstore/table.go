package mysqlstore

import (
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/idempotency-go/idempotency"
)

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
