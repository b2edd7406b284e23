package pgxstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/crowd"
)

// Store keeps records in PostgreSQL. One statement decides each step, by the clock of the server. A Store is safe for concurrent
// use.
//
// The number of an attempt counts the claims of the key that the table remembers. After a loss of data it begins again.
//
// The results of steps, see package step, are columns of the record. Each step writes all of them once more.
type Store struct{ *Table }

var _ idempotency.Store = (*Store)(nil)

// New returns a store on pool. The caller closes the pool. While others hold all connections of the pool, leases are
// renewed, and results of steps are stored, on one more connection. It is made as the pool makes them, and closed at
// once. [Migrate] makes the table. Faults of opts are errors of [idempotency.New], Begin and Check, which report all of them
// together. A PartitionDays that is too few for the TTL of the middleware is one.
func New(pool *pgxpool.Pool, opts Options) *Store { return &Store{NewTable(pool, opts)} }

// Begin implements [idempotency.Store]. If a connection breaks, it asks again. If the first question has claimed the
// key, the second one recognises its own token. If no answer comes, the claim is in doubt.
func (s *Store) Begin(ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest) (idempotency.Record, idempotency.Claim, error) {
	request.TTL = max(request.TTL, request.Lease)
	if err := errors.Join(s.faults, s.mayKeep(request.TTL)); err != nil {
		return idempotency.Record{}, nil, err
	}
	sql, err := s.located(ctx)
	if err != nil {
		return idempotency.Record{}, nil, failure("claim", err)
	}
	c := &claim{store: s, sql: sql, names: s.opts.names(key), digest: key.Digest(), request: request, token: newUUID()}
	claimed := false
	held, err := c.take(ctx, &claimed)
	if err == nil && claimed && held.token == c.token { // perhaps by a try that was not answered
		err = s.confirm(ctx, sql, c.digest, c.token, false)
	}
	if err != nil {
		if s.isWithoutDay(err) {
			err = fmt.Errorf("%w: %w", s.lacksDay(), err)
		}
		err = failure("claim", err)
		if claimed {
			err = &idempotency.ClaimInDoubtError{Claim: c, Err: err}
		}
		return idempotency.Record{}, nil, err
	}
	if held.token == c.token {
		c.attempt, c.created = held.attempt.Int32, held.created
		record := held.record()
		record.Remaining = c.replaced
		return record, c, nil
	}
	record, err := s.found(ctx, sql, c.digest, held, request)
	return record, nil, err
}

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

	crowd *crowd.Crowd
}

// NewTable returns the table that stores with the same options use.
func NewTable(pool *pgxpool.Pool, opts Options) *Table {
	h := fnv.New64a()
	h.Write([]byte(opts.table())) // without its schema, which some may name and others leave to the search path
	t := &Table{
		pool: pool, opts: opts, faults: opts.validate(), space: h.Sum64(), spare: make(chan struct{}, 1),
	}
	if pool != nil {
		t.crowd = crowd.New(int64(pool.Config().MaxConns))
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

// With synchronous replication a commit that is visible may be on no standby: it becomes visible when its wait for the
// standbys is cancelled, and pgx asks for that when it gives up a connection. So it is lost if a standby takes over. A
// record that was seen, and not written by the same step, is therefore confirmed before anybody relies on it.

// errUnconfirmed says that a record is gone, or not on the server that was asked.
var errUnconfirmed = errors.New("pgxstore: the record is not there any more, or not as it was")

// confirm returns nil when a record that was seen, completed or not, is where commits have to be to be acknowledged. It
// tries until ctx ends, unless the record is gone: then the step that has seen it is to be judged anew.
func (t *Table) confirm(ctx context.Context, sql statements, digest [32]byte, token pgtype.UUID, completed bool) error {
	relied := true
	return failure("confirm", t.retry(ctx, &relied, pooled, func(conn *pgx.Conn) error {
		return sql.confirmOn(ctx, conn, digest, token, completed)
	}))
}

func (sql statements) confirmOn(ctx context.Context, conn *pgx.Conn, digest [32]byte, token pgtype.UUID, completed bool) error {
	tag, err := conn.Exec(ctx, sql["confirm"], digest[:], token, completed)
	if err == nil && tag.RowsAffected() == 0 {
		return errUnconfirmed
	}
	return err
}

// unconfirmed is the lease of an operation whose response is not shown, because it cannot be confirmed.
const unconfirmed = time.Second

// found returns the record that holds a key, for an attempt that has found it. A response that cannot be confirmed is
// not shown: the operation counts as running, as it would if nobody had cancelled the wait of its commit.
func (t *Table) found(
	ctx context.Context, sql statements, digest [32]byte, held *row, by idempotency.ClaimRequest,
) (idempotency.Record, error) {
	record, err := held.held(by.Fingerprint)
	if err != nil || record.Response == nil || record.Fingerprint != by.Fingerprint {
		return record, err
	}
	if held.awaited {
		err := t.confirmOnce(ctx, sql, digest, held.token)
		switch {
		case errors.Is(err, idempotency.ErrStoreBusy) || isRefused(err):
			return idempotency.Record{}, failure("claim", err)
		case err != nil:
			record.Response, record.LeaseLeft = nil, unconfirmed
			return record, nil
		}
	}
	t.countReplay(ctx, sql, digest, held, by)
	return record, nil
}

// confirmOnce is confirm with a single try, for a response that the client can ask for again.
func (t *Table) confirmOnce(ctx context.Context, sql statements, digest [32]byte, token pgtype.UUID) error {
	conn, err := t.acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	return hasten(ctx, conn.Conn(), func() error { return sql.confirmOn(ctx, conn.Conn(), digest, token, true) })
}
