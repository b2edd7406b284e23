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

// newSeries returns a series of 300 values, computed by valueAt.
func newSeries(valueAt func(i int) float64) soak.Series {
	s := soak.Series{Name: "rows", Slack: 5}
	for i := range 300 {
		s.Values = append(s.Values, valueAt(i))
	}
	return s
}

func TestGrows(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		valueAt func(i int) float64
		want    bool
	}{
		"flat":                    {func(int) float64 { return 100 }, false},
		"falling":                 {func(i int) float64 { return 1000 - float64(i) }, false},
		"constant after a while":  {func(i int) float64 { return min(float64(i), 90) }, false},
		"sometimes high":          {func(i int) float64 { return 100 + float64(i%7/6*i*10) }, false},
		"little, within slack":    {func(i int) float64 { return float64(i / 100) }, false},
		"a bit each time":         {func(i int) float64 { return float64(i) }, true},
		"a bit, on top of much":   {func(i int) float64 { return 1000 + 2*float64(i) }, true},
		"a jump in the last part": {func(i int) float64 { return 100 + float64(i/200*50) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, newSeries(test.valueAt).Grows(), newSeries(test.valueAt))
		})
	}
}

func TestPlotIsXML(t *testing.T) {
	t.Parallel()
	var plot bytes.Buffer
	odd := soak.Series{Name: "<nothing> & no value"}
	require.NoError(t, soak.Plot(&plot, []soak.Series{newSeries(func(i int) float64 { return float64(i) }), odd, odd}))
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

// faultWriter gets the progress of a soak, one Write for each fault, and ends the soak after the last of faultsLeft faults.
type faultWriter struct {
	faultsLeft int
	endSoak    context.CancelFunc
}

func (f *faultWriter) Write(told []byte) (int, error) {
	if f.faultsLeft--; f.faultsLeft == 0 {
		f.endSoak()
	}
	return len(told), nil
}

// A soak with each fault at least once breaks no promise. A run this short cannot show growth, so the test ignores the verdict
// of the series.
func TestRun(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	result, err := soak.Run(ctx, soak.Options{
		For: 2 * time.Minute, Faults: time.Second, Clients: 2, Progress: &faultWriter{7, cancel}, // each of the six faults, and one again
	})
	require.NoError(t, err)
	require.Empty(t, result.Broken)
	require.GreaterOrEqual(t, result.Faults, int64(6))
	require.Greater(t, result.Requests, result.Payments)
	require.NotEmpty(t, result.Series)
}
