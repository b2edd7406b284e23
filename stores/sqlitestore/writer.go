package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/idempotency-go/idempotency"
)

// writer has the only connection of the store that writes. SQLite has no group commit: every transaction would wait for
// the disk by itself. So all steps that wait when a transaction begins share it, and are answered when it is committed.
// In between, steps in transactions have the connection to themselves, one at a time.
type writer struct {
	transaction
	db    *sql.DB
	conn  *connection // nil: the last one was given up
	guard *guard      // of conn
	files *watched
	queue
	pace
	progress
	doubtful atomic.Pointer[turn] // the last turn whose caller did not wait for the end of its commit
}

// queue is what the writer is given to do.
type queue struct {
	steps  chan *pendingWrite
	turns  chan *turn
	closed chan struct{} // closed when nothing more is to begin
	ended  chan struct{} // closed when the last batch or turn has ended
}

// pace says how long a transaction waits for more steps.
type pace struct {
	answered int           // steps of the last transaction
	patience time.Duration // that the next one has for as many, a tenth of what the commit took
}

// progress is what others are told of the writer.
type progress struct {
	served  atomic.Int64 // batches and turns that have ended
	waiting atomic.Bool  // for another process to end its transaction
	inStep  atomic.Bool  // a step in a transaction has its turn
}

// mostSteps of a transaction. The first of them waits for the last.
const mostSteps = 256

// pendingWrite is a part of a transaction.
type pendingWrite struct {
	ctx  context.Context
	adds bool // a record, probably

	// run does the step. An error is one of the database. It may run again after a transaction that was rolled back,
	// and leaves what it finds out in variables of the caller.
	run func(tx *transaction) error

	err  error
	over chan struct{} // closed when the step is committed, or has failed
}

// do runs a step, and returns when it is committed. If begun is false it has not run, and will not. If ctx ends in the
// meantime, the step may or may not take effect.
func (w *writer) do(ctx context.Context, adds bool, run func(tx *transaction) error) (begun bool, err error) {
	before := w.served.Load()
	if err := ctx.Err(); err != nil {
		return false, err
	}
	s := &pendingWrite{ctx: ctx, adds: adds, run: run, over: make(chan struct{})}
	select {
	case w.steps <- s:
	case <-ctx.Done():
		return false, w.late(ctx, before)
	case <-w.closed:
		return false, ErrClosed
	}
	select {
	case <-s.over:
		return !errors.Is(s.err, errNotBegun), s.err
	case <-ctx.Done():
		return true, w.late(ctx, before)
	}
}

// errNotBegun says that a step has not run.
var errNotBegun = errors.New("its turn had not come")

// late returns the error of a step whose context has ended: the store is busy if others were served since, or if
// the transaction of a step or another process has its turn.
func (w *writer) late(ctx context.Context, before int64) error {
	if w.served.Load() != before || w.waiting.Load() || w.inStep.Load() {
		return fmt.Errorf("%w: %w", idempotency.ErrStoreBusy, ctx.Err())
	}
	return ctx.Err()
}

// run commits batches, and lets steps in transactions take turns, until the store is closed. Where both wait, chance decides.
func (w *writer) run() {
	defer close(w.ended)
	for {
		select {
		case s := <-w.steps:
			w.commit([]*pendingWrite{s})
		case t := <-w.turns:
			w.await(t)
		case <-w.closed:
			return
		}
	}
}

// commit runs a batch in a transaction, together with the steps that come before it ends. If that fails, each step gets
// a transaction of its own, so that none fails for another.
func (w *writer) commit(batch []*pendingWrite) {
	batch, err := w.begin(batch)
	if err == nil {
		batch, err = w.try(batch, mostSteps)
	}
	if err == nil || len(batch) <= 1 || errors.Is(err, ErrReplaced) {
		w.answer(batch, err)
		return
	}
	for _, s := range batch {
		alone, err := w.begin([]*pendingWrite{s})
		if err == nil {
			alone, err = w.try(alone, 1)
		}
		w.answer(alone, err)
	}
}

func (w *writer) answer(batch []*pendingWrite, err error) {
	w.served.Add(1)
	for _, s := range batch {
		s.err = err
		close(s.over)
	}
}

// gather returns up to n steps that wait.
func (w *writer) gather(n int) (waiting []*pendingWrite) {
	for len(waiting) < n {
		select {
		case s := <-w.steps:
			waiting = append(waiting, s)
		default:
			return waiting
		}
	}
	return waiting
}

// begin begins a transaction for a batch. It answers the steps that nobody waits for by then, and returns the others.
// If none is left, it has begun nothing.
func (w *writer) begin(batch []*pendingWrite) ([]*pendingWrite, error) {
	err := w.seize(func() bool {
		batch = w.drop(batch)
		return len(batch) > 0
	})
	return batch, err
}

// seize begins a transaction when no other process has one, while somebody wants it.
func (w *writer) seize(isWanted func() bool) error {
	if err := w.reconnect(); err != nil {
		return err
	}
	defer w.waiting.Store(false)
	for {
		_, err := w.sql.begin.ExecContext(untouched)
		if !isBusy(err) {
			return err
		}
		w.waiting.Store(true)
		if !isWanted() {
			return err
		}
		pause()
	}
}

// drop answers the steps of a batch whose context has ended, and returns the others.
func (w *writer) drop(batch []*pendingWrite) (kept []*pendingWrite) {
	for _, s := range batch {
		if err := s.ctx.Err(); err != nil {
			w.answer([]*pendingWrite{s}, fmt.Errorf("%w: %w: %w", idempotency.ErrStoreBusy, errNotBegun, err))
			continue
		}
		kept = append(kept, s)
	}
	return kept
}

// try runs a batch in the transaction that has begun, and what comes meanwhile, up to most steps. It commits them, and
// returns them. With an error, nothing has happened that anybody sees, but for ErrReplaced.
func (w *writer) try(batch []*pendingWrite, most int) ([]*pendingWrite, error) {
	batch, err := w.perform(batch, most)
	if err == nil {
		err = w.finish(len(batch))
	}
	if err != nil {
		_, _ = w.sql.rollback.ExecContext(untouched) // fails if SQLite has done it already
		return batch, err
	}
	return batch, w.files.check()
}

// perform returns the steps that it has run, or was about to when it failed.
func (w *writer) perform(batch []*pendingWrite, most int) (performed []*pendingWrite, err error) {
	for next := batch; len(next) > 0; next = w.more(most-len(performed), len(performed)) {
		next = w.drop(next)
		performed = append(performed, next...)
		if err := w.prepare(adding(next)); err != nil {
			return performed, err
		}
		for _, s := range next {
			if err := s.run(&w.transaction); err != nil {
				return performed, err
			}
		}
	}
	return performed, nil
}

// adding returns how many steps add a record, probably.
func adding(steps []*pendingWrite) (n int) {
	for _, s := range steps {
		if s.adds {
			n++
		}
	}
	return n
}

// more returns up to n further steps for a transaction that has so many. Where commits take long, it waits a moment for
// the callers whom the last one has answered: what they do next would else wait for two commits.
func (w *writer) more(n, have int) []*pendingWrite {
	waiting := w.gather(n)
	if len(waiting) > 0 || n <= 0 || have >= w.answered || w.patience < worthwhile {
		return waiting
	}
	began := time.Now()
	defer func() { w.patience -= time.Since(began) }()
	select {
	case s := <-w.steps:
		return append(w.gather(n-1), s)
	case <-time.After(w.patience):
		return nil
	}
}

// worthwhile is how long a wait must be allowed to take: no timer is more precise.
const worthwhile = 50 * time.Microsecond

// finish commits the transaction.
func (w *writer) finish(steps int) error {
	began := time.Now()
	_, err := w.sql.commit.ExecContext(untouched)
	w.patience, w.answered = min(time.Since(began)/10, time.Millisecond), steps
	return err
}

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
