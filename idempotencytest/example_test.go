package idempotencytest_test

import (
	"testing"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
)

// A store is tested by a test of one call, here one in the memory of the process.
func ExampleRun() {
	var t *testing.T // of func TestStore(t *testing.T)

	idempotencytest.Run(t, func(t *testing.T) idempotency.Store {
		return idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	})
}
