package benchmark_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/benchmark"
	"github.com/idempotency-go/idempotency/internal/servertest"
)

const records = 100_000

func TestGrowth(t *testing.T) {
	backends, err := benchmark.OpenBackends(false)
	servertest.Require(t, err)
	t.Cleanup(backends.Close)
	for name, grow := range map[string]func() ([]benchmark.Growth, error){
		"memory":     func() ([]benchmark.Growth, error) { return benchmark.GrowMemory(records) },
		"Redis":      func() ([]benchmark.Growth, error) { return backends.GrowRedis(t.Context(), records) },
		"PostgreSQL": func() ([]benchmark.Growth, error) { return backends.GrowPostgres(t.Context(), records) },
	} {
		t.Run(name, func(t *testing.T) {
			all, err := grow()
			require.NoError(t, err)
			require.Len(t, all, 2)
			require.Equal(t, records, all[1].Records)
			require.InEpsilon(t, all[0].Stored, all[1].Stored, .35, "copies take what others do, but for dead rows")
			for _, g := range all {
				require.Greater(t, g.Stored, g.Content, "a record takes more than its content")
				require.Less(t, g.Stored, 10*g.Content, "and was not counted twice")
				require.Less(t, g.Least, g.Stored)
				require.Positive(t, g.First)
				require.Positive(t, g.Replay)
			}
		})
	}
}

func TestSteady(t *testing.T) {
	s, err := benchmark.RunSteady(1000, 20_000, 100*time.Millisecond)
	require.NoError(t, err)
	for _, p := range []benchmark.Paced{s.Store, s.Control} {
		require.Positive(t, p.P50)
		require.LessOrEqual(t, p.P50, p.P999)
		require.LessOrEqual(t, p.P9999, p.Max)
		require.Equal(t, p.Max, p.Worst.Clock)
		require.LessOrEqual(t, p.Worst.Processor, p.Worst.Clock)
		require.Positive(t, p.Kept)
		require.LessOrEqual(t, p.Kept, 1.01)
	}
	require.Greater(t, s.Store.P50, s.Control.P50, "the control has no store")
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
