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
	rule: "Every attempt at an operation has the operation ID of its key, whichever way the earlier attempts have " +
		"ended. The store counts the attempts whose record the store still has.",
	checkRule: func(t *trial) {
		number := 1
		for _, end := range endingsWithoutAnswer {
			t.runAttempt(number, end)
			number++
		}
		t.claimUntilLapsed() // as after a crash
		t.runAttempt(number+1, endWithAnswer)
	},
}, {
	name: "identity of a key that is used again",
	rule: "If a key is used again after its record has expired, the operation has the same ID as before.",
	checkRule: func(t *trial) {
		t.claimUntilExpired()
		t.runAttempt(1, endWithAnswer)
	},
}}

// runAttempt runs an attempt at the operation of the key by a Runner, and checks the Operation in the context of the
// work.
func (t *trial) runAttempt(number int, end ending) {
	runner, err := idempotency.NewRunner(t.store, idempotency.RunnerOptions{Logger: slog.New(slog.DiscardHandler)})
	t.checkSuccess("NewRunner", err)
	var operation idempotency.Operation
	var isKnown bool
	var refusal error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() { _ = recover() }()
		_, _, refusal = runner.Do(t.ctx, t.key, []byte("request"), func(ctx context.Context) (idempotency.Response, error) {
			operation, isKnown = idempotency.FromContext(ctx)
			return end(ctx)
		})
	}()
	<-ended
	switch {
	case !isKnown:
		t.failf("attempt %d has not run, or has no Operation in its context (%v)", number, refusal)
	case operation.ID != t.key.OperationID() || operation.Key != t.key:
		t.failf("attempt %d has the operation %v in its context, want %v", number, operation.ID, t.key.OperationID())
	case operation.Attempt != number:
		t.failf("attempt %d has the attempt number %d in its context", number, operation.Attempt)
	}
}

// ending is work for a Runner that ends in a certain way.
type ending func(context.Context) (idempotency.Response, error)

// endingsWithoutAnswer leave the operation without a stored response.
var endingsWithoutAnswer = []ending{
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
		return newReceipt("of an operation without effect"), nil
	},
	func(ctx context.Context) (idempotency.Response, error) {
		idempotency.Decide(ctx, idempotency.Unknown)
		return newReceipt("of an unknown outcome"), nil
	},
}

// endWithAnswer completes the operation.
func endWithAnswer(context.Context) (idempotency.Response, error) { return newReceipt("at last"), nil }
