package idempotency_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// A Shutdown that comes too late finds nothing to complain of if everything is settled.
func TestShutdownAfterItsTimeWithNothingToSettle(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		require.NoError(t, newBench(t, newSpyStore(), idempotency.RunnerOptions{}).Shutdown(ctx))
	}
}
