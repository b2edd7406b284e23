package sqlstore

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"

	"github.com/idempotency-go/idempotency"
)

// begin runs the step in a transaction that the store begins and commits.
func (r *txRun) begin(ctx context.Context, variable **sql.Tx) (stored []byte, err error) {
	begun, cancel := context.WithTimeout(ctx, r.step.Timeout)
	defer cancel()
	tx, err := r.store.BeginStep(begun, func(ctx context.Context, tx StepTx) error { return r.enter(ctx, tx) })
	if err != nil {
		return nil, r.store.Failure(beginStep, err)
	}
	isOver := false
	defer func() { // also when the step panics
		if isOver {
			r.wake()
		} else {
			r.rollback(ctx, tx)
		}
	}()
	if *variable, err = tx.Open(ctx); err != nil {
		return nil, r.store.Failure(beginStep, err)
	}
	data, err := r.step.Run()
	if err != nil {
		r.cause = err
		return nil, err
	}
	settled, cancel := r.settling(ctx)
	defer cancel()
	if err := tx.CloseHandler(settled); err != nil {
		return nil, err
	}
	if err := r.keep(settled, tx, data); err != nil {
		return nil, err
	}
	if r.entries == nil {
		return r.stored, nil
	}
	isRefused, err := tx.Commit(settled)
	isOver = !isRefused
	switch {
	case err == nil:
		r.checkpoints.rely(r.entries)
		return data, nil
	case isRefused:
		return nil, r.store.Failure("commit", err)
	}
	return r.resolveCommit(ctx, err)
}

// resolveCommit finds out what became of a commit whose reply was lost.
func (r *txRun) resolveCommit(ctx context.Context, cause error) ([]byte, error) {
	ctx, cancel := r.settling(ctx)
	defer cancel()
	settled, err := r.store.ReadSettled(ctx, r.digest)
	switch {
	case err != nil:
		return nil, r.store.Failure("commit, in doubt", fmt.Errorf("%w; %w", cause, err))
	case !bytes.Equal(settled.Token, r.token):
		return nil, r.store.Failure("commit", fmt.Errorf("%w: %w", idempotency.ErrClaimLost, cause))
	}
	found, err := decode(settled.Entries)
	if err != nil {
		return nil, r.kept(err)
	}
	stored, ok := found[r.step.Name]
	if !ok {
		return nil, r.store.Failure("commit", cause)
	}
	r.checkpoints.rely(settled.Entries)
	return stored, nil
}

// rollback undoes the transaction, and finds out whether the step has committed by itself. The end of the lease tells that, and a
// renewal would change it, so renewals rest until then.
func (r *txRun) rollback(ctx context.Context, tx StepTx) {
	settled, cancel := r.settling(ctx)
	defer cancel()
	_ = tx.CloseHandler(settled)
	_ = r.leave(settled, tx)
	tx.Rollback(settled)
	r.step.Escaped = r.hasEscaped(ctx, tx)
	r.wake()
	renewed, cancel := r.settling(ctx)
	defer cancel()
	_ = r.Extend(renewed, r.record.LeaseLeft) // the lease may have lapsed while renewals rested
}
