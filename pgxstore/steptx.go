package pgxstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/idempotency-go/idempotency"
)

// stepTx is a transaction that the store begins for a step, and commits with the result of the step.
//
// At read committed the token of the claim is the fence: keep_step stores the result, and lets the commit behind it through, only
// if the record still has that token. At the other levels keep_step could not change a record that a renewal has changed since
// the snapshot. So the transaction locks the record first, and renewals rest: nobody else can claim the key meanwhile.
type stepTx struct {
	*claim
	step     *idempotency.TxStep
	bySQL    bool // the step gets a transaction of package database/sql
	conn     *pgx.Conn
	driver   *stdlib.Conn // the same connection, if bySQL
	release  func()       // gives the connection back; the pool closes it if its transaction has not ended
	handler  *handlerTx
	sqlTx    *sql.Tx
	xid      string      // ID of the transaction
	isClosed atomic.Bool // the transaction has ended, and the connection was given back
}

// run begins the transaction, hands it to the step, and ends it.
func (w *stepTx) run(ctx context.Context, hand func()) (stored []byte, err error) {
	if err := w.begin(ctx); err != nil {
		return nil, failure("begin the transaction of a step", err)
	}
	defer w.rollback(ctx) // unless it was committed; also when the step panics
	if w.bySQL {
		w.sqlTx = openSQL(ctx, w.driver, w.handler)
	}
	hand()
	data, err := w.step.Run()
	if err != nil {
		return nil, err
	}
	return w.commit(ctx, data)
}

// begin takes one round trip.
func (w *stepTx) begin(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, w.step.Timeout)
	defer cancel()
	err := w.store.repeat(ctx, new(bool), func() error { return w.beginOnce(ctx) })
	if isUnkept(err) {
		return idempotency.ErrClaimLost
	}
	return w.store.judge(err, false)
}

// acquire takes a connection from the pool.
func (w *stepTx) acquire(ctx context.Context) error {
	if !w.bySQL {
		conn, err := w.store.acquire(ctx)
		if err == nil {
			w.conn, w.release = conn.Conn(), conn.Release
		}
		return err
	}
	conn, err := stdlib.GetPoolConnector(w.store.pool).Connect(ctx)
	if err != nil {
		return w.store.refusal(ctx, err)
	}
	w.driver = conn.(*stdlib.Conn)
	w.conn, w.release = w.driver.Conn(), func() { _ = w.driver.Close() }
	return nil
}

func (w *stepTx) beginOnce(ctx context.Context) error {
	if err := w.acquire(ctx); err != nil {
		return err
	}
	err := w.enterTx(func() (isLocked bool, err error) {
		err = hasten(ctx, w.conn, func() error {
			isLocked, err = w.sendBegin(ctx)
			return err
		})
		return isLocked, err
	})
	if err != nil {
		if refusesWrites(err) { // the pool may find a server that takes them
			_ = w.conn.Close(ctx)
		}
		w.release()
	}
	return err
}

func (w *stepTx) sendBegin(ctx context.Context) (isLocked bool, err error) {
	var batch pgx.Batch
	batch.BeginTx(pgx.TxOptions{BeginQuery: w.store.opts.begin()})
	batch.Queue(w.sql["enter_step"], w.enterArgs()...).QueryRow(func(r pgx.Row) error {
		return r.Scan(&w.xid, &isLocked, nil, nil)
	})
	results := w.conn.SendBatch(ctx, &batch)
	w.handler = &handlerTx{tx: results.Tx(), isClosed: &w.isClosed}
	return isLocked, results.Close()
}

// commit stores the result and commits, in one round trip: the server skips the commit if the statement before it fails.
func (w *stepTx) commit(ctx context.Context, data []byte) (stored []byte, err error) {
	switch w.conn.PgConn().TxStatus() {
	case 'I':
		return nil, errEndedByStep
	case 'E':
		return nil, errFailedTx
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.step.Timeout)
	defer cancel()
	var batch pgx.Batch
	isKept := false
	batch.Queue(w.sql["keep_step"], w.keepArgs(w.step.Name, data, w.xid)...).QueryRow(func(r pgx.Row) error {
		err := r.Scan(nil)
		isKept = err == nil
		return err
	})
	batch.Queue("commit")
	err = hasten(ctx, w.conn, func() error { return w.conn.SendBatch(ctx, &batch).Close() })
	switch {
	case err == nil:
		w.giveBack()
		return data, nil
	case !isRefused(err):
		w.giveBack()
		return w.resolve(ctx, err)
	}
	w.rollback(ctx)
	switch {
	case !isKept && isOtherTx(err):
		return nil, errEndedByStep
	case !isKept && isUnkept(err):
		return w.storedBefore(ctx, w.step.Name)
	}
	return nil, failure("commit", err)
}

// resolve finds out what became of a commit whose reply was lost. The question waits for the lock of the transaction. If that has
// not reached the record yet, it never commits: when this attempt releases or completes the claim, or another one takes it over,
// keep_step finds no such claim.
func (w *stepTx) resolve(ctx context.Context, cause error) (stored []byte, err error) {
	var isOwn, isKept bool
	relied := true
	err = w.store.retry(ctx, &relied, pooled, func(conn *pgx.Conn) error {
		err := conn.QueryRow(ctx, w.sql["settle_step"], w.digest[:], w.token, w.step.Name).Scan(&isOwn, &isKept)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	switch {
	case err != nil:
		return nil, failure("commit, in doubt", fmt.Errorf("%w; %w", cause, err))
	case !isOwn:
		return nil, failure("commit", fmt.Errorf("%w: %w", idempotency.ErrClaimLost, cause))
	case isKept:
		return w.storedBefore(ctx, w.step.Name)
	}
	return nil, failure("commit", cause)
}

// rollback undoes the transaction, unless it is over. The server then tells whether the step has committed it by itself.
func (w *stepTx) rollback(ctx context.Context) {
	if w.isClosed.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.step.Timeout)
	defer cancel()
	endedByStep := w.conn.PgConn().TxStatus() == 'I'
	var status *string
	var batch pgx.Batch
	batch.Queue("rollback")
	batch.Queue(selectStatus, w.xid).QueryRow(func(r pgx.Row) error { return r.Scan(&status) })
	err := hasten(ctx, w.conn, func() error { return w.conn.SendBatch(ctx, &batch).Close() })
	if err == nil {
		w.step.Escaped = isCommitted(status)
	} else { // the server rolls back when the connection is closed
		w.step.Escaped = endedByStep
		_ = w.conn.PgConn().Conn().Close()
	}
	if w.giveBack() { // the lease may have lapsed while renewals rested
		_ = w.Extend(ctx, w.request.Lease)
	}
}

// giveBack ends the transaction for the goroutines that the step has left behind, and gives the connection back. It reports
// whether renewals have rested.
func (w *stepTx) giveBack() (rested bool) {
	w.isClosed.Store(true)
	if w.sqlTx != nil {
		_ = w.sqlTx.Rollback() // sends nothing, but closes the prepared statements
	}
	w.release()
	return w.leaveTx()
}
