package main

import (
	"encoding/xml"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	bm "github.com/idempotency-go/idempotency/proof/benchmark"
)

func TestNumbers(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ got, want string }{
		{number(0), "0"},
		{number(0.0012345), "0.001"},
		{number(1.005), "1"},
		{number(1.2345), "1.23"},
		{number(12.345), "12.3"},
		{number(123456), "123456"},
		{duration(999), "999 ns"},
		{duration(1500), "1.5 us"},
		{duration(12345678), "12346 us"},
		{rate(10 * time.Microsecond), "100 k/s"},
	} {
		require.Equal(t, tt.want, tt.got)
	}
}

// sample is a result as a run would leave it: the library takes 1.5 times as long as the least, fiber twice as long.
func sample(t *testing.T) *results {
	t.Helper()
	r := &results{rounds: 1, limits: bm.Limits, exact: map[counted]bm.Exact{
		{bm.Memory, bm.First, bm.Small}:  {Allocs: 15, Bytes: 900},
		{bm.Memory, bm.Replay, bm.Small}: {Allocs: 2},
		{bm.Redis, bm.First, bm.Small}:   {RoundTrips: 2},
	}}
	took := map[*bm.Subject]time.Duration{bm.Memory: 15, bm.Redis: 15, bm.FiberMemory: 20, bm.FiberRedis: 20}
	for _, l := range bm.Limits {
		if _, done := r.find(l.Subject.Store, l.Scenario); done || l.Path != bm.First || l.Workers > 16 || l.Beside == nil {
			continue
		}
		c := comparison{store: l.Subject.Store, scenario: l.Scenario, subjects: l.Compared(l.Subject.Store)}
		var contenders []bm.Contender
		for _, s := range c.subjects {
			contenders = append(contenders, bm.Contender{Batch: func() (bm.Cost, error) {
				d := max(10, took[s])
				return bm.Cost{Elapsed: d, Client: d, Server: d}, nil
			}})
		}
		var err error
		c.Comparison, err = bm.Compare(r.rounds, contenders)
		require.NoError(t, err)
		r.compared = append(r.compared, c)
	}
	return r
}

func TestDocument(t *testing.T) {
	t.Parallel()
	doc := sample(t).document()
	for _, want := range []string{
		"| idempotency, memory, first, 256 B in, 200 B out | at most 14 allocs; at most 2176 B allocated; " +
			"at most 3 x the time of the least, memory | **15**; 900; 1.5 | **no**; yes; yes |",
		"| idempotency, memory, first, 256 B in, 200 B out, 16 workers, over HTTP | " +
			"at most 1.1 x the processor time of the least, memory | **1.5** | **no** |",
		"![Processor time over HTTP, beside the least](cost.svg)",
		"| first | 1 · 20 ns | **1.5** (1.5-1.5) · 30 ns | **2** (2-2) · 40 ns |",
		"| idempotency, memory, no key, 256 B in, 200 B out | no allocs; " +
			"at most 1.1 x the time of bare handler | -; - | -; - |",
		"| at most 1.08 x the processor time of the least, Redis; at least 1 x the throughput of fiber v3, Redis | " +
			"**1.5**; 1.33 | **no**; yes |",
		"| first, 256 B in, 200 B out, 16 workers, Valkey | 1 · 20 ns | **1** (1-1) · 20 ns | **1.5** (1.5-1.5) · 30 ns |",
		"| this library | 1.5 | - | - | 1.5 | - | 15 / 2 | 2 / 0 |  |", "## Measured elsewhere\n", "no fingerprint",
	} {
		require.Contains(t, doc, want)
	}
	measured, rest, _ := strings.Cut(doc, "## Measured elsewhere\n")
	require.NotContains(t, measured, "idemlease", "what no run measures stands apart")
	require.Contains(t, rest, "idemlease")
}

// TestPlot shows that all that was measured over HTTP is drawn, as long as it should be.
func TestPlot(t *testing.T) {
	t.Parallel()
	plot := sample(t).plot()
	require.NoError(t, xml.Unmarshal([]byte(plot), new(struct{})))
	for _, want := range []string{
		">memory, first<", ">Redis, first<", ">PostgreSQL, first<",
		`width="280" height="15" fill="#737c86"/>`, ">1.00  the least<",
		`width="420" height="15" fill="#3b82c4"/>`, ">1.50  this library<",
		`width="560" height="15" fill="#c9772b"/>`, ">2.00  fiber v3, on fasthttp<",
	} {
		require.Contains(t, plot, want)
	}
	require.NotContains(t, plot, "replay", "of which the sample has nothing")
}

// TestLimits finds limits that nothing is measured for, and two on the same.
func TestLimits(t *testing.T) {
	t.Parallel()
	for i, l := range bm.Limits {
		require.NotEqual(t, l.Beside != nil, l.Exact() || l.Of == bm.Overhead, "%s: %s", title(l), l)
		same := func(other bm.Limit) bool {
			return title(other) == title(l) && other.Of == l.Of && other.Beside == l.Beside
		}
		require.Equal(t, i, slices.IndexFunc(bm.Limits, same), "%s is limited twice", title(l))
	}
}
