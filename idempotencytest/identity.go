package idempotencytest

import (
	"context"
	"errors"
	"log/slog"
	"runtime"

	"github.com/idempotency-go/idempotency"
)

var identityCases = []testCase{{
	name: "identity",
	rule: "Every attempt at an operation has the ID of its key, however the attempts before it have ended. The store " +
		"counts the attempts that it remembers.",
	check: func(t *trial) {
		number := 1
		for _, end := range endings {
			t.attempt(number, end)
			number++
		}
		t.lapsed() // as after a crash
		t.attempt(number+1, answers)
	},
}, {
	name: "identity of a key that is used again",
	rule: "An operation whose record has expired has its ID again, when its key is used again.",
	check: func(t *trial) {
		t.forgotten()
		t.attempt(1, answers)
	},
}}

// attempt executes the operation of the key by a Runner, and checks the Operation that the work gets from its context.
func (t *trial) attempt(number int, end ending) {
	runner, err := idempotency.NewRunner(t.store, idempotency.RunnerOptions{Logger: slog.New(slog.DiscardHandler)})
	t.succeeds("NewRunner", err)
	var own idempotency.Operation
	var known bool
	var refusal error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() { _ = recover() }()
		_, _, refusal = runner.Do(t.ctx, t.key, []byte("request"), func(ctx context.Context) (idempotency.Response, error) {
			own, known = idempotency.FromContext(ctx)
			return end(ctx)
		})
	}()
	<-ended
	switch {
	case !known:
		t.failf("attempt %d was not run, or not told of its operation (%v)", number, refusal)
	case own.ID != t.key.OperationID() || own.Key != t.key:
		t.failf("attempt %d is told of operation %v, not of %v", number, own.ID, t.key.OperationID())
	case own.Attempt != number:
		t.failf("attempt %d is told that it is attempt %d", number, own.Attempt)
	}
}

// ending is how the work of an attempt ends.
type ending func(context.Context) (idempotency.Response, error)

// endings leave an operation without an answer.
var endings = []ending{
	func(context.Context) (idempotency.Response, error) {
		return idempotency.Response{}, errors.New("idempotencytest: the attempt has failed")
	},
	func(context.Context) (idempotency.Response, error) { panic("idempotencytest: the attempt panics") },
	func(context.Context) (idempotency.Response, error) {
		runtime.Goexit()
		return idempotency.Response{}, nil
	},
	func(ctx context.Context) (idempotency.Response, error) {
		idempotency.Decide(ctx, idempotency.Free)
		return receipt("of what has not happened"), nil
	},
	func(ctx context.Context) (idempotency.Response, error) {
		idempotency.Decide(ctx, idempotency.Unknown)
		return receipt("of what nobody knows"), nil
	},
}

// answers ends the operation.
func answers(context.Context) (idempotency.Response, error) { return receipt("at last"), nil }
