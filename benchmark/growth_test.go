package benchmark_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/benchmark"
	"github.com/idempotency-go/idempotency/internal/servertest"
)

const smallest = 10_000 // records

func TestGrowth(t *testing.T) {
	backends, err := benchmark.OpenBackends(false)
	servertest.Require(t, err)
	t.Cleanup(backends.Close)
	for name, grow := range map[string]func() ([]benchmark.Growth, error){
		"memory":     func() ([]benchmark.Growth, error) { return benchmark.GrowMemory(smallest) },
		"Redis":      func() ([]benchmark.Growth, error) { return backends.GrowRedis(t.Context(), smallest) },
		"PostgreSQL": func() ([]benchmark.Growth, error) { return backends.GrowPostgres(t.Context(), smallest) },
	} {
		t.Run(name, func(t *testing.T) {
			all, err := grow()
			require.NoError(t, err)
			require.Len(t, all, 1)
			g := all[0]
			require.Equal(t, smallest, g.Records)
			require.Greater(t, g.Stored, g.Content, "a record takes more than its content")
			require.Less(t, g.Stored, 10*g.Content, "and was not counted twice")
			require.Positive(t, g.First)
			require.Positive(t, g.Replay)
		})
	}
}

func TestSteady(t *testing.T) {
	s, err := benchmark.RunSteady(1000, 20_000, 100*time.Millisecond)
	require.NoError(t, err)
	require.Positive(t, s.P50)
	require.LessOrEqual(t, s.P999, s.Max)
}

func TestCompletion(t *testing.T) {
	backends, err := benchmark.OpenBackends(false)
	servertest.Require(t, err)
	t.Cleanup(backends.Close)
	for _, work := range []benchmark.Work{benchmark.Small, benchmark.Medium} {
		c, err := backends.CompareCompletion(t.Context(), work, 1)
		require.NoError(t, err)
		require.Positive(t, c.Ratio)
		require.Positive(t, c.Server)
	}
}
