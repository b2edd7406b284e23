package sqlitestore

import (
	"context"
	"errors"
	"fmt"

	"github.com/idempotency-go/idempotency"
)

// loan is the turn of a handler: its transaction has the connection until the loan ends.
type loan struct{ ended chan func() }

// borrow waits for a turn.
func (w *writer) borrow(ctx context.Context) (*loan, error) {
	before := w.served.Load()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	l := &loan{make(chan func(), 1)}
	select {
	case w.loans <- l:
		return l, nil
	case <-ctx.Done():
		return nil, w.late(ctx, before)
	case <-w.closed:
		return nil, ErrClosed
	}
}

// end ends the turn, when the writer has done what is left to do, if anything is. It does not wait for that.
func (l *loan) end(last func()) { l.ended <- last }

// lend waits for the end of a loan.
func (w *writer) lend(l *loan) {
	w.lent.Store(true)
	defer w.served.Add(1)
	defer w.lent.Store(false)
	if last := <-l.ended; last != nil {
		last()
	}
}

// start begins a transaction for a handler, when no other process has one, unless confirm returns an error.
func (w *writer) start(ctx context.Context, confirm func(tx *transaction) error) error {
	err := w.seize(func() bool { return ctx.Err() == nil })
	if isBusy(err) && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", idempotency.ErrStoreBusy, ctx.Err())
	}
	if err != nil {
		return err
	}
	if err := confirm(&w.transaction); err != nil {
		_, _ = w.sql.rollback.ExecContext(untouched) // fails if SQLite has done it already
		return err
	}
	w.guard.lend()
	return nil
}

// conclude commits what the handler did, together with its record, or rolls back.
func (w *writer) conclude(record recording) error {
	w.guard.lent.Store(false)
	err := w.tryConclude(record, false)
	if isFull(err) && !w.guard.ended.Load() {
		err = w.tryConclude(record, true)
	}
	w.settle(err == nil)
	return err
}

func (w *writer) tryConclude(record recording, omitted bool) error {
	if w.guard.ended.Load() {
		return errEnded
	}
	if err := w.prepare(1); err != nil {
		return err
	}
	if err := record(&w.transaction, omitted); err != nil {
		return err
	}
	if _, err := w.sql.commit.ExecContext(untouched); err != nil {
		return err
	}
	return w.files.check()
}

// errEnded says that there is no transaction to be committed.
var errEnded = errors.New("the transaction has ended, as after an error for which SQLite rolls back")

// settle rolls back a transaction of a handler that was not committed. It gives up a connection that cannot do that, or
// that has kept something.
func (w *writer) settle(committed bool) {
	w.guard.lent.Store(false)
	isBroken := false
	if !committed {
		ended := w.guard.ended.Load()
		// If SQLite has rolled back, a savepoint that was prepared before may have begun another transaction since.
		_, err := w.sql.rollback.ExecContext(untouched)
		isBroken = err != nil && !ended
	}
	if isBroken || w.guard.marked.Load() {
		conn := w.conn
		w.conn = nil
		_ = conn.Close()
	}
}

// connect opens the connection, with a guard if it is to be lent.
func (w *writer) connect() error {
	conn, err := connect(w.db, w.sql.texts())
	if err != nil {
		return err
	}
	if w.lends {
		w.guard = new(guard)
		if err := w.guard.watch(conn.Conn); err != nil {
			return errors.Join(err, conn.Close())
		}
	}
	w.conn = conn
	return nil
}

// reconnect opens a connection if the last one was given up. It opens no other file than before.
func (w *writer) reconnect() error {
	if w.conn != nil {
		return nil
	}
	if err := w.files.check(); err != nil {
		return err
	}
	return w.connect()
}

// sever gives up a connection that somebody still uses. SQLite rolls back when it is closed, and nobody else writes
// before.
func (w *writer) sever() {
	conn := w.conn
	w.conn = nil
	go conn.Close() // waits for statements that run, and for rows that are open
}

func (w *writer) disconnect() error {
	if w.conn == nil {
		return nil
	}
	return w.conn.Close()
}
