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

// shown is what a panel shows.
type shown struct {
	board.Panel
	seconds float64 // how long the time of the panel is
	number  float64 // of a panel with one number
	series  []series
}

// series has a point for every second for which there is a value. Those of one of many kinds that did not occur are left
// out.
type series struct {
	name string
	x, y []float64 // x is in seconds since the beginning
}

func (s series) sum() (sum float64) {
	for _, y := range s.y {
		sum += y
	}
	return sum
}

// window is that of rates in the panels.
const window = 5 * time.Second

// ask returns what the panels show of the time from begin to end.
func ask(ctx context.Context, p board.Prometheus, panels []board.Panel, begin, end time.Time) (all []shown, err error) {
	for _, panel := range panels {
		s := shown{Panel: panel, seconds: end.Sub(begin).Seconds()}
		for _, target := range panel.Targets {
			if panel.Type == "stat" {
				numbers, err := p.Numbers(ctx, target, job, end.Sub(begin), end)
				if err != nil {
					return nil, err
				}
				s.number = numbers[""]
				continue
			}
			some, err := lines(ctx, p, target, begin, end)
			if err != nil {
				return nil, err
			}
			s.series = append(s.series, some...)
		}
		if s.stacked() {
			slices.SortStableFunc(s.series, func(a, b series) int { return cmp.Compare(b.sum(), a.sum()) })
		}
		all = append(all, s)
	}
	return all, nil
}

func lines(ctx context.Context, p board.Prometheus, t board.Target, begin, end time.Time) (all []series, err error) {
	value, _, _, err := p.QueryRange(ctx, t.Query(job, window), prometheus.Range{Start: begin, End: end, Step: time.Second})
	if err != nil {
		return nil, err
	}
	for _, stream := range value.(model.Matrix) {
		s, silent := series{name: t.Legend(stream.Metric)}, true
		for _, sample := range stream.Values {
			if y := float64(sample.Value); !math.IsNaN(y) {
				s.x = append(s.x, sample.Timestamp.Time().Sub(begin).Seconds())
				s.y = append(s.y, y)
				silent = silent && y == 0
			}
		}
		if !silent || t.LegendFormat == s.name {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b series) int { return strings.Compare(a.name, b.name) })
	return all, nil
}
