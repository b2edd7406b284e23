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

// writer has the only writing connection of the store. SQLite has no group commit, so each transaction would wait for
// the disk alone. To share the wait, all steps that are waiting when a transaction begins share the transaction, and
// get their results after its commit. Between these batches, steps in transactions have the connection to themselves,
// in turn.
type writer struct {
	transaction
	writeDB      *sql.DB
	conn         *connection // nil: the previous connection was closed
	guard        *guard      // guard of conn
	watchedFiles *watchedFiles
	queue
	pace
	progress
	doubtfulTurn atomic.Pointer[turn] // the last turn whose caller has stopped waiting for the commit
}

// queue holds the work for the writer.
type queue struct {
	pendingWrites chan *pendingWrite
	stepTurns     chan *turn
	closeStarted  chan struct{} // closed when Close starts, and no new work may begin
	runEnded      chan struct{} // closed after the last batch or turn
}

// pace says how long a transaction waits for more steps.
type pace struct {
	lastBatchSize int           // steps of the previous transaction
	gatherTime    time.Duration // longest wait for as many steps: a tenth of the time of the previous commit
}

// progress is the state of the writer for waiting callers.
type progress struct {
	servedCount  atomic.Int64 // ended batches and turns
	isWaiting    atomic.Bool  // the writer is waiting for the transaction of a different process
	isStepActive atomic.Bool  // a step in a transaction has the connection
}

// maxBatchSize is the most steps of a transaction. The bound limits how long the first step waits for the last.
const maxBatchSize = 256

// pendingWrite is a step waiting for a transaction.
type pendingWrite struct {
	ctx        context.Context
	addsRecord bool // the step probably adds a record

	// runStep runs the statements of the step. An error is an error of the database. After a rollback the writer may
	// call runStep again. runStep leaves results in variables of the caller.
	runStep func(tx *transaction) error

	err  error
	done chan struct{} // closed after the commit or the failure of the step
}

// submitStep queues a step, and returns after the commit. If begun is false, the step has not run and will not run. If
// ctx ends during the step, the step may or may not take effect.
func (w *writer) submitStep(ctx context.Context, adds bool, run func(tx *transaction) error) (begun bool, err error) {
	before := w.servedCount.Load()
	if err := ctx.Err(); err != nil {
		return false, err
	}
	s := &pendingWrite{ctx: ctx, addsRecord: adds, runStep: run, done: make(chan struct{})}
	select {
	case w.pendingWrites <- s:
	case <-ctx.Done():
		return false, w.lateError(ctx, before)
	case <-w.closeStarted:
		return false, ErrClosed
	}
	select {
	case <-s.done:
		return !errors.Is(s.err, errNotBegun), s.err
	case <-ctx.Done():
		return true, w.lateError(ctx, before)
	}
}

// errNotBegun reports that a step has not run.
var errNotBegun = errors.New("the step was still waiting for its turn")

// lateError returns the error of a step whose context has ended. The error wraps ErrStoreBusy if the writer has served
// other steps since before, or if the transaction of a step or a different process has the lock.
func (w *writer) lateError(ctx context.Context, before int64) error {
	if w.servedCount.Load() != before || w.isWaiting.Load() || w.isStepActive.Load() {
		return fmt.Errorf("%w: %w", idempotency.ErrStoreBusy, ctx.Err())
	}
	return ctx.Err()
}

// runQueue commits batches, and gives turns to steps in transactions, until Close starts. If a batch and a turn are
// both waiting, runQueue chooses at random.
func (w *writer) runQueue() {
	defer close(w.runEnded)
	for {
		select {
		case s := <-w.pendingWrites:
			w.commitBatch([]*pendingWrite{s})
		case t := <-w.stepTurns:
			w.awaitTurnEnd(t)
		case <-w.closeStarted:
			return
		}
	}
}

// commitBatch runs a batch in a transaction, together with steps that arrive before its end. If the transaction fails,
// commitBatch runs each step in a separate transaction, so that a failing step does not harm the rest.
func (w *writer) commitBatch(batch []*pendingWrite) {
	batch, err := w.beginBatch(batch)
	if err == nil {
		batch, err = w.runBatch(batch, maxBatchSize)
	}
	if err == nil || len(batch) <= 1 || errors.Is(err, ErrReplaced) {
		w.answerSteps(batch, err)
		return
	}
	for _, s := range batch {
		alone, err := w.beginBatch([]*pendingWrite{s})
		if err == nil {
			alone, err = w.runBatch(alone, 1)
		}
		w.answerSteps(alone, err)
	}
}

// answerSteps gives err to the callers of the steps.
func (w *writer) answerSteps(batch []*pendingWrite, err error) {
	w.servedCount.Add(1)
	for _, s := range batch {
		s.err = err
		close(s.done)
	}
}

// gatherWaiting returns up to n waiting steps.
func (w *writer) gatherWaiting(n int) (waiting []*pendingWrite) {
	for len(waiting) < n {
		select {
		case s := <-w.pendingWrites:
			waiting = append(waiting, s)
		default:
			return waiting
		}
	}
	return waiting
}

// beginBatch begins a transaction for a batch. While waiting for the lock, beginBatch drops expired steps, and returns
// the rest. If all steps have expired, beginBatch begins no transaction.
func (w *writer) beginBatch(batch []*pendingWrite) ([]*pendingWrite, error) {
	err := w.beginTransaction(func() bool {
		batch = w.dropExpired(batch)
		return len(batch) > 0
	})
	return batch, err
}

// beginTransaction begins a transaction as soon as no different process has a transaction open. beginTransaction gives
// up when isWanted returns false.
func (w *writer) beginTransaction(isWanted func() bool) error {
	if err := w.reconnectWriter(); err != nil {
		return err
	}
	defer w.isWaiting.Store(false)
	for {
		_, err := w.statements.begin.ExecContext(statementContext)
		if !isBusy(err) {
			return err
		}
		w.isWaiting.Store(true)
		if !isWanted() {
			return err
		}
		pauseBriefly()
	}
}

// dropExpired answers the steps whose context has ended, and returns the rest.
func (w *writer) dropExpired(batch []*pendingWrite) (kept []*pendingWrite) {
	for _, s := range batch {
		if err := s.ctx.Err(); err != nil {
			w.answerSteps([]*pendingWrite{s}, fmt.Errorf("%w: %w: %w", idempotency.ErrStoreBusy, errNotBegun, err))
			continue
		}
		kept = append(kept, s)
	}
	return kept
}

// runBatch runs a batch in the open transaction, with steps that arrive meanwhile, up to most steps. runBatch commits,
// and returns the steps. After an error the transaction is rolled back, except after ErrReplaced, where the lost file
// has the commit.
func (w *writer) runBatch(batch []*pendingWrite, most int) ([]*pendingWrite, error) {
	batch, err := w.performSteps(batch, most)
	if err == nil {
		err = w.finishBatch(len(batch))
	}
	if err != nil {
		_, _ = w.statements.rollback.ExecContext(statementContext) // fails if SQLite has already rolled back
		return batch, err
	}
	return batch, w.watchedFiles.checkReplaced()
}

// performSteps runs the steps of a batch and arriving steps, and returns the steps performed. After an error, the list
// includes the failed steps.
func (w *writer) performSteps(batch []*pendingWrite, most int) (performed []*pendingWrite, err error) {
	for next := batch; len(next) > 0; next = w.waitForMore(most-len(performed), len(performed)) {
		next = w.dropExpired(next)
		performed = append(performed, next...)
		if err := w.makeRoom(countAdds(next)); err != nil {
			return performed, err
		}
		for _, s := range next {
			if err := s.runStep(&w.transaction); err != nil {
				return performed, err
			}
		}
	}
	return performed, nil
}

// countAdds returns how many steps probably add a record.
func countAdds(steps []*pendingWrite) (n int) {
	for _, s := range steps {
		if s.addsRecord {
			n++
		}
	}
	return n
}

// waitForMore returns up to n further steps for a transaction of have steps. After a slow commit, waitForMore briefly
// waits for the callers that the previous transaction has answered, because their next steps would otherwise wait for
// two commits.
func (w *writer) waitForMore(n, have int) []*pendingWrite {
	waiting := w.gatherWaiting(n)
	if len(waiting) > 0 || n <= 0 || have >= w.lastBatchSize || w.gatherTime < minWait {
		return waiting
	}
	began := time.Now()
	defer func() { w.gatherTime -= time.Since(began) }()
	select {
	case s := <-w.pendingWrites:
		return append(w.gatherWaiting(n-1), s)
	case <-time.After(w.gatherTime):
		return nil
	}
}

// minWait is the shortest useful wait, because timers are no more precise.
const minWait = 50 * time.Microsecond

// finishBatch commits the transaction, and sets the pace of the next transaction.
func (w *writer) finishBatch(steps int) error {
	began := time.Now()
	_, err := w.statements.commit.ExecContext(statementContext)
	w.gatherTime, w.lastBatchSize = min(time.Since(began)/10, time.Millisecond), steps
	return err
}

// turn is the time during which a step in a transaction has the writing connection.
type turn struct {
	endAction chan func()   // last action of the turn, called by the writer; nil: nothing to do
	done      chan struct{} // closed at the end of the turn
}

// takeTurn waits for a turn.
func (w *writer) takeTurn(ctx context.Context) (*turn, error) {
	before := w.servedCount.Load()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	t := &turn{make(chan func(), 1), make(chan struct{})}
	select {
	case w.stepTurns <- t:
		return t, nil
	case <-ctx.Done():
		return nil, w.lateError(ctx, before)
	case <-w.closeStarted:
		return nil, ErrClosed
	}
}

// endWith ends the turn after the writer has called last, if last is not nil. endWith returns without waiting for the
// writer.
func (t *turn) endWith(last func()) { t.endAction <- last }

// awaitTurnEnd waits for the end of a turn.
func (w *writer) awaitTurnEnd(t *turn) {
	w.isStepActive.Store(true)
	defer close(t.done)
	defer w.servedCount.Add(1)
	defer w.isStepActive.Store(false)
	if last := <-t.endAction; last != nil {
		last()
	}
}

// startStepTx begins the transaction of a step, as soon as no different process has a transaction open.
func (w *writer) startStepTx(ctx context.Context) error {
	err := w.beginTransaction(func() bool { return ctx.Err() == nil })
	if isBusy(err) && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", idempotency.ErrStoreBusy, ctx.Err())
	}
	if err != nil {
		return err
	}
	w.guard.hasEnded.Store(false)
	if err := w.makeRoom(0); err != nil {
		w.endStepTx(false)
		return err
	}
	return nil
}

// commitStepTx commits the transaction of a step, or rolls back if the commit fails. commitStepTx returns ErrReplaced
// if the commit went to a replaced file.
func (w *writer) commitStepTx() error {
	_, err := w.statements.commit.ExecContext(statementContext)
	w.endStepTx(err == nil)
	if err != nil {
		return err
	}
	return w.watchedFiles.checkReplaced()
}

// awaitDoubtfulCommit waits for the commit of doubtfulTurn, because the stored result is unknown before the commit
// ends.
func (w *writer) awaitDoubtfulCommit(ctx context.Context) error {
	doubtful := w.doubtfulTurn.Load()
	if doubtful == nil {
		return nil
	}
	select {
	case <-doubtful.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// endStepTx rolls back the transaction of a step unless isCommitted. endStepTx closes the connection if the rollback
// fails, or if the step has left traces on the connection.
func (w *writer) endStepTx(isCommitted bool) {
	w.guard.inStep.Store(false)
	isBroken := false
	if !isCommitted {
		hasEnded := w.guard.hasEnded.Load()
		// After a rollback by SQLite, a savepoint prepared earlier may have begun a new transaction.
		_, err := w.statements.rollback.ExecContext(statementContext)
		isBroken = err != nil && !hasEnded
	}
	if isBroken || w.guard.hasTraces.Load() {
		conn := w.conn
		w.conn = nil
		_ = conn.Close()
	}
}

// connectWriter opens the writing connection with a guard.
func (w *writer) connectWriter() error {
	conn, err := openConnection(w.writeDB, w.statements.statementTargets())
	if err != nil {
		return err
	}
	w.guard = new(guard)
	if err := w.guard.registerHooks(conn.Conn); err != nil {
		return errors.Join(err, conn.Close())
	}
	w.conn = conn
	return nil
}

// reconnectWriter opens a new connection if the previous connection was closed. reconnectWriter fails if the file was
// replaced.
func (w *writer) reconnectWriter() error {
	if w.conn != nil {
		return nil
	}
	if err := w.watchedFiles.checkReplaced(); err != nil {
		return err
	}
	return w.connectWriter()
}

// disconnectWriter closes the writing connection.
func (w *writer) disconnectWriter() error {
	if w.conn == nil {
		return nil
	}
	return w.conn.Close()
}
