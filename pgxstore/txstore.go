package pgxstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

// TxStore keeps records in PostgreSQL, for handlers whose effects are in the same database. The claim is a transaction,
// which the handler gets from [Tx]. Its commit makes effects and record permanent together, so each operation takes
// effect exactly once, whatever breaks, unless the handler itself commits. An answer of 400 or more is kept without the
// effects (see [KeepEffects]). It is safe for concurrent use.
//
// A COMMIT is refused by [Tx] and [SQLTx], and by PostgreSQL in a procedure or a DO block. One by way of the Conn of the
// transaction, or behind another statement in one string, is noticed when the handler has returned. The operation is
// then recorded as carried out, without its answer. It is not noticed if the process dies before that. Nor does anything
// keep a request that comes in between from running the handler again.
//
// An attempt that was rolled back leaves nothing, so the next one has the number 1 again. It has the same ID, and so the same
// [idempotency.Operation.DownstreamKey]. So a handler that also calls another system calls it first, with that key, and
// writes the rows afterwards. The results of steps, see package step, would be rolled back, too, so a claim keeps none:
// Beside of that package keeps them in a [Store].
//
// A claim has no lease. It ends with its session: at once if the process dies, and after [Options].IdleTimeout if the
// session falls silent.
type TxStore struct {
	*Table
	beginning   string
	idleTimeout int64 // in milliseconds
}

var _ idempotency.Store = (*TxStore)(nil)

// NewTx returns a store on pool. The caller closes the pool. Each operation holds one of its connections while it runs.
// Requests that wait for the operation hold none. [Migrate] makes the table.
func NewTx(pool *pgxpool.Pool, opts Options) *TxStore {
	idle := max(1, cmp.Or(opts.IdleTimeout, time.Minute).Milliseconds())
	table := NewTable(pool, opts)
	table.by = byTxStore
	return &TxStore{Table: table, beginning: opts.begin(), idleTimeout: idle}
}

// Transactional tells idempotency.New that no handler may run without its transaction.
func (s *TxStore) Transactional() bool { return true }

// Begin implements [idempotency.Store]. If a connection breaks, it starts again on another one.
func (s *TxStore) Begin(ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest) (idempotency.Record, idempotency.Claim, error) {
	if err := errors.Join(s.faults, s.mayKeep(request.TTL)); err != nil {
		return idempotency.Record{}, nil, err
	}
	sql, err := s.located(ctx)
	if err != nil {
		return idempotency.Record{}, nil, failure("claim", err)
	}
	a := &attempt{store: s, sql: sql, names: s.opts.names(key), digest: key.Digest(), request: request, token: newUUID()}
	v, err := s.begin(ctx, a)
	if err != nil {
		return idempotency.Record{}, nil, failure("claim", err)
	}
	if v.free() {
		a.own(v)
		return a.record(), a, nil
	}
	v.end(ctx)
	if v.held() {
		record, err := s.found(ctx, sql, a.digest, &v.row, request)
		return record, nil, err
	}
	return idempotency.Record{NoLease: true}, nil, nil // all that can be known of a running transaction
}

// begin visits the key until its state is known. A session whose connection has broken keeps its lock until the server
// notices. So begin goes on for a while after such a failure: the lock that it meets may be its own.
func (s *TxStore) begin(ctx context.Context, a *attempt) (v *visit, err error) {
	var giveUp time.Time
	for {
		err = s.repeat(ctx, new(bool), func() error { // a claim ends with its connection
			v, err = s.visit(ctx, s.beginning, a)
			if err != nil {
				giveUp = time.Now().Add(sqlstore.TimeLeft(ctx) / 2)
			}
			return err
		})
		if err != nil || v.locked || v.held() || time.Now().After(giveUp) {
			return v, err
		}
		v.end(ctx)
		sqlstore.Pause(ctx, 5*time.Millisecond)
	}
}

// visit is a transaction that has tried to lock a key, and has looked at its record then.
type visit struct {
	conn   *pgxpool.Conn
	locked bool
	began  pgtype.Timestamptz
	unfit  atomic.Bool // the connection is not to be used again

	found              bool // there is a record
	row                row
	claimable, expired bool
}

// held reports whether there is a record that cannot be claimed.
func (v *visit) held() bool { return v.found && !v.claimable }

// free reports whether the key can be claimed in this transaction.
func (v *visit) free() bool { return v.locked && !v.held() }

// visit looks at the key on a connection of its own.
func (s *TxStore) visit(ctx context.Context, begin string, a *attempt) (*visit, error) {
	conn, err := s.acquire(ctx)
	if err != nil {
		return nil, err
	}
	v := &visit{conn: conn}
	err = hasten(ctx, conn.Conn(), func() error {
		if begin == beginSerializable {
			return s.lookApart(ctx, v, a)
		}
		return s.look(ctx, v, begin, a)
	})
	if err != nil {
		conn.Release() // which closes a connection with a transaction
		return nil, err
	}
	return v, nil
}

// look takes one round trip.
func (s *TxStore) look(ctx context.Context, v *visit, begin string, a *attempt) error {
	var batch pgx.Batch
	s.queueLook(&batch, v, begin, a)
	return v.conn.SendBatch(ctx, &batch).Close()
}

func (s *TxStore) queueLook(batch *pgx.Batch, v *visit, begin string, a *attempt) {
	batch.Queue(begin)
	s.queueLock(batch, v, a)
	batch.Queue(a.sql["read"], a.digest[:]).QueryRow(func(r pgx.Row) error { return v.scan(r, a) })
}

// lookApart takes two round trips, for the transaction not to read what others write: at the level serializable the
// database would refuse one of any two that look for a record on the same page of the index. The record is read before
// the lock is taken, which is as good: the snapshot of the transaction is never newer than its lock, and what comes
// between is left to the primary key.
func (s *TxStore) lookApart(ctx context.Context, v *visit, a *attempt) error {
	err := v.scan(v.conn.QueryRow(ctx, a.sql["read"], a.digest[:]), a)
	if err != nil || v.held() {
		return err
	}
	var batch pgx.Batch
	batch.Queue(beginSerializable)
	s.queueLock(&batch, v, a)
	return v.conn.SendBatch(ctx, &batch).Close()
}

func (s *TxStore) queueLock(batch *pgx.Batch, v *visit, a *attempt) {
	batch.Queue(a.sql["lock"], s.lockNumber(a.digest), s.idleTimeout).QueryRow(func(r pgx.Row) error {
		return r.Scan(&v.locked, &v.began, nil)
	})
}

// scan reads the record, if there is one, and judges it as a would.
func (v *visit) scan(from pgx.Row, a *attempt) error {
	switch err := from.Scan(v.row.columns(&a.names)...); {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return err
	}
	v.found, v.expired = true, v.row.expired()
	v.claimable = v.expired || v.row.claimable(&a.request) && v.row.check(a.request.Fingerprint) == nil
	return nil
}

// end rolls back, unless the handler has, and gives the connection back.
func (v *visit) end(ctx context.Context) error {
	defer v.giveBack()
	if v.conn.Conn().PgConn().TxStatus() == 'I' {
		return nil
	}
	return rollback(ctx, v.conn.Conn())
}

// giveBack returns the connection to the pool, which closes it if its transaction has not ended. One that takes no writes is
// not to be used again: the pool may find a server that does.
func (v *visit) giveBack() {
	if v.unfit.Load() {
		v.hangUp()
		return
	}
	v.conn.Release()
}

// hangUp closes a connection that somebody may be using, whom nothing but the end of it can stop. The server rolls back.
func (v *visit) hangUp() { _ = v.conn.Hijack().PgConn().Conn().Close() }

// attempt implements [sqlstore.Attempt]. It is its own claim.
type attempt struct {
	sqlstore.TxClaim
	store   *TxStore
	sql     statements
	names   sqlstore.Names
	digest  [32]byte
	request idempotency.ClaimRequest
	token   pgtype.UUID

	visit   *visit
	number  int32
	created pgtype.Timestamptz

	conn       *pgx.Conn // of the handler
	tx         transaction
	bridged    bridged
	savepoints atomic.Int64
	unwatched  atomic.Bool // there is a way to the connection that is not watched
	undone     bool        // the handler has rolled back
	id         string      // of the transaction, for PostgreSQL; empty: not asked for
}

// own makes v the transaction of the claim, and of the handler.
func (a *attempt) own(v *visit) {
	a.conn, a.tx.attempt, a.bridged, a.Exclusive = v.conn.Conn(), a, bridged{&a.tx}, true
	a.Init(a, txKey{}, &a.tx)
	a.take(v)
}

// take makes v the transaction of the record.
func (a *attempt) take(v *visit) {
	a.visit, a.number, a.created = v, 1, v.began
	if v.found && !v.expired { // the next attempt at an operation that has a record, of a lease
		a.number, a.created = v.row.attempt.Int32+1, v.row.created
	}
}

func (a *attempt) record() idempotency.Record {
	return idempotency.Record{
		Attempt: int(a.number), Fingerprint: a.request.Fingerprint, Created: a.created.Time, NoLease: true,
	}
}

// status returns that of the transaction: T, E after an error, or I if it has ended.
func (a *attempt) status() byte { return a.conn.PgConn().TxStatus() }

// Undo implements [sqlstore.Attempt]. The key is free then, until Commit claims it again.
func (a *attempt) Undo(ctx context.Context) error {
	if a.status() == 'I' {
		return errEnded // perhaps by a commit
	}
	err := rollback(ctx, a.conn)
	a.undone = err == nil
	return err
}

func rollback(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, "rollback")
	return err
}

// HangUp implements [sqlstore.Attempt].
func (a *attempt) HangUp() { a.visit.hangUp() }

// Rollback implements [sqlstore.Attempt]. If it fails the connection is closed.
func (a *attempt) Rollback(ctx context.Context) error {
	err := a.visit.end(ctx)
	a.bury(ctx)
	return failure("release", err)
}

// Commit implements [sqlstore.Attempt].
func (a *attempt) Commit(ctx context.Context, resp idempotency.Response, ttl time.Duration, undo bool) error {
	if err := a.prepare(ctx, ttl, undo); err != nil {
		_ = a.Rollback(ctx)
		return err
	}
	err := hasten(ctx, a.conn, func() error { return a.commit(ctx, resp, ttl) })
	a.visit.giveBack()
	if err == nil {
		return nil
	}
	if isRefused(err) {
		a.bury(ctx)
	}
	switch {
	case a.store.isCollision(err):
		return fmt.Errorf("%w: %w", idempotency.ErrClaimLost, err)
	case a.store.isWithoutDay(err):
		return sqlstore.RolledBack(fmt.Errorf("%w: %w", a.store.lacksDay(), err))
	case isRefused(err) && a.store.isFinal(err):
		return sqlstore.Rejected(err)
	case isRefused(err):
		return sqlstore.RolledBack(err)
	}
	return a.resolve(ctx, err)
}

// bury records that the operation was carried out, without its answer, if the handler has committed behind our back. What
// was done cannot be undone, and must not be done again. The transaction of the visit has ended before. A session that has
// forgotten its statements fails once, and there may be several.
func (a *attempt) bury(ctx context.Context) {
	for range 5 {
		if ctx.Err() != nil || a.isBuried(ctx) {
			return
		}
	}
}

// isBuried reports whether there is nothing more to record.
func (a *attempt) isBuried(ctx context.Context) bool {
	if committed, err := a.hasCommitted(ctx, a.store.pool); !committed || err != nil {
		return err == nil
	}
	v, err := a.store.visit(ctx, beginReadCommitted, a)
	if err != nil {
		return false
	}
	if v.free() { // else another attempt was faster
		a.take(v)
		err = a.commit(ctx, idempotency.Response{Omitted: true}, a.request.TTL)
	}
	_ = v.end(ctx)
	return err == nil
}

// hasCommitted reports whether the handler has committed its transaction behind our back.
func (a *attempt) hasCommitted(ctx context.Context, q querier) (bool, error) {
	if a.id == "" {
		return false, nil
	}
	var status string
	err := q.QueryRow(ctx, "select pg_xact_status($1::text::xid8)", a.id).Scan(&status)
	return status == "committed", err
}

// prepare returns an error if there is no transaction that may be committed.
func (a *attempt) prepare(ctx context.Context, ttl time.Duration, undo bool) error {
	err := a.store.mayKeep(ttl)
	switch {
	case err != nil:
		return sqlstore.RolledBack(err)
	case undo:
		return hasten(ctx, a.conn, func() error { return a.startOver(ctx) })
	case a.status() != 'T':
		return sqlstore.RolledBack(errEnded)
	}
	return nil
}

// errEnded says that the transaction cannot be committed any more.
var errEnded = errors.New("pgxstore: the handler has ended its transaction, or ignored an error in it")

// commit takes one round trip. The server skips the commit if a statement before it fails.
func (a *attempt) commit(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	var batch pgx.Batch
	if a.visit.found {
		batch.Queue(a.sql["replace"], a.digest[:], a.visit.row.token)
	}
	sql, args := a.sql["record_first"], responseArgs(resp, a.digest[:], a.names[0], a.names[1], a.names[2], a.token,
		a.visit.began, a.request.Fingerprint[:], ttl.Microseconds())
	if a.number > 1 || a.created != a.visit.began { // the operation is older than the transaction
		sql, args = a.sql["record_next"], append(args, a.number, a.created)
	}
	batch.Queue(sql, args...)
	batch.Queue("commit")
	return a.visit.conn.SendBatch(ctx, &batch).Close()
}

// resolve finds out what became of a commit that was not answered. That its record is not there means nothing as long
// as its transaction may still go on; when its lock can be had, it has ended.
func (a *attempt) resolve(ctx context.Context, cause error) error {
	for ctx.Err() == nil {
		v, err := a.store.visit(ctx, beginReadCommitted, a)
		if err != nil {
			sqlstore.Pause(ctx, 20*time.Millisecond)
			continue
		}
		_ = v.end(ctx)
		switch {
		case v.found && v.row.token == a.token:
			if a.store.confirm(ctx, a.sql, a.digest, a.token, true) == nil {
				return nil
			}
		case v.found && !v.expired && (!a.visit.found || v.row.token != a.visit.row.token):
			return fmt.Errorf("%w: %w", idempotency.ErrClaimLost, cause)
		case v.locked:
			return sqlstore.RolledBack(cause)
		}
		sqlstore.Pause(ctx, 20*time.Millisecond)
	}
	return sqlstore.RolledBack(fmt.Errorf("in doubt: %w", cause))
}
