package sqlitestore

import (
	"context"
	"errors"
	"fmt"

	"github.com/idempotency-go/idempotency"
)

// turn is the time for which the transaction of a step has the connection that writes.
type turn struct {
	ended chan func() // what the writer has to do at the end, or nil
	over  chan struct{}
}

// takeTurn waits for a turn.
func (w *writer) takeTurn(ctx context.Context) (*turn, error) {
	before := w.served.Load()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	t := &turn{make(chan func(), 1), make(chan struct{})}
	select {
	case w.turns <- t:
		return t, nil
	case <-ctx.Done():
		return nil, w.late(ctx, before)
	case <-w.closed:
		return nil, ErrClosed
	}
}

// end ends the turn as soon as the writer has called last, if last is not nil. It does not wait for that.
func (t *turn) end(last func()) { t.ended <- last }

// await waits for the end of a turn.
func (w *writer) await(t *turn) {
	w.inStep.Store(true)
	defer close(t.over)
	defer w.served.Add(1)
	defer w.inStep.Store(false)
	if last := <-t.ended; last != nil {
		last()
	}
}

// startTx begins the transaction of a step, as soon as no other process has a transaction open.
func (w *writer) startTx(ctx context.Context) error {
	err := w.seize(func() bool { return ctx.Err() == nil })
	if isBusy(err) && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", idempotency.ErrStoreBusy, ctx.Err())
	}
	if err != nil {
		return err
	}
	w.guard.hasEnded.Store(false)
	if err := w.prepare(0); err != nil {
		w.endTx(false)
		return err
	}
	return nil
}

// commitTx commits the transaction of a step, or rolls it back. It returns ErrReplaced if the commit is lost with a replaced file.
func (w *writer) commitTx() error {
	_, err := w.sql.commit.ExecContext(untouched)
	w.endTx(err == nil)
	if err != nil {
		return err
	}
	return w.files.check()
}

// awaitCommit waits for the end of the last commit of a step whose caller has stopped waiting. Until then nobody knows whether the
// result is stored.
func (w *writer) awaitCommit(ctx context.Context) error {
	doubtful := w.doubtful.Load()
	if doubtful == nil {
		return nil
	}
	select {
	case <-doubtful.over:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// endTx rolls back the transaction of a step that was not committed. It closes the connection if the rollback fails, or if the step
// has left something on the connection.
func (w *writer) endTx(isCommitted bool) {
	w.guard.inStep.Store(false)
	isBroken := false
	if !isCommitted {
		hasEnded := w.guard.hasEnded.Load()
		// If SQLite has rolled back, a savepoint that was prepared before may have begun another transaction since.
		_, err := w.sql.rollback.ExecContext(untouched)
		isBroken = err != nil && !hasEnded
	}
	if isBroken || w.guard.isMarked.Load() {
		conn := w.conn
		w.conn = nil
		_ = conn.Close()
	}
}

// connect opens the connection, with its guard.
func (w *writer) connect() error {
	conn, err := connect(w.db, w.sql.texts())
	if err != nil {
		return err
	}
	w.guard = new(guard)
	if err := w.guard.watch(conn.Conn); err != nil {
		return errors.Join(err, conn.Close())
	}
	w.conn = conn
	return nil
}

// reconnect opens a connection if the last one was closed. It fails if the file was replaced.
func (w *writer) reconnect() error {
	if w.conn != nil {
		return nil
	}
	if err := w.files.check(); err != nil {
		return err
	}
	return w.connect()
}

func (w *writer) disconnect() error {
	if w.conn == nil {
		return nil
	}
	return w.conn.Close()
}
