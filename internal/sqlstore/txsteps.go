package sqlstore

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/step"
)

// TxLeases is a [Leases] that runs steps in transactions.
//
// A transaction locks the record of the claim before the step writes anything. So no other attempt can claim the key while the
// transaction is open, whatever its isolation level is. Renewals rest while the step runs, because they would wait for the lock,
// and because a renewal between the snapshot of the transaction and its lock would make the transaction fail.
type TxLeases interface {
	Leases

	// BeginStep begins a transaction on a connection of its own, and calls enter with it. If another transaction is in the way,
	// or the connection breaks, BeginStep begins again, until ctx ends. If BeginStep returns an error, it has ended the transaction.
	BeginStep(ctx context.Context, enter func(ctx context.Context, tx StepTx) error) (StepTx, error)

	// JoinStep returns the statements of the store in a transaction that the handler has begun.
	JoinStep(tx Querier) StepStatements

	// ReadSettled returns the record of a key as soon as no transaction has it locked. It waits until ctx ends.
	ReadSettled(ctx context.Context, digest []byte) (Settled, error)
}

// Settled is what ReadSettled of [TxLeases] returns of a record. It is the zero value if there is no record.
type Settled struct {
	Token   []byte
	Lease   int64
	Entries []byte // checkpoints
}

// Querier is a transaction of package database/sql, or of a library on top of it: a *sql.Tx or *sqlx.Tx, the Tx of ent, or the
// Statement.ConnPool of a transaction of GORM.
type Querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// StepStatements are the statements of the store in the transaction of a step.
type StepStatements interface {
	// Enter renews the lease, which locks the record, and marks the transaction, so that Leave notices if another transaction is
	// open by then. Enter returns when the new lease lapses, or 0 if the claim does not hold the record.
	Enter(ctx context.Context, digest, token []byte, lease time.Duration) (lapses int64, err error)

	// Leave returns an error if the transaction is not the one that Enter has marked. The error wraps [step.ErrMisuse] if the step
	// has ended the marked transaction, but not if the server has rolled it back because of cause, the error of the step.
	Leave(ctx context.Context, cause error) error

	// Keep stores checkpoints as Checkpoint of [Steps] does, and renews the lease.
	Keep(ctx context.Context, digest, token, entries []byte, before int, lease time.Duration) (kept bool, err error)

	// Checkpoints returns the checkpoints of the record, as the transaction sees them, or sql.ErrNoRows.
	Checkpoints(ctx context.Context, digest []byte) (entries []byte, err error)

	// HasRoom is that of [Steps].
	HasRoom(n int) bool
}

// StepTx is a transaction that the store begins for a step.
type StepTx interface {
	StepStatements

	// Open returns the transaction as the handler has it.
	Open(ctx context.Context) (*sql.Tx, error)

	// CloseHandler takes the transaction from the handler. The error wraps [step.ErrMisuse] if the handler has ended it.
	CloseHandler(ctx context.Context) error

	// Commit commits, and gives the connection back. If isRefused is true, the transaction can still be rolled back. Any other
	// error leaves it open whether the transaction is committed.
	Commit(ctx context.Context) (isRefused bool, err error)

	// Rollback rolls back, and gives the connection back.
	Rollback(ctx context.Context)
}

// Errors of steps in transactions.
var (
	// ErrTxEnded says that a step has ended its transaction by itself.
	ErrTxEnded = fmt.Errorf("%w: it has ended its transaction", step.ErrMisuse)

	// ErrStepCommits is what Commit of the transaction of a step returns when it has rolled back.
	ErrStepCommits = fmt.Errorf("%w: rolled back, because only DoTx commits, when the function has returned", step.ErrMisuse)

	// ErrStepChanged says that a checkpoint could not be stored although the claim holds its record.
	ErrStepChanged = errors.New("the record was changed at the same time")
)

const beginStep = "begin the transaction of a step"

var _ idempotency.TxCheckpointer = (*lease)(nil)

// CheckpointTx implements [idempotency.TxCheckpointer].
func (l *lease) CheckpointTx(ctx context.Context, s *idempotency.TxStep) ([]byte, error) {
	run := &txRun{lease: l, step: s}
	var ok bool
	if run.store, ok = l.store.(TxLeases); ok {
		if variable, isSQL := s.Var.(**sql.Tx); isSQL {
			return run.begin(ctx, variable)
		}
		_, isPool := s.Tx.(*sql.DB) // each statement of a pool commits by itself
		if tx, isSQL := s.Tx.(Querier); isSQL && !isPool {
			return run.join(ctx, run.store.JoinStep(tx))
		}
	}
	tx := s.Tx
	if tx == nil {
		tx = s.Var
	}
	return nil, l.store.Failure(beginStep, fmt.Errorf("a %T is no transaction of this store: %w", tx, errors.ErrUnsupported))
}

// txRun is a step in a transaction.
type txRun struct {
	*lease
	store    TxLeases
	step     *idempotency.TxStep
	lapses   int64  // end of the lease that Enter has written; no other statement writes this value
	cause    error  // of the step, if it has failed
	hasLeft  bool   // Leave was called
	leaveErr error  // of Leave
	entries  []byte // checkpoints in the transaction, with the result of this run; nil: the result is not stored
	stored   []byte // result of the step that was stored before
}

// settling returns the context in which a transaction ends. It goes on when ctx ends, until Timeout of the step.
func (r *txRun) settling(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), r.step.Timeout)
}

// enter locks the record in the transaction. From then on renewals rest.
func (r *txRun) enter(ctx context.Context, tx StepStatements) error {
	r.renewals.Lock() // no renewal is under way
	defer r.renewals.Unlock()
	lapses, err := tx.Enter(ctx, r.digest, r.token, r.record.LeaseLeft)
	switch {
	case err != nil:
		return err
	case lapses == 0:
		return idempotency.ErrClaimLost
	}
	r.lapses, r.rests = lapses, true
	return nil
}

// wake lets renewals go on.
func (r *txRun) wake() {
	r.renewals.Lock()
	defer r.renewals.Unlock()
	r.rests = false
}

// leave calls Leave once, because a second call would not find the mark of the first one.
func (r *txRun) leave(ctx context.Context, tx StepStatements) error {
	if !r.hasLeft {
		r.hasLeft, r.leaveErr = true, tx.Leave(ctx, r.cause)
	}
	return r.leaveErr
}

// hasEnded reports whether an error of Leave says that the step has ended its transaction by itself. Package database/sql, which
// rolls back when a context ends, is not the step.
func hasEnded(ctx context.Context, err error) bool {
	return errors.Is(err, step.ErrMisuse) || errors.Is(err, sql.ErrTxDone) && ctx.Err() == nil
}

// keep stores the result in the transaction, unless a result was stored before. The checkpoints that the claim knows may differ
// from the stored ones, because the claim does not hear whether the handler has committed a transaction of its own.
func (r *txRun) keep(ctx context.Context, tx StepStatements, data []byte) error {
	if err := r.leave(ctx, tx); err != nil {
		return r.kept(err)
	}
	if !tx.HasRoom(len(r.step.Name) + len(data)) {
		return r.kept(idempotency.ErrStoreFull)
	}
	if kept, err := r.add(ctx, tx, r.checkpoints.known(), data); kept || err != nil {
		return r.kept(err)
	}
	entries, err := tx.Checkpoints(ctx, r.digest)
	if errors.Is(err, sql.ErrNoRows) {
		err = idempotency.ErrClaimLost
	}
	if err != nil {
		return r.kept(err)
	}
	found, err := decode(entries)
	if err != nil {
		return r.kept(err)
	}
	if stored, ok := found[r.step.Name]; ok {
		r.stored = stored
		return nil
	}
	kept, err := r.add(ctx, tx, entries, data)
	if !kept && err == nil {
		err = ErrStepChanged
	}
	return r.kept(err)
}

// add appends the result to the known checkpoints, if exactly these are stored and the step has no result among them.
func (r *txRun) add(ctx context.Context, tx StepStatements, known, data []byte) (kept bool, err error) {
	if has(known, r.step.Name) {
		return false, nil
	}
	entries := encode(known, r.step.Name, data)
	kept, err = tx.Keep(ctx, r.digest, r.token, entries, len(known), r.record.LeaseLeft)
	if kept {
		r.entries = entries
	}
	return kept, err
}

func (r *txRun) kept(err error) error { return r.store.Failure("store the result of a step", err) }

// hasEscaped reports whether the step has ended its transaction by itself, and may have committed. If it has committed, the lease
// is that of the transaction. If this is unknown, because the store does not answer or another attempt has claimed the key since,
// hasEscaped reports true for a step that has certainly ended its transaction.
func (r *txRun) hasEscaped(ctx context.Context, tx StepStatements) bool {
	settling, cancel := r.settling(ctx)
	defer cancel()
	left := r.leave(settling, tx)
	if left == nil {
		return false
	}
	settled, err := r.store.ReadSettled(settling, r.digest)
	if err != nil || !bytes.Equal(settled.Token, r.token) {
		return hasEnded(ctx, left)
	}
	return settled.Lease == r.lapses
}
