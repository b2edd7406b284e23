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
	if err := errors.Join(s.optionFaults, s.checkTTL(request.TTL)); err != nil {
		return idempotency.Record{}, nil, err
	}
	sql, err := s.loadStatements(ctx)
	if err != nil {
		return idempotency.Record{}, nil, wrapError("claim", err)
	}
	c := &claim{store: s, statements: sql, keyNames: s.opts.keyNames(key), keyDigest: key.Digest(), request: request, ownerToken: newUUID()}
	mayHoldClaim := false
	storedRow, err := c.claimKey(ctx, &mayHoldClaim)
	if err == nil && mayHoldClaim && storedRow.token == c.ownerToken { // perhaps by a try that was not answered
		err = s.confirmRecord(ctx, sql, c.keyDigest, c.ownerToken, false)
	}
	if err != nil {
		if s.isMissingPartition(err) {
			err = fmt.Errorf("%w: %w", s.missingPartitionError(), err)
		}
		err = wrapError("claim", err)
		if mayHoldClaim {
			err = &idempotency.ClaimInDoubtError{Claim: c, Err: err}
		}
		return idempotency.Record{}, nil, err
	}
	if storedRow.token == c.ownerToken {
		c.attemptNumber, c.createdAt = storedRow.attempt.Int32, storedRow.createdAt
		record := storedRow.bareRecord()
		record.Remaining = c.replacedRemaining
		return record, c, nil
	}
	record, err := s.presentRecord(ctx, sql, c.keyDigest, storedRow, request)
	return record, nil, err
}

// Table is the table that a store keeps its records in, with the methods that look after it. [Store] has these methods, too.
// [NewTable] is for a job that does nothing else. A Table is safe for concurrent use, also by many processes.
type Table struct {
	pool             *pgxpool.Pool
	opts             Options
	optionFaults     error         // of opts
	lockSpace        uint64        // keeps the locks of one table apart from those of another
	spareSlot        chan struct{} // is full while there is a connection beyond those of the pool
	cachedStatements atomic.Pointer[statements]

	stepsRefusal atomic.Pointer[error] // why the server cannot run steps in transactions; nil: it can

	crowd *crowd.Crowd
}

// NewTable returns the table that stores with the same options use.
func NewTable(pool *pgxpool.Pool, opts Options) *Table {
	h := fnv.New64a()
	h.Write([]byte(opts.tableName())) // without its schema, which some may name and others leave to the search path
	t := &Table{
		pool: pool, opts: opts, optionFaults: opts.validate(), lockSpace: h.Sum64(), spareSlot: make(chan struct{}, 1),
	}
	if pool != nil {
		t.crowd = crowd.New(int64(pool.Config().MaxConns))
	}
	return t
}

// Validate implements [idempotency.Validator].
func (t *Table) Validate(opts idempotency.RunnerOptions) error {
	err := errors.Join(t.optionFaults, t.checkTTL(max(opts.TTL, opts.Lease)))
	if t.pool == nil {
		err = errors.Join(err, errors.New("pgxstore: the pool is nil"))
	}
	return err
}

// lockNumber returns what advisory locks call a key. That two keys have the same number is harmless: one of them is in
// progress a moment longer. That is very unlikely, save for one key in tables of one name in two schemas.
func (t *Table) lockNumber(digest [32]byte) int64 {
	return int64(binary.BigEndian.Uint64(digest[:8]) ^ t.lockSpace)
}

// located returns the statements, which are kept once the schema of the table is known. They name the schema also if the
// options leave it to the search path: a handler may change that path, or make a temporary table that hides the one with the
// records.
func (t *Table) loadStatements(ctx context.Context) (statements, error) {
	if cached := t.cachedStatements.Load(); cached != nil {
		return *cached, nil
	}
	opts, err := t.locateTable(ctx)
	if err != nil {
		return nil, err
	}
	all := opts.allStatements()
	t.cachedStatements.Store(&all)
	return all, nil
}

// locate returns the options with the schema of the table, which is the first one of the search path that has it. It refuses a
// server on which the stores cannot be used, at the first use of each store.
func (t *Table) locateTable(ctx context.Context) (Options, error) {
	opts := t.opts
	var schema *string
	err := t.retryOnConn(ctx, new(bool), fromPool, func(conn *pgx.Conn) error {
		if refusal := t.admitServer(conn, bySteps); refusal != nil {
			t.stepsRefusal.Store(&refusal)
		}
		if err := t.admitServer(conn); err != nil || opts.Schema != "" {
			return err
		}
		return conn.QueryRow(ctx, `SELECT (SELECT n.nspname
FROM unnest(current_schemas(false)) WITH ORDINALITY AS s (name, place)
JOIN pg_namespace n ON n.nspname = s.name JOIN pg_class c ON c.relnamespace = n.oid
WHERE c.relname = $1::text ORDER BY s.place LIMIT 1)`, pgx.QueryExecModeExec, opts.tableName()).Scan(&schema)
	})
	switch {
	case err != nil || opts.Schema != "":
		return opts, err
	case schema == nil:
		return opts, t.unreadyError(callMigrate, "there is no table %s", opts.quotedName(""))
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
func (t *Table) confirmRecord(ctx context.Context, sql statements, digest [32]byte, token pgtype.UUID, isCompleted bool) error {
	mayHoldClaim := true
	return wrapError("confirm", t.retryOnConn(ctx, &mayHoldClaim, fromPool, func(conn *pgx.Conn) error {
		return sql.confirmRecordOn(ctx, conn, digest, token, isCompleted)
	}))
}

func (sql statements) confirmRecordOn(ctx context.Context, conn *pgx.Conn, digest [32]byte, token pgtype.UUID, isCompleted bool) error {
	tag, err := conn.Exec(ctx, sql["confirm"], digest[:], token, isCompleted)
	if err == nil && tag.RowsAffected() == 0 {
		return errUnconfirmed
	}
	return err
}

// unconfirmed is the lease of an operation whose response is not shown, because it cannot be confirmed.
const unconfirmedLease = time.Second

// found returns the record that holds a key, for an attempt that has found it. A response that cannot be confirmed is
// not shown: the operation counts as running, as it would if nobody had cancelled the wait of its commit.
func (t *Table) presentRecord(
	ctx context.Context, sql statements, digest [32]byte, storedRow *row, request idempotency.ClaimRequest,
) (idempotency.Record, error) {
	record, err := storedRow.decodeRecord(request.Fingerprint)
	if err != nil || record.Response == nil || record.Fingerprint != request.Fingerprint {
		return record, err
	}
	if storedRow.needsConfirmation {
		err := t.confirmRecordOnce(ctx, sql, digest, storedRow.token)
		switch {
		case errors.Is(err, idempotency.ErrStoreBusy) || isRefused(err):
			return idempotency.Record{}, wrapError("claim", err)
		case err != nil:
			record.Response, record.LeaseLeft = nil, unconfirmedLease
			return record, nil
		}
	}
	t.countReplay(ctx, sql, digest, storedRow, request)
	return record, nil
}

// confirmOnce is confirm with a single try, for a response that the client can ask for again.
func (t *Table) confirmRecordOnce(ctx context.Context, sql statements, digest [32]byte, token pgtype.UUID) error {
	conn, err := t.acquireConn(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	return runWithDeadline(ctx, conn.Conn(), func() error { return sql.confirmRecordOn(ctx, conn.Conn(), digest, token, true) })
}
