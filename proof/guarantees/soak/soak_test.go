package soak_test

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/guarantees/soak"
)

// values returns 300 values.
func values(at func(i int) float64) soak.Series {
	s := soak.Series{Name: "rows", Slack: 5}
	for i := range 300 {
		s.Values = append(s.Values, at(i))
	}
	return s
}

func TestGrows(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		at   func(i int) float64
		want bool
	}{
		"flat":                    {func(int) float64 { return 100 }, false},
		"falling":                 {func(i int) float64 { return 1000 - float64(i) }, false},
		"full after a while":      {func(i int) float64 { return min(float64(i), 90) }, false},
		"sometimes high":          {func(i int) float64 { return 100 + float64(i%7/6*i*10) }, false},
		"little, within slack":    {func(i int) float64 { return float64(i / 100) }, false},
		"a bit each time":         {func(i int) float64 { return float64(i) }, true},
		"a bit, on top of much":   {func(i int) float64 { return 1000 + 2*float64(i) }, true},
		"a jump in the last part": {func(i int) float64 { return 100 + float64(i/200*50) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, values(test.at).Grows(), values(test.at))
		})
	}
}

func TestPlotIsXML(t *testing.T) {
	t.Parallel()
	var plot bytes.Buffer
	odd := soak.Series{Name: "<nothing> & no value"}
	require.NoError(t, soak.Plot(&plot, []soak.Series{values(func(i int) float64 { return float64(i) }), odd, odd}))
	require.Contains(t, plot.String(), "rows: 150, then 250, at most 299: GROWS")
	require.Contains(t, plot.String(), "&lt;nothing&gt;")
	decoder, lines := xml.NewDecoder(&plot), 0
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if element, ok := token.(xml.StartElement); ok && element.Name.Local == "polyline" {
			lines++
		}
	}
	require.Equal(t, 3, lines)
}

// faults is where a soak tells of its faults. It ends the soak when there have been enough.
type faults struct {
	left   int
	enough context.CancelFunc
}

func (f *faults) Write(told []byte) (int, error) {
	if f.left--; f.left == 0 {
		f.enough()
	}
	return len(told), nil
}

// While every fault strikes, no promise is broken. Whether anything grows cannot be seen in so short a time.
func TestRun(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	result, err := soak.Run(ctx, soak.Options{
		For: 2 * time.Minute, Faults: time.Second, Clients: 2, Progress: &faults{7, cancel}, // the seventh is the first again
	})
	require.NoError(t, err)
	require.Empty(t, result.Broken)
	require.GreaterOrEqual(t, result.Faults, int64(6))
	require.Greater(t, result.Requests, result.Payments)
	require.NotEmpty(t, result.Series)
}
