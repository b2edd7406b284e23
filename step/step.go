// Package step lets a retry continue where a crashed handler has stopped.
//
//	op, _ := idempotency.FromContext(ctx)
//	receipt, err := step.Do(ctx, "charge", func(ctx context.Context) (Receipt, error) {
//		return provider.Charge(ctx, card, op.DownstreamKey("charge"))
//	})
//
// A step is a named part of an operation with a result. [Do] runs the step and stores the result at once, beside the
// record of the operation. A later attempt at the operation gets the stored result, and skips the step.
//
// A process can die after the effect of a step and before the result is stored. The next attempt then cannot tell whether
// the step has run. What happens next depends on the function:
//
//	the process dies             the next attempt, with Do   with AtMostOnce
//	before the step              runs it                     runs it
//	within the step, or before   runs it again               ErrUnknown, or asks
//	its result is stored
//	after that                   gets the result             gets the result
//
// A step of Do has its effect at least once. The effect happens exactly once if the called system recognises a repeated
// call by a key of the operation (see [idempotency.Operation.DownstreamKey]). [AtMostOnce] is for systems without such a
// key: AtMostOnce stores a mark before it runs the step. [DoTx] is for rows in the database of the store: DoTx commits
// the rows together with the result, so the step takes effect exactly once.
//
// A handler with steps must make its answer from the results of the steps alone, because a later attempt has only these
// results.
//
// The store keeps the results as long as the record: until the operation is completed or has expired. A store can keep
// results if its claims implement [idempotency.Checkpointer], as the claims of all stores in this repository do. [DoTx]
// and [DoInTx] need claims that implement [idempotency.TxCheckpointer], as the claims of pgxstore, mysqlstore and
// sqlitestore do.
//
// The bounds are:
//
//   - An operation has at most [MaxSteps] steps.
//   - A name has 1 to [MaxName] bytes of visible ASCII characters other than "?".
//   - A result has at most [MaxResult] bytes of JSON.
//   - All results of an operation, with their names, have at most [MaxTotal] bytes.
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
	MaxTotal  = checkpoint.MaxTotal // 256 KiB, for all results together with their names
	MaxResult = 64 << 10            // bytes of JSON
	MaxName   = 100                 // bytes
)

// Errors of steps.
var (
	// ErrUnknown is returned by AtMostOnce if an earlier attempt has begun the step and stored no result, or if the store
	// has lost checkpoints of earlier attempts. The step may or may not have had its effect.
	ErrUnknown = errors.New("idempotency: the step may have begun, and its result is unknown")

	// ErrResult is returned if the step has run, but the result cannot be encoded as JSON, exceeds the bounds, or cannot be
	// decoded into the type that the caller asks for. The step does not run again.
	ErrResult = errors.New("idempotency: the step has run, and its result cannot be had")

	// ErrMisuse is returned for errors of the program:
	//
	//   - ctx belongs to no operation, or the attempt has ended.
	//   - The name is invalid, or the attempt has used the name before.
	//   - The step is within another step, or runs at the same time as a step in a transaction.
	//   - The operation has too many steps.
	//
	// The step has not run. A step in a transaction may have run, but its rows were rolled back.
	ErrMisuse = errors.New("idempotency: misuse of a step")

	// ErrNoClaim is returned if the request holds no claim under which the result could be stored. The step has not run. A
	// request has no claim in two cases:
	//
	//   - The request has no idempotency key. DoTx and DoInTx then return ErrNoClaim; Do and AtMostOnce return ErrMisuse.
	//   - The store failed, and [idempotency.Options].FailOpen let the request run without a claim. AtMostOnce, DoTx and
	//     DoInTx then return ErrNoClaim; Do runs the step.
	ErrNoClaim = fmt.Errorf("idempotency: no claim keeps the result of the step: %w", errors.ErrUnsupported)
)

// Do returns the result of the step name of the operation that ctx belongs to. If the operation has no result for name
// yet, Do calls fn and stores the result as JSON. Do always returns the value decoded from the JSON, also after the first
// run, so that the first attempt and a retry see the same value.
//
// If fn returns an error or panics, Do stores no result, and the step may run again, in this attempt or in a later one. Do
// returns the error of fn unchanged. Other errors of Do are:
//
//   - [idempotency.ErrClaimLost]: another attempt has taken over the operation, or the lease may have lapsed. If fn has
//     run, its result is not stored.
//   - [ErrResult] and [ErrMisuse], as documented there.
//   - [errors.ErrUnsupported]: the store keeps no results of steps. The step has not run.
//   - The cause of ctx, if ctx has ended. The step has not run.
//   - An error of the store. If fn has run, its result is not stored, so a later attempt runs the step again.
//
// Do checks ctx and the lease right before the call of fn, after the last call to the store. The context of fn is derived
// from ctx. In a request that runs without a claim, because of [idempotency.Options].FailOpen, Do runs the step and
// stores nothing.
//
// Do is safe for concurrent use by steps of different names.
func Do[T any](ctx context.Context, name string, fn func(context.Context) (T, error)) (T, error) {
	return runForResult[T](ctx, &execution{name: name, work: encodeResult(fn)})
}

// AtMostOnce is [Do] for an effect that must not happen twice. Before the call of fn, AtMostOnce stores a mark that the
// step has begun. If a later attempt finds the mark and no result, AtMostOnce calls ask instead of fn. The function ask
// finds out whether the effect has happened, and returns the result of the step. If ask is nil, AtMostOnce returns an
// error that wraps [ErrUnknown].
//
// AtMostOnce also calls ask, or returns ErrUnknown, if the store loses the record of the operation during an attempt,
// because the mark of an earlier attempt may be lost with the record. If the store loses the record between two attempts,
// the second attempt looks like the first attempt at a new operation, and runs the step again.
//
// If fn returns an error, the mark remains, because the error of a call seldom tells whether the call has had an effect.
//
// AtMostOnce needs a claim. In a request that runs without a claim, because of [idempotency.Options].FailOpen, AtMostOnce
// returns [ErrNoClaim].
func AtMostOnce[T any](ctx context.Context, name string, fn, ask func(context.Context) (T, error)) (T, error) {
	x := &execution{name: name, kind: checkpoint.Marked, work: encodeResult(fn)}
	if ask != nil {
		x.askResult = encodeResult(ask)
	}
	return runForResult[T](ctx, x)
}

// workFunc runs the work of a step, and returns the result as JSON. If the result cannot be stored, data is empty and
// unfit is the reason. The error of the work itself is err.
type workFunc func(context.Context) (data []byte, unfit, err error)

// encodeResult wraps fn as a workFunc that encodes the value of fn.
func encodeResult[T any](fn func(context.Context) (T, error)) workFunc {
	return func(ctx context.Context) (data []byte, unfit, err error) {
		value, err := fn(ctx)
		if err != nil {
			return nil, nil, err
		}
		data, unfit = json.Marshal(value)
		if unfit == nil && len(data) > MaxResult {
			data, unfit = nil, fmt.Errorf("the result has %d bytes, and may have %d", len(data), MaxResult)
		}
		return data, unfit, nil
	}
}

// runForResult runs x, and returns the decoded result.
func runForResult[T any](ctx context.Context, x *execution) (T, error) {
	var value, zero T
	x.decodeResult = func(data []byte) error { return json.Unmarshal(data, &value) }
	if err := x.runStep(ctx); err != nil {
		return zero, err
	}
	return value, nil
}
