package main

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"
	"time"

	prometheus "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"github.com/idempotency-go/idempotency/examples/telemetry/board"
)

// panelData is a panel with the data to be drawn.
type panelData struct {
	board.Panel
	durationSeconds float64 // the length of the time axis
	total           float64 // the number of a panel of type "stat"
	series          []series
}

// series is a line or area of a panel, with a point for every second for which Prometheus has a value.
type series struct {
	legend         string
	elapsedSeconds []float64 // since the beginning of the time axis
	values         []float64
}

func (s series) sumValues() (sum float64) {
	for _, value := range s.values {
		sum += value
	}
	return sum
}

// rateWindow is the duration over which the panels compute rates.
const rateWindow = 5 * time.Second

// queryPanels returns the data of the panels from begin to end.
func queryPanels(ctx context.Context, p board.Prometheus, panels []board.Panel, begin, end time.Time) (all []panelData, err error) {
	for _, panel := range panels {
		data := panelData{Panel: panel, durationSeconds: end.Sub(begin).Seconds()}
		for _, target := range panel.Targets {
			if panel.Type == "stat" {
				numbers, err := p.QueryNumbers(ctx, target, job, end.Sub(begin), end)
				if err != nil {
					return nil, err
				}
				data.total = numbers[""]
				continue
			}
			some, err := querySeries(ctx, p, target, begin, end)
			if err != nil {
				return nil, err
			}
			data.series = append(data.series, some...)
		}
		if data.isStacked() {
			slices.SortStableFunc(data.series, func(a, b series) int { return cmp.Compare(b.sumValues(), a.sumValues()) })
		}
		all = append(all, data)
	}
	return all, nil
}

// querySeries returns the series of t from begin to end. If the legend of t contains labels, querySeries omits the series
// whose values are all zero, because a panel has a series for each of many kinds.
func querySeries(ctx context.Context, p board.Prometheus, t board.Target, begin, end time.Time) (all []series, err error) {
	value, _, _, err := p.QueryRange(ctx, t.ExpandExpr(job, rateWindow), prometheus.Range{Start: begin, End: end, Step: time.Second})
	if err != nil {
		return nil, err
	}
	for _, stream := range value.(model.Matrix) {
		s, isZero := series{legend: t.SeriesName(stream.Metric)}, true
		for _, sample := range stream.Values {
			if value := float64(sample.Value); !math.IsNaN(value) {
				s.elapsedSeconds = append(s.elapsedSeconds, sample.Timestamp.Time().Sub(begin).Seconds())
				s.values = append(s.values, value)
				isZero = isZero && value == 0
			}
		}
		if !isZero || t.LegendFormat == s.legend {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b series) int { return strings.Compare(a.legend, b.legend) })
	return all, nil
}
