// Package step lets a retry go on where a handler that crashed has stopped.
//
//	op, _ := idempotency.FromContext(ctx)
//	receipt, err := step.Do(ctx, "charge", func(ctx context.Context) (Receipt, error) {
//		return provider.Charge(ctx, card, op.DownstreamKey("charge"))
//	})
//
// A step is a part of an operation that has a name, and a result. [Do] runs it once and stores the result, at once, beside
// the record of the operation. A later attempt at the operation gets the result, and the step does not run.
//
// A process can die between a step and the writing of its result. Then nobody knows that the step has run. This table says
// what happens next:
//
//	the process dies             the next attempt, with Do   with AtMostOnce
//	before the step              runs it                     runs it
//	within the step, or before   runs it again               ErrUnknown, or asks
//	its result is stored
//	after that                   gets the result             gets the result
//
// So a step of Do has its effect at least once. If the system that it calls gets a key of the operation, see
// [idempotency.Operation.DownstreamKey], the effect happens once. [AtMostOnce] is for systems that know no such key. It
// writes that the step has begun before it runs the step. [DoTx] is for rows in the database of the store: rows and result
// are committed together, so the step takes effect exactly once.
//
// The answer of a handler with steps must be made from their results, because a later attempt has nothing else.
//
// The results live as long as the record: until the operation is completed, or has expired. A store keeps them if each of its
// claims is an [idempotency.Checkpointer], as are those of all stores in this repository. [DoTx] and [DoInTx] need claims
// that are an [idempotency.TxCheckpointer], as are those of pgxstore, mysqlstore and sqlitestore.
//
// These are the bounds: an operation has at most [MaxSteps] steps. A name has 1 to [MaxName] bytes. They are visible ASCII
// characters other than "?". A result has at most [MaxResult] bytes of JSON, and all results of an operation with their
// names have at most [MaxTotal] bytes.
package step

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/idempotency-go/idempotency/internal/checkpoint"
)

// The bounds of the steps of one operation.
const (
	MaxSteps  = checkpoint.MaxCount // 100; a step of AtMostOnce counts twice
	MaxTotal  = checkpoint.MaxTotal // 256 KiB: bytes of all results, with the names
	MaxResult = 64 << 10            // bytes of one result
	MaxName   = 100                 // bytes of a name
)

// Errors of steps.
var (
	// ErrUnknown is returned by AtMostOnce if an earlier attempt has begun the step and has stored no result, or if the
	// store has lost what earlier attempts have stored. Nobody knows what the step has done.
	ErrUnknown = errors.New("idempotency: the step may have begun, and its result is unknown")

	// ErrResult says that the step has run, but its result cannot be had: it is no JSON, is larger than the bounds, or
	// does not fit into the type that it is asked for now. The step does not run again.
	ErrResult = errors.New("idempotency: the step has run, and its result cannot be had")

	// ErrMisuse says that the step was not run, because the program is wrong: there is no operation in ctx, or its attempt
	// has ended; the name is invalid, or was used before in the attempt; the step is within another one, or beside one in a
	// transaction; or there are too many steps. A step in a transaction may have run, but its rows were rolled back then.
	ErrMisuse = errors.New("idempotency: misuse of a step")

	// ErrNoClaim says that the step was not run, because no claim keeps its result. DoTx and DoInTx return it for a request
	// without an idempotency key, where Do and AtMostOnce return ErrMisuse. AtMostOnce, DoTx and DoInTx return it for a request
	// that runs without a claim, as [idempotency.Options].FailOpen allows.
	ErrNoClaim = fmt.Errorf("idempotency: no claim keeps the result of the step: %w", errors.ErrUnsupported)
)

// Do returns the result of a step of the operation that ctx belongs to. If the operation has no result under that name
// yet, Do calls fn and stores what it returns. The result is stored as JSON. What Do returns is always decoded from that
// JSON, also the first time.
//
// If fn returns an error, Do returns that error as it is, and stores nothing: the step may be run again, in this attempt
// or in a later one. The same holds if fn panics. The other errors are these:
//
//   - [idempotency.ErrClaimLost]: another attempt has taken over. If fn has run, its result is not stored.
//   - [ErrResult] and [ErrMisuse], as they say.
//   - [errors.ErrUnsupported]: the store keeps no results of steps. The step was not run.
//   - Any other error is that of the store. The result of fn, if it has run, is not stored: a later attempt runs the step
//     again.
//
// If ctx has ended, Do returns the cause, and does not call fn. If the lease of the attempt may have lapsed, Do returns
// [idempotency.ErrClaimLost]. Do checks ctx and the lease right before it calls fn, after the last question to the store. The
// context of fn is derived from ctx. A handler that runs without a claim, as [idempotency.Options].FailOpen allows, runs its steps
// and stores nothing.
//
// Do is safe for concurrent use by steps of different names.
func Do[T any](ctx context.Context, name string, fn func(context.Context) (T, error)) (T, error) {
	return result[T](ctx, &execution{name: name, work: encoded(fn)})
}

// AtMostOnce is [Do] for an effect that must not happen twice. Before it calls fn, it stores that the step has begun. If a
// later attempt finds the step begun and no result, it calls ask instead of fn, which finds out what has become of the
// effect. What ask returns is the result of the step. If ask is nil, the error wraps [ErrUnknown].
//
// The same holds if the store loses the record of the operation while an attempt at it runs: then nobody knows whether an
// earlier attempt has begun the step. If the store loses the record between two attempts, the second one is the first of a
// new operation, and runs the step again.
//
// If fn returns an error, the step counts as begun: the error of a call seldom tells whether the call has had an effect.
// AtMostOnce needs a claim. Without one, because of [idempotency.Options].FailOpen, the error is [ErrNoClaim].
func AtMostOnce[T any](ctx context.Context, name string, fn, ask func(context.Context) (T, error)) (T, error) {
	x := &execution{name: name, kind: checkpoint.Marked, work: encoded(fn)}
	if ask != nil {
		x.ask = encoded(ask)
	}
	return result[T](ctx, x)
}

// work is what a step does. It returns its result as JSON, or nothing if the result cannot be encoded; unfit says why.
type work func(context.Context) (data []byte, unfit, err error)

func encoded[T any](fn func(context.Context) (T, error)) work {
	return func(ctx context.Context) (data []byte, unfit, err error) {
		value, err := fn(ctx)
		if err != nil {
			return nil, nil, err
		}
		data, unfit = json.Marshal(value)
		if unfit == nil && len(data) > MaxResult {
			data, unfit = nil, fmt.Errorf("it has %d bytes, and may have %d", len(data), MaxResult)
		}
		return data, unfit, nil
	}
}

func result[T any](ctx context.Context, x *execution) (T, error) {
	var value, none T
	x.decode = func(data []byte) error { return json.Unmarshal(data, &value) }
	if err := x.run(ctx); err != nil {
		return none, err
	}
	return value, nil
}
