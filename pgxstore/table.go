package pgxstore

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency"
)

// Table is the table that a store keeps its records in, with the methods that look after it. [Store] has these methods, too.
// [NewTable] is for a job that does nothing else. A Table is safe for concurrent use, also by many processes.
type Table struct {
	pool   *pgxpool.Pool
	opts   Options
	faults error         // of opts
	space  uint64        // keeps the locks of one table apart from those of another
	spare  chan struct{} // is full while there is a connection beyond those of the pool
	kept   atomic.Pointer[statements]

	stepsRefusal atomic.Pointer[error] // why the server cannot run steps in transactions; nil: it can

	most    int64        // connections of the pool
	steps   atomic.Int64 // under way
	made    time.Time
	replied atomic.Int64 // when the server did so last, in nanoseconds since made; 0: never
}

// NewTable returns the table that stores with the same options use.
func NewTable(pool *pgxpool.Pool, opts Options) *Table {
	h := fnv.New64a()
	h.Write([]byte(opts.table())) // without its schema, which some may name and others leave to the search path
	t := &Table{
		pool: pool, opts: opts, faults: opts.validate(), space: h.Sum64(), spare: make(chan struct{}, 1),
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

// located returns the statements, which are kept once the schema of the table is known. They name the schema also if the
// options leave it to the search path: a handler may change that path, or make a temporary table that hides the one with the
// records.
func (t *Table) located(ctx context.Context) (statements, error) {
	if kept := t.kept.Load(); kept != nil {
		return *kept, nil
	}
	opts, err := t.locate(ctx)
	if err != nil {
		return nil, err
	}
	all := opts.statements()
	t.kept.Store(&all)
	return all, nil
}

// locate returns the options with the schema of the table, which is the first one of the search path that has it. It refuses a
// server on which the stores cannot be used, at the first use of each store.
func (t *Table) locate(ctx context.Context) (Options, error) {
	opts := t.opts
	var schema *string
	err := t.retry(ctx, new(bool), pooled, func(conn *pgx.Conn) error {
		if refusal := t.admit(conn, bySteps); refusal != nil {
			t.stepsRefusal.Store(&refusal)
		}
		if err := t.admit(conn); err != nil || opts.Schema != "" {
			return err
		}
		return conn.QueryRow(ctx, `SELECT (SELECT n.nspname
FROM unnest(current_schemas(false)) WITH ORDINALITY AS s (name, place)
JOIN pg_namespace n ON n.nspname = s.name JOIN pg_class c ON c.relnamespace = n.oid
WHERE c.relname = $1::text ORDER BY s.place LIMIT 1)`, pgx.QueryExecModeExec, opts.table()).Scan(&schema)
	})
	switch {
	case err != nil || opts.Schema != "":
		return opts, err
	case schema == nil:
		return opts, t.unready(callMigrate, "there is no table %s", opts.name(""))
	}
	opts.Schema = *schema
	return opts, nil
}
