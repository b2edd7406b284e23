package pgxstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

// stepTx is a transaction that the store begins for a step, and commits with the result of the step.
//
// At read committed the token of the claim is the fence: keep_step stores the result only if the record still has that token.
// Otherwise keep_step fails, and the server skips the commit after it. At the other levels keep_step could not change a record that a renewal has changed since
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
	place    string      // of the record in the table, for a serializable transaction; empty: the index finds it
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

// begin takes one round trip, or two if the transaction is serializable.
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
			if err = w.findPlace(ctx); err == nil {
				isLocked, err = w.sendBegin(ctx)
			}
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
	if isUnkept(err) && w.place != "" { // the record has moved since, or is gone
		return errOvertaken
	}
	return err
}

func (w *stepTx) sendBegin(ctx context.Context) (isLocked bool, err error) {
	var batch pgx.Batch
	batch.BeginTx(pgx.TxOptions{BeginQuery: w.store.opts.begin()})
	sql, args := w.atPlace("enter_step", w.enterArgs())
	batch.Queue(sql, args...).QueryRow(func(r pgx.Row) error {
		return r.Scan(&w.xid, &isLocked, nil, nil)
	})
	results := w.conn.SendBatch(ctx, &batch)
	w.handler = &handlerTx{tx: results.Tx(), isClosed: &w.isClosed}
	return isLocked, results.Close()
}

// findPlace finds the record for a serializable transaction, in a round trip of its own.
func (w *stepTx) findPlace(ctx context.Context) error {
	if w.store.opts.Isolation != pgx.Serializable {
		return nil
	}
	err := w.conn.QueryRow(ctx, w.sql["place_step"], w.digest[:], w.token).Scan(&w.place)
	if errors.Is(err, pgx.ErrNoRows) {
		return idempotency.ErrClaimLost
	}
	return err
}

// atPlace returns a statement of the transaction with its arguments.
func (w *stepTx) atPlace(name string, args []any) (sql string, _ []any) {
	if w.place == "" {
		return w.sql[name], args
	}
	return w.sql[name+"_at"], append(args, w.place)
}

// commit stores the result and commits, in one round trip: the server skips the commit if the statement before it fails.
func (w *stepTx) commit(ctx context.Context, data []byte) (stored []byte, err error) {
	switch w.conn.PgConn().TxStatus() {
	case 'I':
		return nil, sqlstore.ErrTxEnded
	case 'E':
		return nil, errFailedTx
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.step.Timeout)
	defer cancel()
	var batch pgx.Batch
	isKept := false
	sql, args := w.atPlace("keep_step", w.keepArgs(w.step.Name, data, w.xid))
	batch.Queue(sql, args...).QueryRow(func(r pgx.Row) error {
		err := r.Scan(nil)
		isKept = err == nil
		return err
	})
	batch.Queue("commit")
	err = hasten(ctx, w.conn, func() error { return w.conn.SendBatch(ctx, &batch).Close() })
	switch {
	case err == nil:
		w.rows.rely(w.step.Name)
		w.giveBack()
		return data, nil
	case !isRefused(err):
		w.giveBack()
		return w.resolve(ctx, err)
	}
	w.rollback(ctx)
	switch {
	case !isKept && isOtherTx(err):
		return nil, sqlstore.ErrTxEnded
	case !isKept && isUnkept(err):
		return w.storedBefore(ctx, w.step.Name)
	}
	return nil, failure("commit", err)
}

// resolve finds out what became of a commit whose reply was lost. It asks until the transaction has ended, because the request may
// still be on its way to the server.
func (w *stepTx) resolve(ctx context.Context, cause error) (stored []byte, err error) {
	var found settledStep
	for n := 0; ; n++ {
		if found, err = w.askSettled(ctx); err == nil && found.isFinal() {
			break
		}
		if err == nil && !sqlstore.Pause(ctx, sqlstore.Growing(n, time.Millisecond)) {
			err = ctx.Err()
		}
		if err != nil {
			return nil, failure("commit, in doubt", fmt.Errorf("%w; %w", cause, err))
		}
	}
	switch {
	case !found.isOwn:
		return nil, failure("commit", fmt.Errorf("%w: %w", idempotency.ErrClaimLost, cause))
	case found.isKept:
		return w.storedBefore(ctx, w.step.Name)
	}
	return nil, failure("commit", cause)
}

// settledStep is what the record of a claim says of a step whose commit was not answered.
type settledStep struct{ isOwn, isKept, hasEnded bool }

func (s settledStep) isFinal() bool { return !s.isOwn || s.isKept || s.hasEnded }

func (w *stepTx) askSettled(ctx context.Context) (found settledStep, err error) {
	relied := true
	err = w.store.retry(ctx, &relied, spare, func(conn *pgx.Conn) error {
		err := conn.QueryRow(ctx, w.sql["settle_step"], w.digest[:], w.token, w.step.Name, w.xid).
			Scan(&found.isOwn, &found.isKept, &found.hasEnded)
		if errors.Is(err, pgx.ErrNoRows) { // without a record, nothing can be stored
			found, err = settledStep{}, nil
		}
		return err
	})
	return found, err
}

// rollback undoes the transaction, unless it is over. The server then tells whether the step has committed it by itself.
func (w *stepTx) rollback(ctx context.Context) {
	if w.isClosed.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.step.Timeout)
	defer cancel()
	endedByStep := w.conn.PgConn().TxStatus() == 'I'
	status, err := w.sendRollback(ctx)
	if err == nil {
		w.step.Escaped = status != rolledBack
	} else { // the server rolls back when the connection is closed
		w.step.Escaped = endedByStep
		_ = w.conn.PgConn().Conn().Close()
	}
	if w.giveBack() { // the lease may have lapsed while renewals rested
		_ = w.Extend(ctx, w.request.Lease)
	}
}

// sendRollback rolls back, and returns what the server says of the transaction then. It uses the simple protocol, because a failed
// transaction refuses to prepare the second statement before the first one is executed.
func (w *stepTx) sendRollback(ctx context.Context) (status string, err error) {
	err = hasten(ctx, w.conn, func() error {
		results, err := w.conn.PgConn().Exec(ctx, "rollback; select pg_xact_status('"+w.xid+"')").ReadAll()
		if err == nil {
			status = string(results[1].Rows[0][0])
		}
		return err
	})
	return status, err
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
