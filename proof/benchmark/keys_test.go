package benchmark_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/benchmark"
)

// TestNewKeys makes more sets of keys than two bytes can count.
func TestNewKeys(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for range 70_000 {
		for _, key := range benchmark.NewKeys(2) {
			require.NoError(t, idempotency.ValidateUUID(key))
			require.False(t, seen[key], "%s again", key)
			seen[key] = true
		}
	}
}
