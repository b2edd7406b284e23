package sqlitestore

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/idempotency-go/idempotency/step"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// DoTx is [step.DoTx] in a transaction of the store's file: the rows that fn writes and its result become permanent together.
// GORM, sqlx, ent, bun and the code that sqlc generates take tx.
//
// SQLite has one writer at a time: from the beginning of the transaction to its end, nobody else writes to the file. So fn must be
// quick: call other systems in steps before DoTx. Replays go on meanwhile. Other operations wait until they can begin, end or
// store a step, but no longer than StoreTimeout: then the error wraps [idempotency.ErrStoreBusy]. Leases of other operations
// lapse if fn takes as long as a lease. The error of DoTx itself wraps ErrStoreBusy if its turn does not come within StoreTimeout.
//
// BEGIN, COMMIT and ROLLBACK in SQL are refused; SAVEPOINT, ROLLBACK TO and RELEASE are not. ATTACH, DETACH and a PRAGMA that
// would outlast the transaction are refused, and so is a statement that would change the table of the records.
func DoTx[T any](ctx context.Context, name string, fn func(tx *sql.Tx) (T, error)) (T, error) {
	return step.DoTx(ctx, name, fn)
}

// Querier is a transaction of package database/sql, or of a library on top of it, for [DoInTx]: a *sql.Tx or *sqlx.Tx, the Tx of
// ent, or the Statement.ConnPool of a transaction of GORM. Of bun it is the Tx within a bun.Tx.
type Querier = sqlstore.Querier

// DoInTx is [step.DoInTx] in a transaction that the caller has begun, and that the caller commits. The transaction is on a
// connection of the caller to the file of the store. Until the transaction has ended, nobody else writes to the file.
func DoInTx[T any](ctx context.Context, tx Querier, name string, fn func() (T, error)) (T, error) {
	return step.DoInTx(ctx, tx, name, fn)
}

var _ sqlstore.TxLeases = leases{}

// stepTx implements [sqlstore.StepTx]: the turn of a step on the connection that writes.
type stepTx struct {
	*sqlstore.StepConn
	writer *writer
	turn   *turn // nil: the turn has ended
}

// BeginStep implements [sqlstore.TxLeases].
func (l leases) BeginStep(
	ctx context.Context, enter func(ctx context.Context, tx sqlstore.StepTx) error,
) (sqlstore.StepTx, error) {
	w := l.writer
	turn, err := w.takeTurn(ctx)
	if err != nil {
		return nil, err
	}
	tx := &stepTx{writer: w, turn: turn}
	if err := w.startTx(ctx); err != nil {
		tx.endTurn()
		return nil, err
	}
	tx.StepConn, err = sqlstore.NewStepConn(w.conn.Conn)
	if err == nil {
		err = enter(ctx, tx)
	}
	if err != nil {
		tx.Rollback(ctx)
		return nil, err
	}
	return tx, nil
}

// Enter implements [sqlstore.StepStatements].
func (t *stepTx) Enter(_ context.Context, digest, token []byte, lease time.Duration) (lapses int64, err error) {
	now := t.writer.micros()
	lapses = now + sqlstore.Micros(lease)
	held, err := change(t.writer.sql.extend, digest, token, now, lapses)
	if !held {
		return 0, err
	}
	return lapses, nil
}

// Open implements [sqlstore.StepTx].
func (t *stepTx) Open(ctx context.Context) (*sql.Tx, error) {
	t.writer.guard.inStep.Store(true)
	return t.StepConn.Open(ctx)
}

// CloseHandler implements [sqlstore.StepTx]. When the turn has ended, the guard is that of another step.
func (t *stepTx) CloseHandler(ctx context.Context) error {
	err := t.StepConn.CloseHandler(ctx)
	if t.turn != nil {
		t.writer.guard.inStep.Store(false)
	}
	return err
}

// Leave implements [sqlstore.StepStatements]. A step cannot end its transaction, but SQLite may have, because of an error.
func (t *stepTx) Leave(_ context.Context, cause error) error {
	if t.writer.guard.hasEnded.Load() {
		if cause != nil {
			return cause
		}
		return fmt.Errorf("%w: SQLite has rolled it back, because of an error that the step has ignored", step.ErrMisuse)
	}
	return nil
}

// Keep implements [sqlstore.StepStatements].
func (t *stepTx) Keep(_ context.Context, digest, token, entries []byte, before int, lease time.Duration) (kept bool, err error) {
	w, now := t.writer, t.writer.micros()
	kept, err = change(w.sql.checkpoint, digest, token, now, entries, before)
	if kept {
		_, err = change(w.sql.extend, digest, token, now, now+sqlstore.Micros(lease))
	}
	return kept, err
}

// Checkpoints implements [sqlstore.StepStatements].
func (t *stepTx) Checkpoints(_ context.Context, digest []byte) ([]byte, error) {
	seen, err := see(t.writer.sql.see, digest)
	if err != nil {
		return nil, err
	}
	return seen.Steps, nil
}

// HasRoom implements [sqlstore.StepStatements].
func (t *stepTx) HasRoom(n int) bool { return t.writer.HasRoom(n) }

// Commit implements [sqlstore.StepTx]. The writer commits, so the turn lasts until the disk has answered, even if ctx ends before.
// A commit that fails is rolled back at once.
func (t *stepTx) Commit(ctx context.Context) (isRefused bool, err error) {
	outcome, turn := make(chan error, 1), t.turn
	turn.end(func() { outcome <- t.writer.commitTx() })
	t.turn = nil
	select {
	case err := <-outcome:
		return err != nil, err // ErrReplaced, too: a commit in a file that was replaced is lost
	case <-ctx.Done():
		t.writer.doubtful.Store(turn)
		return false, ctx.Err()
	}
}

// Rollback implements [sqlstore.StepTx]. A statement that was interrupted leaves the connection as it was.
func (t *stepTx) Rollback(context.Context) {
	if t.turn == nil { // Commit was called
		return
	}
	t.writer.endTx(false)
	t.endTurn()
}

func (t *stepTx) endTurn() {
	t.turn.end(nil)
	t.turn = nil
}

// KeepsRows implements [sqlstore.RowLeases].
func (leases) KeepsRows() {}

// ReadSettled implements [sqlstore.TxLeases].
func (l leases) ReadSettled(ctx context.Context, digest []byte) (settled sqlstore.Settled, err error) {
	if err := l.writer.files.check(); err != nil {
		return settled, err
	}
	seen, entries, err := l.Look(ctx, digest)
	if err != nil {
		return settled, err
	}
	return sqlstore.Settled{Token: seen.Token, Lease: seen.Lease.Int64, Entries: entries}, nil
}

// Look implements [sqlstore.Reader]. It waits for a commit whose caller has stopped waiting, but for no other write.
func (l leases) Look(ctx context.Context, digest []byte) (row *sqlstore.Row, entries []byte, err error) {
	if err := l.writer.awaitCommit(ctx); err != nil {
		return nil, nil, err
	}
	seen, err := l.readers.see(ctx, digest)
	if err != nil {
		return nil, nil, err
	}
	seen.Now = l.writer.micros()
	return &seen.Row, seen.Steps, nil
}

// joinedTx implements [sqlstore.StepStatements] in a transaction of the handler, on a connection of its own.
type joinedTx struct {
	tx    sqlstore.Querier
	now   func() time.Time
	space space
}

// JoinStep implements [sqlstore.TxLeases].
func (l leases) JoinStep(tx sqlstore.Querier) sqlstore.StepStatements {
	return &joinedTx{tx: tx, now: l.writer.now, space: space{limit: l.opts.MaxBytes}}
}

// stepSavepoint marks the transaction of a step. The savepoint ends with its transaction. So if it is missing, the step has ended
// the transaction, even if another transaction has begun since.
const stepSavepoint = "idempotency_step"

// Enter implements [sqlstore.StepStatements].
func (t *joinedTx) Enter(ctx context.Context, digest, token []byte, lease time.Duration) (lapses int64, err error) {
	now := t.now().UnixMicro()
	lapses = now + sqlstore.Micros(lease)
	held, err := t.change(ctx, "extend", digest, token, now, lapses)
	if !held {
		return 0, err
	}
	if err := t.measure(ctx); err != nil {
		return 0, err
	}
	_, err = t.tx.ExecContext(ctx, "SAVEPOINT "+stepSavepoint)
	return lapses, err
}

// measure finds out how many bytes of the file are in use, if they are limited.
func (t *joinedTx) measure(ctx context.Context) error {
	if t.space.limit == 0 {
		return nil
	}
	return sqlstore.ScanRow(ctx, t.tx, statement("used"), nil, &t.space.used)
}

// Leave implements [sqlstore.StepStatements].
func (t *joinedTx) Leave(ctx context.Context, cause error) error {
	_, err := t.tx.ExecContext(ctx, "RELEASE "+stepSavepoint)
	if err != nil && strings.Contains(err.Error(), "no such savepoint") && !rollsBack(cause) {
		return sqlstore.ErrTxEnded
	}
	return err
}

// Keep implements [sqlstore.StepStatements].
func (t *joinedTx) Keep(
	ctx context.Context, digest, token, entries []byte, before int, lease time.Duration,
) (kept bool, err error) {
	now := t.now().UnixMicro()
	kept, err = t.change(ctx, "checkpoint", digest, token, now, entries, before)
	if kept {
		_, err = t.change(ctx, "extend", digest, token, now, now+sqlstore.Micros(lease))
	}
	return kept, err
}

// Checkpoints implements [sqlstore.StepStatements].
func (t *joinedTx) Checkpoints(ctx context.Context, digest []byte) (entries []byte, err error) {
	query := "SELECT steps FROM main.idempotency_records WHERE digest = ?1"
	err = sqlstore.ScanRow(ctx, t.tx, query, []any{digest}, &entries)
	return entries, err
}

// HasRoom implements [sqlstore.StepStatements].
func (t *joinedTx) HasRoom(n int) bool { return t.space.HasRoom(n) }

func (t *joinedTx) change(ctx context.Context, file string, args ...any) (bool, error) {
	result, err := t.tx.ExecContext(ctx, statement(file), args...)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n > 0, err
}
