//go:build !race

package benchmark_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/benchmark"
	"github.com/idempotency-go/idempotency/internal/servertest"
)

// TestGates is not parallel: allocations are counted for the whole process.
func TestGates(t *testing.T) {
	backends, err := benchmark.OpenBackends(true)
	servertest.Require(t, err)
	t.Cleanup(backends.Close)

	type measured struct {
		subject string
		path    benchmark.Path
		work    benchmark.Work
	}
	done := make(map[measured]benchmark.Exact)
	for _, gate := range benchmark.Gates {
		t.Run(fmt.Sprintf("%s/%s/%s/%s", gate.Subject.Name, gate.Path, gate.Work, gate.Of), func(t *testing.T) {
			key := measured{gate.Subject.Name, gate.Path, gate.Work}
			exact, ok := done[key]
			if !ok {
				var err error
				exact, err = benchmark.Measure(backends, gate.Subject, gate.Path, gate.Work)
				require.NoError(t, err)
				done[key] = exact
			}
			got := gate.Of.Of(exact)
			t.Logf("%.4g, limit %.4g", got, gate.Limit)
			require.LessOrEqual(t, got, gate.Limit)
		})
	}
}

// TestGateOf also finds two gates for the same quantity.
func TestGateOf(t *testing.T) {
	for _, gate := range benchmark.Gates {
		found := benchmark.GateOf(gate.Of, gate.Subject, gate.Path, gate.Work)
		require.Equal(t, gate.Limit, found.Limit, "%s, %s, %s, %s", gate.Subject.Name, gate.Path, gate.Work, gate.Of)
	}
	require.Panics(t, func() { benchmark.GateOf(benchmark.WAL, benchmark.Memory, benchmark.First, benchmark.Small) })
}
