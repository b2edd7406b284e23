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
	"github.com/idempotency-go/idempotency/internal/bounds"
)

// Store is an [idempotency.Store] in PostgreSQL. A single statement decides each change of a record, by the clock of the
// server. A Store is safe for concurrent use.
//
// The number of an attempt counts the claims of the key that the table remembers. After a loss of data, the number starts
// again at 1.
//
// The results of steps (see package step) are columns of the record. Each step writes the columns with all results again.
type Store struct{ *Table }

var _ idempotency.Store = (*Store)(nil)

// New returns a store on pool. The caller creates the table with [Migrate], and closes pool.
//
// While handlers hold all connections of pool, the store renews leases and stores results of steps on one spare
// connection. The store opens the spare connection with the configuration of pool, and closes it after each use.
//
// If opts has faults, for example a PartitionDays that is too small for the TTL of the middleware, [idempotency.New],
// Begin and Check return all faults joined.
func New(pool *pgxpool.Pool, opts Options) *Store { return &Store{NewTable(pool, opts)} }

// Begin implements [idempotency.Store]. If a connection breaks, Begin sends the claim again. If the first try had claimed
// the key, the second try finds the token of the claim in the record. If Begin gets no reply before ctx ends, it returns
// an [idempotency.ClaimInDoubtError].
func (s *Store) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	request.TTL = max(request.TTL, request.Lease)
	if err := errors.Join(s.optionFaults, s.checkTTL(request.TTL)); err != nil {
		return idempotency.Record{}, nil, err
	}
	sql, err := s.loadStatements(ctx)
	if err != nil {
		return idempotency.Record{}, nil, wrapError("claim", err)
	}
	c := &claim{
		store: s, statements: sql, keyNames: s.opts.keyNames(key), operation: asUUID(key.OperationID()), request: request,
		ownerToken: newUUID(),
	}
	mayHoldClaim := false
	storedRow, err := c.claimKey(ctx, &mayHoldClaim)
	if err == nil && mayHoldClaim && storedRow.token == c.ownerToken { // perhaps by an earlier try whose reply was lost
		err = s.confirmRecord(ctx, sql, c.operation, c.ownerToken, false)
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
	record, err := s.readHeldRecord(ctx, sql, c.operation, storedRow, request)
	return record, nil, err
}

// Table is the table in which a store keeps its records, with the methods to check, inspect and maintain the table. A
// [Store] has these methods, too. Use [NewTable] in a job that only maintains or inspects the table. A Table is safe for
// concurrent use, also by many processes.
type Table struct {
	pool             *pgxpool.Pool
	opts             Options
	optionFaults     error
	lockSpace        uint64        // separates the advisory locks of this table from the locks of other tables
	spareSlot        chan struct{} // full while the spare connection is open
	cachedStatements atomic.Pointer[statements]

	stepsRefusal atomic.Pointer[error] // why the server cannot run steps in transactions; nil if it can

	crowd *bounds.Crowd
}

// NewTable returns the table that stores with the same opts use.
func NewTable(pool *pgxpool.Pool, opts Options) *Table {
	h := fnv.New64a()
	h.Write([]byte(opts.tableName())) // without the schema, because some processes may leave it to the search path
	t := &Table{
		pool: pool, opts: opts, optionFaults: opts.validate(), lockSpace: h.Sum64(), spareSlot: make(chan struct{}, 1),
	}
	if pool != nil {
		t.crowd = bounds.NewCrowd(int64(pool.Config().MaxConns))
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

// lockNumber returns the number of the advisory lock for an operation. Two operations with the same number wait for each
// other, which is harmless. A collision is very unlikely, except for the same key in tables of the same name in two
// schemas: 60 of the first 64 bits of the ID come from a hash.
func (t *Table) lockNumber(operation pgtype.UUID) int64 {
	return int64(binary.BigEndian.Uint64(operation.Bytes[:8]) ^ t.lockSpace)
}

// loadStatements returns the statements, and caches them as soon as the schema of the table is known. The statements
// always name the schema, even if the options leave the schema to the search path, because a handler may change the
// search path, or create a temporary table that hides the table of the store.
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

// locateTable returns the options with the schema of the table: the first schema of the search path that has the table.
// At the first use of each store, locateTable also refuses a server on which stores do not work.
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

// errUnconfirmed reports that the record is gone or has changed, or that the connected server does not have the record.
var errUnconfirmed = errors.New("pgxstore: the record is gone, or has changed")

// confirmRecord makes sure that a record survives a failover.
//
// With synchronous replication, a record that can be read may be missing on the standbys: a commit becomes visible if its
// wait for the standbys is cancelled, and pgx cancels the wait when it gives up a connection. The record is lost if a
// standby takes over then. Before anybody relies on a record that was only read, confirmRecord locks the record in a
// transaction whose commit waits for the standbys. isCompleted tells whether the record was completed when it was read.
//
// confirmRecord tries until ctx ends. If the record is gone or has changed, confirmRecord returns errUnconfirmed, and the
// caller must decide anew.
func (t *Table) confirmRecord(
	ctx context.Context, sql statements, operation, token pgtype.UUID, isCompleted bool,
) error {
	mayHoldClaim := true
	return wrapError("confirm", t.retryOnConn(ctx, &mayHoldClaim, fromPool, func(conn *pgx.Conn) error {
		return sql.confirmRecordOn(ctx, conn, operation, token, isCompleted)
	}))
}

// confirmRecordOn is a single try of confirmRecord on conn.
func (sql statements) confirmRecordOn(
	ctx context.Context, conn *pgx.Conn, operation, token pgtype.UUID, isCompleted bool,
) error {
	tag, err := conn.Exec(ctx, sql["confirm"], operation, token, isCompleted)
	if err == nil && tag.RowsAffected() == 0 {
		return errUnconfirmed
	}
	return err
}

// unconfirmedLease is the lease that readHeldRecord reports for a response that cannot be confirmed. After a second, the
// client may ask again.
const unconfirmedLease = time.Second

// readHeldRecord returns the record that holds the key of request. If the response cannot be confirmed, readHeldRecord
// hides the response, and the operation looks as if it were still running: without the cancellation of the wait for the
// standbys, it would be.
func (t *Table) readHeldRecord(
	ctx context.Context, sql statements, operation pgtype.UUID, storedRow *row, request idempotency.ClaimRequest,
) (idempotency.Record, error) {
	record, err := storedRow.decodeRecord(request.Fingerprint)
	if err != nil || record.Response == nil || record.Fingerprint != request.Fingerprint {
		return record, err
	}
	if storedRow.needsConfirmation {
		err := t.confirmRecordOnce(ctx, sql, operation, storedRow.token)
		switch {
		case errors.Is(err, idempotency.ErrStoreBusy) || isRefused(err):
			return idempotency.Record{}, wrapError("claim", err)
		case err != nil:
			record.Response, record.LeaseLeft = nil, unconfirmedLease
			return record, nil
		}
	}
	t.countReplay(ctx, sql, operation, storedRow, request)
	return record, nil
}

// confirmRecordOnce is confirmRecord with a single try, for a response that the client can ask for again.
func (t *Table) confirmRecordOnce(ctx context.Context, sql statements, operation, token pgtype.UUID) error {
	conn, err := t.acquireConn(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	return runWithDeadline(ctx, conn.Conn(), func() error {
		return sql.confirmRecordOn(ctx, conn.Conn(), operation, token, true)
	})
}
