package pgxstore

import (
	"encoding/binary"
	"errors"
	"hash/fnv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency"
)

// Table is the table that a store keeps its records in, with the methods that look after it. [Store] and [TxStore] have
// these methods, too. [NewTable] is for a job that does nothing else. It is safe for concurrent use, also by many
// processes.
type Table struct {
	pool   *pgxpool.Pool
	opts   Options
	by     string        // who uses it: New, or NewTx
	faults error         // of opts
	space  uint64        // keeps the locks of one table apart from those of another
	spare  chan struct{} // is full while there is a connection beyond those of the pool
	kept   atomic.Pointer[statements]

	stepsRefusal atomic.Pointer[error] // why the server cannot run steps in transactions; nil: it can

	most    int64        // connections of the pool
	steps   atomic.Int64 // of leases, under way
	made    time.Time
	replied atomic.Int64 // when the server did so last, in nanoseconds since made; 0: never
}

// NewTable returns the table that stores with the same options use.
func NewTable(pool *pgxpool.Pool, opts Options) *Table {
	h := fnv.New64a()
	h.Write([]byte(opts.table())) // without its schema, which some may name and others leave to the search path
	t := &Table{
		pool: pool, opts: opts, by: byStore, faults: opts.validate(), space: h.Sum64(), spare: make(chan struct{}, 1),
		made: time.Now(),
	}
	if pool != nil {
		t.most = int64(pool.Config().MaxConns)
	}
	return t
}

// Validate implements [idempotency.Validator].
func (t *Table) Validate(opts idempotency.RunnerOptions) error {
	err := errors.Join(t.faults, t.mayKeep(max(opts.TTL, opts.Lease)))
	if t.pool == nil {
		err = errors.Join(err, errors.New("pgxstore: the pool is nil"))
	}
	return err
}

// lockNumber returns what advisory locks call a key. That two keys have the same number is harmless: one of them is in
// progress a moment longer. That is very unlikely, save for one key in tables of one name in two schemas.
func (t *Table) lockNumber(digest [32]byte) int64 {
	return int64(binary.BigEndian.Uint64(digest[:8]) ^ t.space)
}
