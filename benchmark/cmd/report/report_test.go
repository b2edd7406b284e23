package main

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	bm "github.com/idempotency-go/idempotency/benchmark"
)

func TestFormat(t *testing.T) {
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
		{duration(12345678), "12.3 ms"},
		{duration(2 * time.Second), "2 s"},
		{rate(10 * time.Microsecond), "100 k/s"},
		{rate(0), "-"},
		{thousands(10_000), "10 k"},
		{thousands(5_000_000), "5 M"},
	} {
		require.Equal(t, tt.want, tt.got)
	}
}

func TestNiceStep(t *testing.T) {
	t.Parallel()
	for most, want := range map[float64]float64{4: 1, 7: 1, 9: 2, 25: 5, 400: 100, 0.9: 0.2} {
		require.InDelta(t, want, niceStep(most), 1e-9, "most %v", most)
	}
}

// sample is a result as a run would leave it.
func sample(t *testing.T) *results {
	t.Helper()
	grown := []bm.Growth{
		{Records: 10_000, First: time.Microsecond, Replay: 500, Stored: 600, Content: 450},
		{Records: 100_000, First: 1200, Replay: 600, RoundTrip: 100, Stored: 600.1, Content: 450},
	}
	steady := bm.Paced{Worst: bm.Stall{Clock: time.Second, Processor: 9 * time.Millisecond}}
	steady.P999 = 30 * time.Microsecond
	return &results{
		memory: grown, redis: grown, postgres: grown,
		steady: bm.Steady{Live: 100, Store: steady},
		exact: []exactRow{
			{bm.Memory, bm.First, bm.Small, bm.Exact{Allocs: 13, Bytes: 900}},
			{bm.Memory, bm.Replay, bm.Small, bm.Exact{Allocs: 2}},
		},
		comparisons: []comparison{compared(t, bm.Replay, 10, 13), compared(t, bm.First, 10, 13)},
		profiles:    []profile{{bm.Memory, bm.First, "top\n"}},
		loads:       []load{{bm.Memory, 500, bm.Latency{P50: time.Millisecond, P99: time.Second, P999: 2 * time.Second}}},
	}
}

// compared returns a comparison in which the floor and the library took those times.
func compared(t *testing.T, path bm.Path, floor, library time.Duration) comparison {
	t.Helper()
	batch := func(d time.Duration) func() (time.Duration, error) {
		return func() (time.Duration, error) { return d, nil }
	}
	c, err := bm.Compare(1, []bm.Contender{{Name: "floor", Batch: batch(floor)}, {Name: "library", Batch: batch(library)}})
	require.NoError(t, err)
	m := bm.Matrix{Title: bm.Matrices[0].Title, Subjects: []bm.Subject{bm.FloorMemory, bm.Memory}}
	return comparison{m, bm.Scenario{Path: path, Work: bm.Small, Workers: 1}, c}
}

// TestPlots checks that the plots are well-formed XML within their own bounds.
func TestPlots(t *testing.T) {
	t.Parallel()
	for name, svg := range sample(t).plots() {
		require.NotContains(t, svg, "NaN", name)
		require.NotContains(t, svg, "Inf", name)
		decoder := xml.NewDecoder(strings.NewReader(svg))
		for {
			_, err := decoder.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err, name)
		}
	}
}

func TestDocument(t *testing.T) {
	t.Parallel()
	doc := sample(t).document(little, true)
	for _, want := range []string{
		"Quick mode", "go run ./benchmark/cmd/report", "| idempotency, memory | first | 256 B in, 200 B out | 13 | 900 |",
		"| 100000 |", "(growth-memory.svg)", "no fingerprint",
	} {
		require.Contains(t, doc, want)
	}
	require.NotContains(t, sample(t).document(full, false), "Quick mode")
}

func TestGoals(t *testing.T) {
	t.Parallel()
	rows := make(map[string][]string)
	for _, g := range goals {
		if row, ok := g.row(sample(t)); ok {
			rows[row[0]] = row[1:]
		}
	}
	gate := bm.GateOf(bm.Allocs, bm.Memory, bm.Replay, bm.Small)
	replay := rows["memory, replay"]
	require.Contains(t, replay[0], fmt.Sprintf("at most 1.3 x floor; at most %v allocs/op;", gate.Limit), "as the gate says")
	require.Equal(t, []string{"1.3; 2; 0", "yes"}, replay[1:])
	first := rows["memory, first"]
	require.Equal(t, "1.3; **13**; 900", first[1])
	require.Contains(t, first[2], "**no**")
	require.Contains(t, first[2], "(profiles.md#idempotency-memory-first)")
	expiring := rows["memory, 1,000,000 live, 100,000 a second, expiring"]
	require.Equal(t, "**30**; 9", expiring[1], "of a stall, what the store has worked")
	require.Equal(t, "**150**", rows["memory, a record"][1])
	require.NotContains(t, rows, "Redis, first", "not measured")
}

func TestLimit(t *testing.T) {
	t.Parallel()
	most, least := limit{bound: 1.3, unit: " x"}, limit{bound: 0.8, unit: " x", atLeast: true}
	require.Equal(t, "at most 1.3 x", most.String())
	require.Equal(t, "at least 0.8 x", least.String())
	require.Equal(t, "0 x", limit{unit: " x"}.String())
	require.Equal(t, "1.3", most.show(1.3))
	require.Equal(t, "**1.4**", most.show(1.4))
	require.Equal(t, "0.8", least.show(0.8))
	require.Equal(t, "**0.7**", least.show(0.7))
}

// TestProfileLinks follows the links of the goals.
func TestProfileLinks(t *testing.T) {
	t.Parallel()
	require.Equal(t, "[profile](profiles.md#idempotency-redis-autopipeline-first)", profileOf(bm.RedisPipeline, bm.First))
	require.Contains(t, sample(t).profilesDocument(), "## idempotency, memory, first\n\n```\ntop\n```")
}

func TestUpdateSection(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "README.md")
	require.NoError(t, os.WriteFile(file, []byte("before\n"+sectionBegin+"old\n"+sectionEnd+"after\n"), 0o644))
	for range 2 {
		require.NoError(t, updateSection(file, sample(t).section("docs/benchmarks")))
	}
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Regexp(t, "(?s)^before\n"+sectionBegin+".*"+sectionEnd+"after\n$", string(text))
	require.NotContains(t, string(text), "old")
	require.Contains(t, string(text), "(docs/benchmarks/overhead.svg)")
	require.Contains(t, string(text), "| this library | 1.3 x | 1.3 x | - | 13 / 2 | - |")
	require.Equal(t, 1, strings.Count(string(text), sectionBegin))
}

func TestUpdateSectionWithoutPlace(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", sectionBegin, sectionEnd, sectionEnd + sectionBegin} {
		file := filepath.Join(t.TempDir(), "README.md")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
		require.Error(t, updateSection(file, "new"))
		unchanged, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, text, string(unchanged))
	}
}
