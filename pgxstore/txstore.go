package pgxstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
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
// transaction is noticed when the handler has returned. The operation is then recorded as carried out, without its answer.
// It is not noticed if the process dies before that. Nor does anything keep a request that comes in between from running
// the handler again.
//
// An attempt that was rolled back leaves nothing, so the next one has the number 1 again. It has the same ID, and so the same
// [idempotency.Operation.DownstreamKey]. So a handler that also calls another system calls it first, with that key, and
// writes the rows afterwards.
//
// A claim has no lease. It ends with its session: at once if the process dies, and after [Options].IdleTimeout if the
// session falls silent.
type TxStore struct {
	*Table
	statements             located[txStatements]
	beginning, idleTimeout string
	withoutDay             atomic.Bool // a record was refused because there was no partition for it
}

var _ idempotency.Store = (*TxStore)(nil)

// NewTx returns a store on pool. The caller closes the pool. Each operation holds one of its connections while it runs.
// Requests that wait for the operation hold none. [Migrate] makes the table.
func NewTx(pool *pgxpool.Pool, opts Options) *TxStore {
	return &TxStore{
		Table: NewTable(pool, opts), statements: located[txStatements]{expand: expandTx},
		beginning: opts.begin(), idleTimeout: opts.idleTimeout(),
	}
}

type txStatements struct{ lock, read, replace, recordFirst, recordNext, confirm, count string }

func expandTx(opts Options) txStatements {
	first, next := opts.recordStatements()
	return txStatements{
		lock: opts.statement("lock"), read: opts.statement("read"), replace: opts.statement("replace"),
		recordFirst: first, recordNext: next, confirm: opts.statement("confirm"), count: opts.statement("count"),
	}
}

// Transactional tells idempotency.New that no handler may run without its transaction.
func (s *TxStore) Transactional() bool { return true }

// Begin implements [idempotency.Store]. If a connection breaks, it starts again on another one.
func (s *TxStore) Begin(ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest) (idempotency.Record, idempotency.Claim, error) {
	if err := errors.Join(s.faults, s.mayKeep(request.TTL)); err != nil {
		return idempotency.Record{}, nil, err
	}
	sql, err := s.statements.in(ctx, s.Table)
	if err != nil {
		return idempotency.Record{}, nil, fmt.Errorf("pgxstore: claim: %w", err)
	}
	c := &txClaim{
		store: s, sql: sql, names: s.opts.names(key), digest: key.Digest(), fingerprint: request.Fingerprint, token: newUUID(),
		ttl: request.TTL, reach: reachOf(request),
	}
	v, err := s.begin(ctx, c)
	if err == nil && v.free() && s.withoutDay.Load() {
		err = s.seeDay(ctx, v, request.TTL)
	}
	if err != nil {
		return idempotency.Record{}, nil, fmt.Errorf("pgxstore: claim: %w", err)
	}
	if v.free() {
		c.own(v)
		return c.recordOf(), c, nil
	}
	v.end(ctx)
	if v.held() {
		record, err := s.found(ctx, sql.confirm, sql.count, c.digest, &v.row, request)
		return record, nil, err
	}
	return idempotency.Record{NoLease: true}, nil, nil // all that can be known of a running transaction
}

// begin visits the key until its state is known. A session whose connection has broken keeps its lock until the server
// notices. So begin goes on for a while after such a failure: the lock that it meets may be its own.
func (s *TxStore) begin(ctx context.Context, c *txClaim) (v *visit, err error) {
	claimed := false // a claim ends with its connection
	var giveUp time.Time
	for {
		err = s.repeat(ctx, &claimed, func() error {
			v, err = s.visit(ctx, s.beginning, c, c.reach)
			if err != nil {
				giveUp = time.Now().Add(timeLeft(ctx) / 2)
			}
			return err
		})
		if err != nil || v.locked || v.held() || time.Now().After(giveUp) {
			return v, err
		}
		v.end(ctx)
		pause(ctx, 5*time.Millisecond)
	}
}

// seeDay ends a visit and returns an error if there is still no partition for the record.
func (s *TxStore) seeDay(ctx context.Context, v *visit, ttl time.Duration) error {
	err := s.hasDay(ctx, v.conn, ttl)
	if err != nil {
		_ = v.end(ctx) // if it fails the connection is closed
		return err
	}
	s.withoutDay.Store(false)
	return nil
}

// timeLeft returns how long it is to the deadline of ctx, and a second if it has none.
func timeLeft(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return time.Until(deadline)
	}
	return time.Second
}

// visit is a transaction that has tried to lock a key, and has looked at its record then.
type visit struct {
	conn   *pgxpool.Conn
	locked bool
	began  pgtype.Timestamptz

	session session // of the handler, if the key is claimed

	found              bool // there is a record
	row                row
	claimable, expired bool
}

// held reports whether there is a record that cannot be claimed.
func (v *visit) held() bool { return v.found && !v.claimable }

// free reports whether the key can be claimed in this transaction.
func (v *visit) free() bool { return v.locked && !v.held() }

// visit looks at the key on a connection of its own.
func (s *TxStore) visit(ctx context.Context, begin string, c *txClaim, reach reach) (*visit, error) {
	conn, err := s.acquire(ctx)
	if err != nil {
		return nil, err
	}
	v := &visit{conn: conn}
	err = hasten(ctx, conn.Conn(), func() error {
		if begin == beginSerializable {
			return s.lookApart(ctx, v, c, reach)
		}
		return s.look(ctx, v, begin, c, reach)
	})
	if err != nil {
		conn.Release() // which closes a connection with a transaction
		return nil, err
	}
	return v, nil
}

// look takes one round trip.
func (s *TxStore) look(ctx context.Context, v *visit, begin string, c *txClaim, reach reach) error {
	var batch pgx.Batch
	s.queueLook(&batch, v, begin, c, reach)
	return v.conn.SendBatch(ctx, &batch).Close()
}

func (s *TxStore) queueLook(batch *pgx.Batch, v *visit, begin string, c *txClaim, reach reach) {
	batch.Queue(begin)
	s.queueLock(batch, v, c)
	batch.Queue(c.sql.read, c.digest[:]).QueryRow(func(r pgx.Row) error { return v.scan(r, c, reach) })
}

// lookApart takes two round trips, for the transaction not to read what others write: at the level serializable the
// database would refuse one of any two that look for a record on the same page of the index. The record is read before
// the lock is taken, which is as good: the snapshot of the transaction is never newer than its lock, and what comes
// between is left to the primary key.
func (s *TxStore) lookApart(ctx context.Context, v *visit, c *txClaim, reach reach) error {
	err := v.scan(v.conn.QueryRow(ctx, c.sql.read, c.digest[:]), c, reach)
	if err != nil || v.held() {
		return err
	}
	var batch pgx.Batch
	batch.Queue(beginSerializable)
	s.queueLock(&batch, v, c)
	return v.conn.SendBatch(ctx, &batch).Close()
}

func (s *TxStore) queueLock(batch *pgx.Batch, v *visit, c *txClaim) {
	batch.Queue(c.sql.lock, s.lockNumber(c.digest), s.idleTimeout).QueryRow(func(r pgx.Row) error {
		return r.Scan(&v.locked, &v.began, nil)
	})
}

// scan reads the record, if there is one, and judges it as c would.
func (v *visit) scan(from pgx.Row, c *txClaim, reach reach) error {
	switch err := from.Scan(v.row.columns(&c.names)...); {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return err
	}
	v.found, v.expired = true, v.row.expired()
	v.claimable = v.expired || v.row.claimable(c.fingerprint, reach) && v.row.check(c.fingerprint) == nil
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
	if v.session.lent.Load() || v.session.readOnly.Load() {
		v.hangUp()
		return
	}
	v.conn.Release()
}

// hangUp closes a connection that somebody may be using, whom nothing but the end of it can stop. The server rolls back.
func (v *visit) hangUp() { _ = v.conn.Hijack().PgConn().Conn().Close() }

// txClaim implements [idempotency.Claim].
type txClaim struct {
	store       *TxStore
	sql         *txStatements
	names       names
	digest      [32]byte
	fingerprint idempotency.Fingerprint
	reach       reach
	token       pgtype.UUID
	ttl         time.Duration // as it was asked for

	visit   *visit
	tx      transaction
	attempt int32
	created pgtype.Timestamptz

	settled  bool
	ended    atomic.Bool // Complete or Release has returned, or is about to
	released bool
	outcome  error // of Complete
}

// own makes v the transaction of the claim, and of the handler.
func (c *txClaim) own(v *visit) {
	c.tx.session = &v.session
	v.session.conn = v.conn.Conn()
	c.take(v)
}

// take makes v the transaction of the record.
func (c *txClaim) take(v *visit) {
	c.visit, c.attempt, c.created = v, 1, v.began
	if v.found && !v.expired { // the next attempt at an operation that has a record, of a lease
		c.attempt, c.created = v.row.attempt.Int32+1, v.row.created
	}
}

func (c *txClaim) recordOf() idempotency.Record {
	return idempotency.Record{Attempt: int(c.attempt), Fingerprint: c.fingerprint, Created: c.created.Time, NoLease: true}
}

// Context implements [idempotency.Claim]: it adds what [Tx] returns.
func (c *txClaim) Context(ctx context.Context) context.Context {
	c.visit.session.handler = ctx
	return context.WithValue(ctx, txKey{}, &c.tx)
}

// Extend implements [idempotency.Claim]. There is no lease to extend. It says whether the session of the transaction is
// known to have ended.
func (c *txClaim) Extend(context.Context, time.Duration) error {
	if c.ended.Load() || !c.tx.isAlive() {
		return idempotency.ErrClaimLost
	}
	return nil
}

// Release implements [idempotency.Claim]: it rolls back.
func (c *txClaim) Release(ctx context.Context, _ time.Duration) error {
	if c.settled {
		if c.released {
			return nil
		}
		return idempotency.ErrClaimLost
	}
	c.settled, c.released = true, true
	c.ended.Store(true)
	if !c.tx.end() {
		c.visit.hangUp()
		return nil
	}
	err := c.visit.end(ctx)
	c.bury(ctx)
	if err != nil {
		return fmt.Errorf("pgxstore: release: %w", err)
	}
	return nil
}

// Complete implements [idempotency.Claim]: it inserts the record and commits. If the response refuses the operation, it
// rolls back what the handler did first.
func (c *txClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	if c.released {
		return idempotency.ErrClaimLost
	}
	if !c.settled {
		c.settled = true
		c.outcome = c.complete(ctx, resp, ttl)
		c.ended.Store(true)
	}
	return c.outcome
}

func (c *txClaim) complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	if !c.tx.end() {
		c.visit.hangUp()
		return sqlstore.RolledBack(errBusy)
	}
	err := c.store.mayKeep(ttl)
	if err != nil {
		err = sqlstore.RolledBack(err)
	} else {
		err = c.prepare(ctx, resp)
	}
	if err != nil {
		_ = c.visit.end(ctx) // if it fails the connection is closed
		c.bury(ctx)
		return err
	}
	err = hasten(ctx, c.visit.conn.Conn(), func() error { return c.commit(ctx, resp, ttl) })
	c.visit.giveBack()
	if err == nil {
		return nil
	}
	if isRefused(err) {
		c.bury(ctx)
	}
	switch {
	case c.store.isCollision(err):
		return fmt.Errorf("%w: %w", idempotency.ErrClaimLost, err)
	case c.store.isWithoutDay(err):
		c.store.withoutDay.Store(true)
		return sqlstore.RolledBack(fmt.Errorf("%w: %w", c.store.lacksDay(), err))
	case isRefused(err) && c.store.isFinal(err):
		return sqlstore.Rejected(err)
	case isRefused(err):
		return sqlstore.RolledBack(err)
	}
	return c.resolve(ctx, err)
}

// bury records that the operation was carried out, without its answer, if the handler has committed by way of Conn. What was
// done cannot be undone, and must not be done again. The transaction of the visit has ended before.
func (c *txClaim) bury(ctx context.Context) {
	if !c.hasCommitted(ctx, c.store.pool) {
		return
	}
	v, err := c.store.visit(ctx, beginReadCommitted, c, c.reach)
	if err != nil {
		return
	}
	if v.free() { // else another attempt was faster
		c.take(v)
		_ = c.commit(ctx, idempotency.Response{Omitted: true}, c.ttl)
	}
	_ = v.end(ctx)
}

// hasCommitted reports whether the handler has committed its transaction by way of Conn.
func (c *txClaim) hasCommitted(ctx context.Context, q querier) bool {
	if c.tx.id == "" {
		return false
	}
	var status string
	err := q.QueryRow(ctx, "select pg_xact_status($1::text::xid8)", c.tx.id).Scan(&status)
	return err == nil && status == "committed"
}

// prepare returns an error if there is no transaction that may be committed with a response.
func (c *txClaim) prepare(ctx context.Context, resp idempotency.Response) error {
	switch {
	case c.refuses(resp):
		return hasten(ctx, c.visit.conn.Conn(), func() error { return c.startOver(ctx) })
	case c.tx.undone.Load() || c.visit.conn.Conn().PgConn().TxStatus() != 'T':
		return sqlstore.RolledBack(errEnded)
	}
	return nil
}

// errEnded says that the transaction cannot be committed any more.
var errEnded = errors.New("pgxstore: the handler has ended its transaction, or ignored an error in it")

// commit takes one round trip. The server skips the commit if a statement before it fails.
func (c *txClaim) commit(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	var batch pgx.Batch
	if c.visit.found {
		batch.Queue(c.sql.replace, c.digest[:], c.visit.row.token)
	}
	sql, args := c.sql.recordFirst, responseArgs(resp, c.digest[:], c.names[0], c.names[1], c.names[2], c.token, c.visit.began,
		c.fingerprint[:], ttl.Microseconds())
	if c.attempt > 1 || c.created != c.visit.began { // the operation is older than the transaction
		sql, args = c.sql.recordNext, append(args, c.attempt, c.created)
	}
	batch.Queue(sql, args...)
	batch.Queue("commit")
	return c.visit.conn.SendBatch(ctx, &batch).Close()
}

// resolve finds out what became of a commit that was not answered. That its record is not there means nothing as long
// as its transaction may still go on; when its lock can be had, it has ended.
func (c *txClaim) resolve(ctx context.Context, cause error) error {
	for ctx.Err() == nil {
		v, err := c.store.visit(ctx, beginReadCommitted, c, expired)
		if err != nil {
			pause(ctx, 20*time.Millisecond)
			continue
		}
		_ = v.end(ctx)
		switch {
		case v.found && v.row.token == c.token:
			if c.store.confirm(ctx, c.sql.confirm, c.digest, c.token, true) == nil {
				return nil
			}
		case v.found && !v.expired && (!c.visit.found || v.row.token != c.visit.row.token):
			return fmt.Errorf("%w: %w", idempotency.ErrClaimLost, cause)
		case v.locked:
			return sqlstore.RolledBack(cause)
		}
		pause(ctx, 20*time.Millisecond)
	}
	return sqlstore.RolledBack(fmt.Errorf("in doubt: %w", cause))
}

// isFinal reports whether the server would refuse the same transaction again: because of the data, a constraint, the code of
// a trigger, or a privilege. A record without its creation says that the handler has ended the transaction, see record.sql.
func (t *Table) isFinal(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || len(e.Code) != 5 || e.Code == "23502" && t.owns(e.TableName) {
		return false
	}
	return e.Code == "42501" || slices.Contains([]string{"22", "23", "P0"}, e.Code[:2])
}

// owns reports whether a table of that name holds the records, or a day of them.
func (t *Table) owns(name string) bool {
	day, ok := strings.CutPrefix(name, t.opts.table())
	return ok && (day == "" || t.opts.divided() && strings.HasPrefix(day, "_"))
}

// isRefused reports whether the server has refused a statement and lives on, so that nothing of the transaction is
// left. Any other error, also that of a server as it ends the session, may come after the commit.
func isRefused(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.SeverityUnlocalized == "ERROR"
}

// isCollision reports whether the record of another session was there first.
func (t *Table) isCollision(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.Code == "23505" && t.owns(e.TableName)
}
