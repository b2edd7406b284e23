package step

import (
	"context"
	"errors"
	"fmt"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/checkpoint"
)

// DoTx is [Do] for rows in the database of the store: fn writes them in a transaction in which DoTx also stores the result of
// fn. So the rows exist if and only if the result does, and the step takes effect exactly once.
//
//	payment, err := step.DoTx(ctx, "book", func(tx pgx.Tx) (Payment, error) { return insertPayment(ctx, tx, receipt) })
//
// Tx is a type of transaction that the store has. Each package of such a store has a DoTx in which the type is fixed, see
// pgxstore.DoTx for example.
//
// DoTx begins the transaction before it calls fn, and commits the transaction afterwards. If fn returns an error or panics, DoTx
// rolls back. A connection of the pool is in use only from the beginning of the transaction to its end. If the database refuses
// the commit, because of a deferred constraint for example, DoTx returns the error of the database, and a later call runs the
// step again. If another attempt has claimed the key, nothing is committed and the error is [idempotency.ErrClaimLost].
//
// While fn runs, no other step runs: DoTx returns [ErrMisuse] if another step runs already, and so does a step that begins
// meanwhile, within fn for example. An operation may have several transactions, one after the other.
//
// Only DoTx ends the transaction. If fn commits or rolls back, or ignores an error after which the database cannot commit (in
// PostgreSQL, any error), DoTx returns an error. If fn has committed rows by itself, with the statement COMMIT for example, the
// error is [ErrResult] and the step does not run again, because nobody could undo these rows.
//
// If the result is no JSON or is too large, the rows are rolled back and the error is [ErrMisuse].
//
// DoTx needs a claim. A request without a key has no claim, and the error is [ErrNoClaim]. To serve such a request, call fn in a
// transaction of your own:
//
//	payment, err := step.DoTx(ctx, "book", book)
//	if errors.Is(err, step.ErrNoClaim) {
//		err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) { payment, err = book(tx); return err })
//	}
func DoTx[Tx, T any](ctx context.Context, name string, fn func(tx Tx) (T, error)) (T, error) {
	var tx Tx
	return result[T](ctx, &execution{
		name: name, kind: checkpoint.Alone, tx: &idempotency.TxStep{Var: &tx},
		work: encoded(func(context.Context) (T, error) { return fn(tx) }),
	})
}

// DoInTx is [DoTx] in a transaction that the caller has begun, with any library, and that the caller commits. Tx is the
// transaction in a form that the store can use, see pgxstore.DoInTx for example. DoInTx calls fn, and stores the result of fn in
// the transaction.
//
// Commit soon after DoInTx, because the record of the operation is locked until then: no other step can be stored, and the lease
// cannot be renewed. Give the commit a deadline, because without one it waits for ever if its reply is lost. If DoInTx returns an
// error, roll back.
//
// A transaction that was rolled back, or whose commit failed, may be repeated in the same attempt. DoInTx then asks the store
// whether the result is there. If the failed commit has taken effect after all, DoInTx returns the result and does not call fn.
//
// At an isolation level above read committed, call DoInTx before any other statement of the transaction. DoInTx locks the record.
// If the snapshot of the transaction were older than that lock, a renewal of the lease could make the transaction fail.
func DoInTx[T any](ctx context.Context, tx any, name string, fn func() (T, error)) (T, error) {
	return result[T](ctx, &execution{
		name: name, kind: checkpoint.Alone, tx: &idempotency.TxStep{Tx: tx},
		work: encoded(func(context.Context) (T, error) { return fn() }),
	})
}

// txKeeper is the Keeper of an attempt at an operation.
type txKeeper interface {
	CheckpointTx(ctx context.Context, step *idempotency.TxStep) (stored []byte, err error)
}

// executeTx runs a step that has no result yet in a transaction. If the result cannot be stored, the rows are rolled back.
func (x *execution) executeTx(ctx context.Context) (err error) {
	run := &txRun{execution: x, ctx: ctx}
	x.tx.Name, x.tx.Timeout, x.tx.Run = x.name, x.steps.Timeout, run.do
	defer func() { err = run.end(ctx, err) }() // also when the work panics
	stored, err := x.steps.Keeper.(txKeeper).CheckpointTx(ctx, x.tx)
	switch {
	case run.err != nil:
		return run.err
	case err != nil && !run.hasBegun && ctx.Err() != nil:
		return x.failed(fmt.Errorf("%w: %w", context.Cause(ctx), err))
	case err != nil:
		return x.failed(err)
	}
	if x.tx.Var != nil {
		run.isCommitted = true
		x.steps.Know(x.name, stored)
	}
	return x.take(stored, errNotKept)
}

// txRun is the work of a step in a transaction.
type txRun struct {
	*execution
	ctx         context.Context
	err         error // of the work, or why its result cannot be stored
	size        int   // bytes that count for the result; 0: there is none
	hasBegun    bool
	isCommitted bool
}

// do does the work, and returns the result that the store keeps.
func (r *txRun) do() ([]byte, error) {
	r.hasBegun = true
	if r.err = r.mayAct(r.ctx); r.err != nil { // the store was asked, and has perhaps waited for a connection
		return nil, r.err
	}
	data, unfit, err := r.work(r.ctx)
	size := len(r.name) + len(data)
	switch {
	case err != nil:
		r.err = err
	case unfit != nil:
		r.err = r.misuse(unfit.Error())
	case errors.Is(context.Cause(r.ctx), idempotency.ErrClaimLost):
		r.err = r.failed(idempotency.ErrClaimLost)
	case !r.steps.Take(size):
		r.err = r.misuse(fmt.Sprintf("all results together have more than %d bytes", MaxTotal))
	default:
		r.size = size
		r.steps.Keeping()
	}
	return data, r.err
}

// end gives back the bytes of a result that may not be committed, and has the results read again. If the work has ended the
// transaction by itself, end stores that the step has no result, so that no attempt runs the step again.
func (r *txRun) end(ctx context.Context, err error) error {
	if r.size > 0 && !r.isCommitted { // the commit may have taken effect, or may still do so
		r.steps.GiveBack(r.size)
		r.steps.ReadAgain()
	}
	if !r.tx.Escaped {
		return err
	}
	r.ended = true
	escaped := fmt.Errorf("%w: step %q: it has ended its transaction by itself, so what it has written may be permanent",
		ErrResult, r.name)
	if _, failed := r.store(ctx, r.name, nil); failed != nil {
		escaped = fmt.Errorf("%w; and a later attempt may run it again: %w", escaped, failed)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", escaped, err)
	}
	return escaped
}
