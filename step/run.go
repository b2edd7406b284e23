package step

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/checkpoint"
	"github.com/idempotency-go/idempotency/internal/polling"
)

// outerStepsKey is the context key under which a running step finds the Steps of its attempt. A step that begins with
// such a context is nested in the running step.
type outerStepsKey struct{}

var (
	errInterrupted = errors.New("idempotency: step panicked or exited")
	errNotKept     = errors.New("the result could not be kept")
)

// execution is the run of a step in an attempt.
type execution struct {
	steps     *checkpoint.Steps // of the attempt; nil outside of an operation
	name      string
	kind      checkpoint.Kind     // Plain for Do, Marked for AtMostOnce, Alone for a step in a transaction
	txStep    *idempotency.TxStep // nil for a step without a transaction
	work      workFunc            // calls fn
	askResult workFunc            // calls ask of AtMostOnce; nil if ask is nil
	wasFound  bool                // the store has the result of an earlier run
	hasRun    bool                // the work has run to its end, so it must not run again

	decodeResult func(data []byte) error // decodes data into the variable that the caller gets
}

// runStep runs the step, or decodes the result of an earlier run. Before the tracer hears of the step, runStep refuses a
// step that must not begin.
func (x *execution) runStep(ctx context.Context) (err error) {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	x.steps = checkpoint.From(ctx)
	if err := x.checkMayBegin(ctx); err != nil {
		return err
	}
	x.name = strings.Clone(x.name) // stores keep the name, and fiber uses the memory of its strings again
	ctx, endTrace := startTrace(ctx, x.name)
	err = errInterrupted // for the tracer, if the work panics or exits its goroutine
	defer func() { endTrace(x.wasFound, err) }()
	err = x.beginStep(ctx)
	return err
}

// beginStep registers the step with the attempt, and runs the step unless an earlier attempt has stored a result.
func (x *execution) beginStep(ctx context.Context) error {
	data, found, err := x.steps.BeginStep(ctx, x.name, x.kind)
	if err != nil {
		return x.wrapBeginError(err)
	}
	x.wasFound = found
	defer func() { x.steps.EndStep(x.name, x.chooseEnding()) }()
	switch {
	case found:
		return x.takeResult(data, errNotKept)
	case x.txStep != nil:
		return x.executeTx(ctx)
	}
	return x.executeWork(ctx)
}

// chooseEnding decides whether the attempt may begin the step again. It may after a failure. With DoInTx, it also may after
// a success, because the caller may repeat the transaction, unless the step has ended the transaction by itself.
func (x *execution) chooseEnding() checkpoint.Ending {
	isCallersTx := x.txStep != nil && x.txStep.Var == nil
	mayRepeat := isCallersTx && !x.txStep.Escaped
	return checkpoint.Ending(x.hasRun && !mayRepeat)
}

// checkMayBegin returns the error of a step that must not begin, or nil.
func (x *execution) checkMayBegin(ctx context.Context) error {
	switch {
	case !isValidName(x.name):
		return x.misuseError("the name is invalid")
	case x.steps == nil && x.txStep == nil:
		return x.misuseError("the context belongs to no operation")
	case x.steps == nil:
		return x.wrapError(ErrNoClaim)
	case ctx.Value(outerStepsKey{}) == x.steps:
		return x.misuseError("the step is within another step")
	case x.steps.HasEnded():
		return x.misuseError(checkpoint.ErrEnded.Error())
	case !x.steps.HasClaim && x.kind != checkpoint.Plain:
		return x.wrapError(ErrNoClaim)
	case x.steps.Keeper == nil && x.steps.HasClaim:
		return x.wrapError(fmt.Errorf("the store keeps no results of steps: %w", errors.ErrUnsupported))
	}
	return nil
}

func isValidName(name string) bool {
	return name != "" && len(name) <= MaxName && !strings.Contains(name, checkpoint.Mark) &&
		!strings.ContainsFunc(name, func(c rune) bool { return c <= ' ' || c > '~' })
}

func (x *execution) misuseError(reason string) error {
	return fmt.Errorf("%w: %.*q: %s", ErrMisuse, MaxName, x.name, reason)
}

// wrapBeginError makes an ErrMisuse of the errors of Steps.BeginStep that a program can avoid. All other errors are those of
// the store.
func (x *execution) wrapBeginError(err error) error {
	switch err {
	case checkpoint.ErrEnded, checkpoint.ErrTwice, checkpoint.ErrMany, checkpoint.ErrAlone:
		return x.misuseError(err.Error())
	}
	return x.wrapError(err)
}

func (x *execution) wrapError(err error) error {
	return fmt.Errorf("idempotency: step %q: %w", x.name, err)
}

// executeWork runs a step that has no result yet, outside of a transaction.
func (x *execution) executeWork(ctx context.Context) error {
	if err := x.checkMayAct(ctx); err != nil {
		return err
	}
	work := x.work
	if x.kind == checkpoint.Marked {
		var err error
		if work, err = x.chooseWork(ctx); err != nil {
			return err
		}
	}
	data, unfit, err := work(context.WithValue(ctx, outerStepsKey{}, x.steps))
	switch {
	case err != nil:
		return err
	case x.steps.Keeper == nil:
		return x.takeResult(data, cmp.Or(unfit, errNotKept))
	}
	return x.storeResult(ctx, data, unfit)
}

// chooseWork chooses what a step of AtMostOnce runs: fn the first time, and ask after that. Without an ask, a step that may
// have begun ends with ErrUnknown.
func (x *execution) chooseWork(ctx context.Context) (workFunc, error) {
	mayHaveBegun, err := x.markBegun(ctx)
	switch {
	case err != nil:
		return nil, x.wrapError(err)
	case mayHaveBegun && x.askResult == nil:
		return nil, fmt.Errorf("%w: %q", ErrUnknown, x.name)
	}
	if err := x.checkMayAct(ctx); err != nil {
		return nil, err
	}
	if mayHaveBegun {
		return x.askResult, nil
	}
	return x.work, nil
}

// storeResult stores data as the result of the step, and takes the stored result. The stored result differs from data if
// another attempt was faster. If the result is unfit, storeResult stores an empty result, so that the step does not run
// again.
func (x *execution) storeResult(ctx context.Context, data []byte, unfit error) error {
	size := len(x.name) + len(data)
	if unfit == nil && !x.steps.ReserveBytes(size) {
		data, unfit = nil, fmt.Errorf("all results together have more than %d bytes", MaxTotal)
	}
	stored, err := x.storeCheckpoint(ctx, x.name, data)
	switch {
	case err != nil:
		if unfit == nil {
			x.steps.ReleaseBytes(size)
		}
		return x.wrapError(err)
	case errors.Is(context.Cause(ctx), idempotency.ErrClaimLost):
		return x.wrapError(idempotency.ErrClaimLost)
	}
	return x.takeResult(stored, cmp.Or(unfit, errNotKept))
}

// checkMayAct returns an error if the step must not have its effect any more. Each call to the store takes time, during
// which the attempt can end or lose its claim, so checkMayAct is called after each call to the store.
func (x *execution) checkMayAct(ctx context.Context) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case x.steps.HasEnded():
		return x.misuseError(checkpoint.ErrEnded.Error())
	case x.steps.Keeper == nil:
		return nil
	}
	if err := x.steps.Keeper.CheckLease(); err != nil {
		return x.wrapError(err)
	}
	return nil
}

// markBegun stores a mark that the step has begun, and reports whether the step may have begun before. The mark has a
// random value. If the store returns a different value, an earlier attempt has stored the mark. If the store has lost
// checkpoints of earlier attempts, the step may have begun as well. In that case the new mark tells later attempts.
func (x *execution) markBegun(ctx context.Context) (mayHaveBegun bool, err error) {
	mark := x.name + checkpoint.Mark
	if x.steps.HasCheckpoint(mark) {
		return true, nil
	}
	ownValue := make([]byte, 8)
	rand.Read(ownValue) // crypto/rand.Read always succeeds
	stored, err := x.storeCheckpoint(ctx, mark, ownValue)
	return !bytes.Equal(stored, ownValue) || x.steps.MayBeMissing(), err
}

// The first and the longest pause between two calls to a store that fails.
const (
	firstPause = 20 * time.Millisecond
	lastPause  = time.Second
)

// storeCheckpoint stores data under name, and returns the stored data. The store keeps the first data for a name, so the
// stored data can be that of an earlier call. If the store fails, storeCheckpoint tries again until the timeout of the
// attempt. The end of ctx does not stop storeCheckpoint, because the effect has happened by then.
func (x *execution) storeCheckpoint(ctx context.Context, name string, data []byte) (stored []byte, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), x.steps.Timeout)
	defer cancel()
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		stored, err = x.steps.StoreCheckpoint(ctx, name, data)
		if err == nil || isFinal(err) || !polling.Sleep(ctx, pause, nil) {
			return stored, err
		}
	}
}

// isFinal reports whether the store would return err again.
func isFinal(err error) bool {
	return errors.Is(err, idempotency.ErrClaimLost) || errors.Is(err, idempotency.ErrUserQuota) ||
		errors.Is(err, idempotency.ErrRecordInvalid) || errors.Is(err, idempotency.ErrKeyReused) ||
		errors.Is(err, errors.ErrUnsupported)
}

// takeResult decodes the stored result. An empty result means that the step has run, but that its own result could not be
// stored. In that case takeResult returns an error with reason.
func (x *execution) takeResult(stored []byte, reason error) error {
	if len(stored) > 0 {
		reason = x.decodeResult(stored)
	}
	x.hasRun = true
	if reason != nil {
		return fmt.Errorf("%w: step %q: %w", ErrResult, x.name, reason)
	}
	return nil
}
