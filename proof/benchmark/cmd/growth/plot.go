package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// panel is a plot of one figure by another, which grows by factors. Each store has a line.
type panel struct {
	title  string
	across string // what x counts
	points map[string][]point
}

type point struct{ x, y float64 }

// colours can be read on a light and on a dark page.
var colours = map[string]string{
	"memory": "#737c86", "Redis": "#d1495b", "SQLite": "#8a63b8", "PostgreSQL": "#3b82c4", "MariaDB": "#c9772b",
}

const (
	panelWidth, panelHeight = 300, 150
	panelLeft, panelTop     = 54, 30
	panelRight, panelBottom = 26, 34
)

func plotSizes(sizes []size) string {
	by := func(value func(size) float64) map[string][]point {
		points := make(map[string][]point)
		for _, s := range sizes {
			points[s.store] = append(points[s.store], point{float64(s.records), value(s)})
		}
		return points
	}
	micros := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
	return draw([]panel{
		{"first, us (median)", "records", by(func(s size) float64 { return micros(s.claim.median) })},
		{"replay, us (median)", "records", by(func(s size) float64 { return micros(s.replay.median) })},
		{"first while a tenth expires, us (99 of 100)", "records", by(func(s size) float64 { return micros(s.expiring.slow) })},
		{"bytes of a record", "records", by(func(s size) float64 { return float64(s.bytes) })},
	})
}

func plotConnections(loads []load) string {
	by := func(value func(load) float64) map[string][]point {
		points := make(map[string][]point)
		for _, l := range loads {
			points[l.store] = append(points[l.store], point{float64(l.workers), value(l)})
		}
		return points
	}
	return draw([]panel{
		{"first executions a second", "connections", by(func(l load) float64 { return l.first })},
		{"replays a second", "connections", by(func(l load) float64 { return l.replay })},
	})
}

// draw puts two panels in a row, and below them which colour is which store.
func draw(panels []panel) string {
	const across, down = panelLeft + panelWidth + panelRight, panelTop + panelHeight + panelBottom
	var b strings.Builder
	for i, p := range panels {
		fmt.Fprintf(&b, `<g transform="translate(%d %d)">`+"\n", i%2*across+panelLeft, i/2*down+panelTop)
		p.draw(&b)
		b.WriteString("</g>\n")
	}
	height := (len(panels)+1)/2*down + 20
	for i, store := range []string{"memory", "Redis", "SQLite", "PostgreSQL", "MariaDB"} {
		fmt.Fprintf(&b, `<text x="%d" y="%d" fill="%s">%s</text>`+"\n", panelLeft+i*110, height-8, colours[store], store)
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" `+
		`font-family="sans-serif" font-size="11" fill="#737c86">`+"\n%s</svg>\n", 2*across, height, &b)
}

// draw draws a panel with logarithmic axes.
func (p panel) draw(b *strings.Builder) {
	fmt.Fprintf(b, `<text y="-10" font-size="12">%s</text>`+"\n"+
		`<rect width="%d" height="%d" fill="none" stroke="silver"/>`+"\n", p.title, panelWidth, panelHeight)
	all := slices.Concat(slices.Collect(maps.Values(p.points))...)
	x, y := axisOf(all, func(p point) float64 { return p.x }), axisOf(all, func(p point) float64 { return p.y })
	for _, tick := range y.ticks() {
		at := panelHeight * (1 - y.place(tick))
		fmt.Fprintf(b, `<path d="M0 %.1fH%d" stroke="silver" stroke-width="0.4"/><text x="-5" y="%.1f" text-anchor="end">%s</text>`+"\n",
			at, panelWidth, at+4, short(tick))
	}
	for _, tick := range x.ticks() {
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", panelWidth*x.place(tick), panelHeight+14, short(tick))
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", panelWidth/2, panelHeight+27, p.across)
	for _, store := range slices.Sorted(maps.Keys(p.points)) {
		var line strings.Builder
		for _, at := range p.points[store] {
			fmt.Fprintf(&line, "%.1f,%.1f ", panelWidth*x.place(at.x), panelHeight*(1-y.place(at.y)))
		}
		fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="1.6"/>`+"\n", line.String(), colours[store])
	}
}

// axis goes from one power of ten to another.
type axis struct{ low, high float64 }

func axisOf(points []point, value func(point) float64) axis {
	low, high := math.Inf(1), math.Inf(-1)
	for _, p := range points {
		low, high = min(low, math.Log10(value(p))), max(high, math.Log10(value(p)))
	}
	return axis{math.Floor(low), math.Ceil(high)}
}

// place is where a value is, from 0 to 1.
func (a axis) place(value float64) float64 { return (math.Log10(value) - a.low) / (a.high - a.low) }

func (a axis) ticks() (ticks []float64) {
	for power := a.low; power <= a.high; power++ {
		ticks = append(ticks, math.Pow(10, power))
	}
	return ticks
}

func short(value float64) string {
	switch {
	case value >= 1e6:
		return fmt.Sprintf("%gM", value/1e6)
	case value >= 1e3:
		return fmt.Sprintf("%gk", value/1e3)
	default:
		return fmt.Sprintf("%g", value)
	}
}
