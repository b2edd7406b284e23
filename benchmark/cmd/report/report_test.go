package main

import (
	"encoding/xml"
	"errors"
	"io"
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
		{escape("<= 1"), "&lt;= 1"},
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
func sample() *results {
	growth := []bm.Growth{{Records: 10_000, First: time.Microsecond, Replay: 500}, {Records: 100_000, First: 1200, Replay: 600}}
	return &results{
		memory: growth, redis: growth, postgres: growth,
		exact: []exactRow{{bm.Memory, bm.First, bm.Small, bm.Exact{Allocs: 7, Bytes: 900}}},
		loads: []load{{bm.Memory, 500, bm.Latency{P50: time.Millisecond, P99: time.Second, P999: 2 * time.Second}}},
	}
}

// TestPlots checks that the plots are well-formed XML within their own bounds.
func TestPlots(t *testing.T) {
	t.Parallel()
	for name, svg := range sample().plots() {
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
	doc := sample().document(little, true)
	for _, want := range []string{
		"Quick mode", "go run ./benchmark/cmd/report", "| idempotency, memory | first | 256 B in, 200 B out | 7 | 900 |",
		"idempotency, memory, first, 256 B in, 200 B out | allocs/op | 7 |", "| 100000 |", "(growth-memory.svg)", "no fingerprint",
	} {
		require.Contains(t, doc, want)
	}
	require.NotContains(t, sample().document(full, false), "Quick mode")
}
