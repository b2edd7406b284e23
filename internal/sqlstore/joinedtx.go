package sqlstore

import "context"

// join runs the step between statements in a transaction of the handler. If it returns an error, the handler rolls back.
func (r *txRun) join(ctx context.Context, tx StepStatements) ([]byte, error) {
	bounded, cancel := context.WithTimeout(ctx, r.step.Timeout)
	defer cancel()
	if err := r.enter(bounded, tx); err != nil {
		return nil, r.store.Failure(beginStep, err)
	}
	defer r.wake()
	isKept := false
	defer func() { // also when the step panics
		if !isKept {
			r.step.Escaped = r.hasEscaped(ctx, tx)
		}
	}()
	data, err := r.step.Run()
	if err != nil {
		r.cause = err
		return nil, err
	}
	settled, cancel := context.WithTimeout(ctx, r.step.Timeout)
	defer cancel()
	err = r.keep(settled, tx, data)
	isKept = err == nil
	switch {
	case hasEnded(ctx, err):
		return nil, ErrTxEnded
	case err != nil:
		return nil, err
	case r.entries == nil:
		return nil, r.kept(ErrStepChanged)
	}
	r.checkpoints.joinRows()
	return data, nil
}
