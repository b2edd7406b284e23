package main

import (
	"fmt"
	"time"

	bm "github.com/idempotency-go/idempotency/benchmark"
)

// plots returns the plots by the names of their files.
func (r *results) plots() map[string]string {
	return map[string]string{
		"overhead.svg":        r.overheadPlot(),
		"latency.svg":         r.latencyPlot(),
		"growth-memory.svg":   growthPlot("Memory store: time against records held", "us", time.Microsecond, r.memory),
		"growth-redis.svg":    growthPlot("Redis: time against records held", "us", time.Microsecond, r.redis),
		"growth-postgres.svg": growthPlot("PostgreSQL: time against records held", "ms", time.Millisecond, r.postgres),
	}
}

func (r *results) overheadPlot() string {
	var bars []bar
	for _, s := range []bm.Subject{bm.FloorMemory, bm.Memory, bm.Fiber2, bm.Fiber3} {
		b := bar{name: s.Name}
		if s.Role == bm.Peer {
			b.name += " (no fingerprint)"
		}
		for _, path := range []bm.Path{bm.First, bm.Replay} {
			ratio, _ := r.ratio(s, bm.FloorMemory, bm.Scenario{Path: path, Work: bm.Small, Workers: 1})
			b.values = append(b.values, ratio.Median)
		}
		bars = append(bars, b)
	}
	for _, q := range quoted {
		name := q.name + " (quoted)"
		if !q.hashes {
			name = q.name + " (quoted, no fingerprint)"
		}
		bars = append(bars, bar{name, []float64{q.first, q.replay}, true})
	}
	return barChart("Time beside the floor, 256 B in, 200 B out, in memory (less is better)",
		[]string{"first execution", "replay"}, bars, func(v float64) string { return fmt.Sprintf("%.2f", v) })
}

func (r *results) latencyPlot() string {
	var rows []bar
	for _, l := range r.loads {
		rows = append(rows, bar{name: fmt.Sprintf("%s, %d/s", l.subject.Name, l.rate),
			values: []float64{l.P50.Seconds(), l.P99.Seconds(), l.P999.Seconds()}})
	}
	return dotPlot("Latency under load, over HTTP", []string{"p50", "p99", "p99.9"}, rows,
		func(v float64) string { return duration(time.Duration(v*1e9 + .5)) })
}

func growthPlot(title, unit string, scale time.Duration, all []bm.Growth) string {
	var x []float64
	lines := []series{{name: "first execution"}, {name: "replay"}, {name: "round trip with nothing to do"}}
	for _, g := range all {
		x = append(x, float64(g.Records))
		for i, d := range []time.Duration{g.First, g.Replay, g.RoundTrip} {
			lines[i].y = append(lines[i].y, float64(d)/float64(scale))
		}
	}
	if all[0].RoundTrip == 0 {
		lines = lines[:2]
	}
	return linePlot(title, unit, x, lines)
}
