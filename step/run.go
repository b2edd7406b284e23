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

// within is the key under which the context of a step has the Steps that it is one of.
type within struct{}

var (
	errInterrupted = errors.New("idempotency: step panicked or exited")
	errNotKept     = errors.New("it could not be kept")
)

// execution is one step of an attempt.
type execution struct {
	steps *checkpoint.Steps
	name  string
	kind  checkpoint.Kind     // Marked: AtMostOnce
	tx    *idempotency.TxStep // nil: the step is in no transaction
	work  work
	ask   work // nil: nobody can be asked
	found bool // an earlier attempt has run the step
	ended bool // it has run, and must not run again

	decode func(data []byte) error // takes the result
}

// run runs the step, or finds its result.
func (x *execution) run(ctx context.Context) (err error) {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	x.steps = checkpoint.From(ctx)
	if err := x.check(ctx); err != nil {
		return err
	}
	ctx, end := traced(ctx, x.name)
	err = errInterrupted
	defer func() { end(x.found, err) }()
	err = x.begin(ctx)
	return err
}

// begin begins the step, unless it is begun already.
func (x *execution) begin(ctx context.Context) error {
	data, found, err := x.steps.Begin(ctx, x.name, x.kind)
	if err != nil {
		return x.refused(err)
	}
	x.found = found
	defer func() { x.steps.Leave(x.name, x.ending()) }()
	switch {
	case found:
		return x.take(data, errNotKept)
	case x.tx != nil:
		return x.executeTx(ctx)
	}
	return x.execute(ctx)
}

// ending lets a step begin again that has failed, or whose transaction the caller may repeat.
func (x *execution) ending() checkpoint.Ending {
	mayRepeat := x.tx != nil && x.tx.Var == nil && !x.tx.Escaped
	return checkpoint.Ending(x.ended && !mayRepeat)
}

// check refuses a step that must not begin.
func (x *execution) check(ctx context.Context) error {
	switch {
	case !isName(x.name):
		return x.misuse("its name is invalid")
	case x.steps == nil && x.tx == nil:
		return x.misuse("the context belongs to no operation")
	case x.steps == nil:
		return x.failed(ErrNoClaim)
	case ctx.Value(within{}) == x.steps:
		return x.misuse("it is within another step")
	case x.steps.HasEnded():
		return x.misuse(checkpoint.ErrEnded.Error())
	case !x.steps.Claimed && x.kind != checkpoint.Plain:
		return x.failed(ErrNoClaim)
	case x.steps.Keeper == nil && x.steps.Claimed:
		return x.failed(fmt.Errorf("the store keeps no results of steps: %w", errors.ErrUnsupported))
	}
	return nil
}

func isName(name string) bool {
	return name != "" && len(name) <= MaxName && !strings.Contains(name, checkpoint.Mark) &&
		!strings.ContainsFunc(name, func(c rune) bool { return c <= ' ' || c > '~' })
}

func (x *execution) misuse(why string) error {
	return fmt.Errorf("%w: %.*q: %s", ErrMisuse, MaxName, x.name, why)
}

// refused returns the error of a step that could not begin because of err.
func (x *execution) refused(err error) error {
	switch err {
	case checkpoint.ErrEnded, checkpoint.ErrTwice, checkpoint.ErrMany, checkpoint.ErrAlone:
		return x.misuse(err.Error())
	}
	return x.failed(err)
}

func (x *execution) failed(err error) error {
	return fmt.Errorf("idempotency: step %q: %w", x.name, err)
}

// execute does the work of a step that has no result yet.
func (x *execution) execute(ctx context.Context) error {
	if err := x.mayAct(ctx); err != nil {
		return err
	}
	work := x.work
	if x.kind == checkpoint.Marked {
		var err error
		if work, err = x.workOnce(ctx); err != nil {
			return err
		}
	}
	data, unfit, err := work(context.WithValue(ctx, within{}, x.steps))
	switch {
	case err != nil:
		return err
	case x.steps.Keeper == nil:
		return x.take(data, cmp.Or(unfit, errNotKept))
	}
	return x.keep(ctx, data, unfit)
}

// workOnce returns the work of a step that runs at most once: the question, if an earlier attempt has begun it.
func (x *execution) workOnce(ctx context.Context) (work, error) {
	begun, err := x.isBegun(ctx)
	switch {
	case err != nil:
		return nil, x.failed(err)
	case begun && x.ask == nil:
		return nil, fmt.Errorf("%w: %q", ErrUnknown, x.name)
	}
	if err := x.mayAct(ctx); err != nil {
		return nil, err
	}
	if begun {
		return x.ask, nil
	}
	return x.work, nil
}

// keep stores the result of the step, unless it is unfit, and takes what is stored then.
func (x *execution) keep(ctx context.Context, data []byte, unfit error) error {
	size := len(x.name) + len(data)
	if unfit == nil && !x.steps.Take(size) {
		data, unfit = nil, fmt.Errorf("all results together have more than %d bytes", MaxTotal)
	}
	stored, err := x.store(ctx, x.name, data)
	switch {
	case err != nil:
		if unfit == nil {
			x.steps.GiveBack(size)
		}
		return x.failed(err)
	case errors.Is(context.Cause(ctx), idempotency.ErrClaimLost):
		return x.failed(idempotency.ErrClaimLost)
	}
	return x.take(stored, cmp.Or(unfit, errNotKept))
}

// mayAct returns why the step must not have its effect any more, or nil. It is called after every question to the store,
// because the attempt may have lost its claim, or have ended, while the store was asked.
func (x *execution) mayAct(ctx context.Context) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case x.steps.HasEnded():
		return x.misuse(checkpoint.ErrEnded.Error())
	case x.steps.Keeper == nil:
		return nil
	}
	if err := x.steps.Keeper.CheckLease(); err != nil {
		return x.failed(err)
	}
	return nil
}

// isBegun reports whether the step may have begun before, and stores that it has begun. It does so also if the store has lost
// what it knew of the step: the record is there again then, and tells later attempts.
func (x *execution) isBegun(ctx context.Context) (before bool, err error) {
	mark := x.name + checkpoint.Mark
	if x.steps.Has(mark) {
		return true, nil
	}
	own := make([]byte, 8)
	rand.Read(own) // never fails
	stored, err := x.store(ctx, mark, own)
	return !bytes.Equal(stored, own) || x.steps.MayBeMissing(), err
}

// The pauses between two questions to a store that does not work.
const (
	firstPause = 20 * time.Millisecond
	lastPause  = time.Second
)

// store stores a checkpoint, although the context may end, and returns the one that is stored.
func (x *execution) store(ctx context.Context, name string, data []byte) (stored []byte, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), x.steps.Timeout)
	defer cancel()
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		stored, err = x.steps.Store(ctx, name, data)
		if err == nil || isFinal(err) || !polling.Sleep(ctx, pause, nil) {
			return stored, err
		}
	}
}

// isFinal reports whether it is of no use to ask the store again.
func isFinal(err error) bool {
	return errors.Is(err, idempotency.ErrClaimLost) || errors.Is(err, idempotency.ErrUserQuota) ||
		errors.Is(err, idempotency.ErrRecordInvalid) || errors.Is(err, idempotency.ErrKeyReused) ||
		errors.Is(err, errors.ErrUnsupported)
}

// take takes what is stored of a step as its result. If nothing is, the result could not be kept, and why says why.
func (x *execution) take(stored []byte, why error) error {
	if len(stored) > 0 {
		why = x.decode(stored)
	}
	x.ended = true
	if why != nil {
		return fmt.Errorf("%w: step %q: %w", ErrResult, x.name, why)
	}
	return nil
}
