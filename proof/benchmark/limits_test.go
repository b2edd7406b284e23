//go:build !race

package benchmark_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/benchmark"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

// TestGates holds the library to all limits. TestGates is not parallel because it counts the allocations of the whole process.
func TestGates(t *testing.T) {
	backends, err := benchmark.OpenCounting()
	servertest.Require(t, err)
	t.Cleanup(backends.Close)

	type measured struct {
		subject *benchmark.Subject
		benchmark.Scenario
	}
	done := make(map[measured]benchmark.Exact)
	for _, limit := range benchmark.Limits {
		t.Run(fmt.Sprintf("%s/%s/%s", limit.Subject.Name, limit.Scenario, limit.Of), func(t *testing.T) {
			key := measured{limit.Subject, limit.Scenario}
			exact, ok := done[key]
			if !ok {
				var err error
				exact, err = benchmark.Measure(backends, limit.Subject, limit.Path, limit.Work)
				require.NoError(t, err)
				done[key] = exact
			}
			t.Logf("counted %s %v", t.Name(), limit.Of.In(exact)) // read by .ci/compare
			require.True(t, limit.Met(limit.Of.In(exact)), "%v: %s", limit.Of.In(exact), limit)
		})
	}
}
