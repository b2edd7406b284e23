package step

import (
	"context"
	"errors"
	"fmt"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/checkpoint"
)

// DoTx is [Do] for rows in the database of the store. DoTx calls fn with a transaction, in which fn writes its rows, and
// stores the result of fn in the same transaction. The rows exist if and only if the result exists, so the step takes
// effect exactly once.
//
//	payment, err := step.DoTx(ctx, "book", func(tx pgx.Tx) (Payment, error) { return insertPayment(ctx, tx, receipt) })
//
// Tx is a type of transaction that the store supports. The package of each such store has a DoTx in which the type is
// fixed, for example pgxstore.DoTx.
//
// DoTx begins the transaction before the call of fn, and commits the transaction afterwards. If fn returns an error or
// panics, DoTx rolls back. DoTx uses a connection of the pool only from the beginning of the transaction to its end. If
// the database refuses the commit, for example because of a deferred constraint, DoTx returns the error of the database,
// and a later call runs the step again. If another attempt has claimed the key, DoTx commits nothing and returns
// [idempotency.ErrClaimLost].
//
// No other step can run at the same time as fn. If another step runs already, DoTx returns [ErrMisuse]. A step that
// begins while fn runs, for example within fn, returns [ErrMisuse] as well. An operation may have several transactions,
// one after the other.
//
// Only DoTx may end the transaction:
//
//   - If fn commits or rolls back, DoTx returns an error.
//   - If fn ignores an error after which the database cannot commit (in PostgreSQL, any error), DoTx returns an error.
//   - If fn commits rows by itself, for example with the statement COMMIT, DoTx returns [ErrResult]. The
//     step does not run again, because the committed rows cannot be rolled back.
//
// If the result cannot be encoded as JSON or is too large, DoTx rolls the rows back and returns [ErrMisuse].
//
// DoTx needs a claim. For a request without a key, DoTx returns [ErrNoClaim]. To serve such a request, call fn in a
// transaction of your own:
//
//	payment, err := step.DoTx(ctx, "book", book)
//	if errors.Is(err, step.ErrNoClaim) {
//		err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) { payment, err = book(tx); return err })
//	}
func DoTx[Tx, T any](ctx context.Context, name string, fn func(tx Tx) (T, error)) (T, error) {
	var tx Tx
	return runForResult[T](ctx, &execution{
		name: name, kind: checkpoint.Alone, txStep: &idempotency.TxStep{Var: &tx},
		work: encodeResult(func(context.Context) (T, error) { return fn(tx) }),
	})
}

// DoInTx is [DoTx] in a transaction that the caller has begun, with any library, and that the caller commits. Pass the
// transaction as tx, in a form that the store supports (see pgxstore.DoInTx for example). DoInTx calls fn, and stores the
// result of fn in the transaction.
//
// Commit soon after DoInTx, because the record of the operation is locked until the commit: meanwhile the results of
// other steps cannot be stored, and the lease cannot be renewed. Give the commit a deadline, because a commit whose reply
// is lost waits forever without a deadline. If DoInTx returns an error, roll back.
//
// The caller may repeat a transaction that was rolled back, or whose commit failed, in the same attempt. DoInTx then asks
// the store for the result. If the failed commit has taken effect after all, DoInTx returns the result and does not call
// fn.
//
// At an isolation level above read committed, call DoInTx before any other statement of the transaction. DoInTx locks the
// record. If the snapshot of the transaction is older than the lock, a renewal of the lease can make the transaction
// fail.
func DoInTx[T any](ctx context.Context, tx any, name string, fn func() (T, error)) (T, error) {
	return runForResult[T](ctx, &execution{
		name: name, kind: checkpoint.Alone, txStep: &idempotency.TxStep{Tx: tx},
		work: encodeResult(func(context.Context) (T, error) { return fn() }),
	})
}

// txKeeper is implemented by the checkpoint.Keeper of an attempt.
type txKeeper interface {
	CheckpointTx(ctx context.Context, step *idempotency.TxStep) (stored []byte, err error)
}

// executeTx runs a step that has no result yet in a transaction. If the result cannot be stored, the store rolls the rows
// back.
func (x *execution) executeTx(ctx context.Context) (err error) {
	run := &txRun{execution: x, ctx: ctx}
	x.txStep.Name, x.txStep.Timeout, x.txStep.Run = x.name, x.steps.Timeout, run.runInTx
	defer func() { err = run.endRun(ctx, err) }() // also when the work panics
	stored, err := x.steps.Keeper.(txKeeper).CheckpointTx(ctx, x.txStep)
	switch {
	case run.workErr != nil:
		return run.workErr
	case err != nil && !run.hasBegun && ctx.Err() != nil:
		return x.wrapError(fmt.Errorf("%w: %w", context.Cause(ctx), err))
	case err != nil:
		return x.wrapError(err)
	}
	if x.txStep.Var != nil {
		run.isCommitted = true
		x.steps.NoteStored(x.name, stored)
	}
	return x.takeResult(stored, errNotKept)
}

// txRun is the run of a step in a transaction.
type txRun struct {
	*execution
	ctx          context.Context
	workErr      error // of the work, or the reason why the result must not be stored
	countedBytes int   // of the result, as counted by Steps.ReserveBytes; 0 without a result
	hasBegun     bool
	isCommitted  bool
}

// runInTx runs the work, and returns the result for the store. CheckpointTx of the store calls runInTx within the
// transaction.
func (r *txRun) runInTx() ([]byte, error) {
	r.hasBegun = true
	if r.workErr = r.checkMayAct(r.ctx); r.workErr != nil { // the store may have waited for a connection
		return nil, r.workErr
	}
	data, unfit, err := r.work(r.ctx)
	size := len(r.name) + len(data)
	switch {
	case err != nil:
		r.workErr = err
	case unfit != nil:
		r.workErr = r.misuseError(unfit.Error())
	case errors.Is(context.Cause(r.ctx), idempotency.ErrClaimLost):
		r.workErr = r.wrapError(idempotency.ErrClaimLost)
	case !r.steps.ReserveBytes(size):
		r.workErr = r.misuseError(fmt.Sprintf("all results together have more than %d bytes", MaxTotal))
	default:
		r.countedBytes = size
		r.steps.NoteStoring()
	}
	return data, r.workErr
}

// endRun returns the error of the step. If the outcome of the transaction is unknown, the result may be stored or missing.
// In that case endRun gives the counted bytes back, and makes the next step read all results from the store.
//
// If the work has ended the transaction by itself, endRun stores an empty result, so that no attempt runs the step again.
func (r *txRun) endRun(ctx context.Context, err error) error {
	if r.countedBytes > 0 && !r.isCommitted {
		r.steps.ReleaseBytes(r.countedBytes)
		r.steps.LoadAgain()
	}
	if !r.txStep.Escaped {
		return err
	}
	r.hasRun = true
	escaped := fmt.Errorf("%w: step %q: the step has ended its transaction by itself, so rows that it wrote may be permanent",
		ErrResult, r.name)
	if _, storeErr := r.storeCheckpoint(ctx, r.name, nil); storeErr != nil {
		escaped = fmt.Errorf("%w; and a later attempt may run the step again: %w", escaped, storeErr)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", escaped, err)
	}
	return escaped
}
