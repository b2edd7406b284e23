package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	bm "github.com/idempotency-go/idempotency/proof/benchmark"
)

// The plots have no background. Their colours can be read on a light and on a dark page.
const grey, blue, orange = "#737c86", "#3b82c4", "#c9772b"

var colours = map[bm.Store]string{
	bm.InMemory: grey, bm.InRedis: "#d1495b", bm.InSQLite: "#8a63b8", bm.InPostgres: blue, bm.InMariaDB: orange,
}

const (
	barsLeft  = 200
	barUnit   = 130 // the length of a bar whose ratio is one, so that a ratio of two leaves room for its name
	barHeight = 15
)

// plotCost draws the processor time of each subject beside that of the least, as a bar.
func plotCost(compared []comparison) string {
	var b strings.Builder
	text(&b, 0, 12, "processor time of a request over HTTP: clients, server and store together, beside the least")
	y := 28
	for _, c := range compared {
		if len(c.subjects) == 1 { // there is nothing to compare
			continue
		}
		text(&b, 0, y+12, fmt.Sprintf("%s, %s", c.store, requestName(c.path)))
		for i, s := range c.subjects {
			colour, ratio := grey, c.among.Ratio(i, 0)
			switch {
			case s.Mark == bm.ReplayMark:
				colour = blue
			case s == bm.FiberMemory, s == bm.FiberRedis:
				colour = orange
			}
			length := int(ratio*barUnit + 0.5)
			fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%d" height="%d" fill="%s"/>`+"\n", barsLeft, y, length, barHeight, colour)
			text(&b, barsLeft+length+6, y+12, fmt.Sprintf("%.2f  %s", ratio, s.Name))
			y += barHeight + 4
		}
		y += 10
	}
	return svg(760, y, b.String())
}

// panel is a plot with logarithmic axes, which has a line for each store.
type panel struct {
	title, across string
	points        map[bm.Store][][2]float64
}

const panelWidth, panelHeight, marginLeft, marginTop = 300, 150, 54, 30

func plotGrowth(r *results) string {
	panels := []panel{
		{"first, ms (p50)", "records", map[bm.Store][][2]float64{}},
		{"replay, ms (p50)", "records", map[bm.Store][][2]float64{}},
		{"first executions a second", "connections", map[bm.Store][][2]float64{}},
		{"replays a second", "connections", map[bm.Store][][2]float64{}},
	}
	add := func(panel int, store bm.Store, x int, y float64) {
		points := panels[panel].points
		points[store] = append(points[store], [2]float64{float64(x), y})
	}
	for _, s := range r.sizes {
		if s.store != bm.InDynamoDB {
			add(0, s.store, s.records, s.first.median.Seconds()*1e3)
			add(1, s.store, s.records, s.replay.median.Seconds()*1e3)
		}
	}
	for _, l := range r.rates {
		add(2, l.store, l.workers, l.first)
		add(3, l.store, l.workers, l.replay)
	}
	const right, down = marginLeft + panelWidth + 26, marginTop + panelHeight + 34
	var b strings.Builder
	for i, p := range panels {
		fmt.Fprintf(&b, `<g transform="translate(%d %d)">`+"\n", i%2*right+marginLeft, i/2*down+marginTop)
		p.draw(&b)
		b.WriteString("</g>\n")
	}
	for i, store := range []bm.Store{bm.InMemory, bm.InRedis, bm.InSQLite, bm.InPostgres, bm.InMariaDB} {
		fmt.Fprintf(&b, `<text x="%d" y="%d" fill="%s">%s</text>`+"\n", marginLeft+i*110, 2*down+12, colours[store], store)
	}
	return svg(2*right, 2*down+20, b.String())
}

func (p panel) draw(b *strings.Builder) {
	text(b, 0, -10, p.title)
	fmt.Fprintf(b, `<rect width="%d" height="%d" fill="none" stroke="silver"/>`+"\n", panelWidth, panelHeight)
	low, high := [2]float64{math.Inf(1), math.Inf(1)}, [2]float64{math.Inf(-1), math.Inf(-1)} // powers of ten
	for _, points := range p.points {
		for _, point := range points {
			for axis, value := range point {
				low[axis] = min(low[axis], math.Floor(log10(value)))
				high[axis] = max(high[axis], math.Ceil(log10(value)))
			}
		}
	}
	x := func(power float64) float64 { return panelWidth * (power - low[0]) / max(1, high[0]-low[0]) }
	y := func(power float64) float64 { return panelHeight * (1 - (power-low[1])/max(1, high[1]-low[1])) }
	for power := low[1]; power <= high[1]; power++ {
		fmt.Fprintf(b, `<text x="-5" y="%.1f" text-anchor="end">%g</text>`+"\n", y(power)+4, math.Pow(10, power))
	}
	for power := low[0]; power <= high[0]; power++ {
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%g</text>`+"\n", x(power), panelHeight+14, math.Pow(10, power))
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", panelWidth/2, panelHeight+27, p.across)
	for _, store := range slices.Sorted(maps.Keys(p.points)) {
		var line strings.Builder
		for _, point := range p.points[store] {
			fmt.Fprintf(&line, "%.1f,%.1f ", x(log10(point[0])), y(log10(point[1])))
		}
		fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="1.6"/>`+"\n", line.String(), colours[store])
	}
}

func text(b *strings.Builder, x, y int, s string) {
	fmt.Fprintf(b, `<text x="%d" y="%d">%s</text>`+"\n", x, y, s)
}

func svg(width, height int, content string) string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" `+
		`font-family="sans-serif" font-size="12" fill="%s">`+"\n%s</svg>\n", width, height, grey, content)
}

// log10 takes a figure that could not be measured for a very small one, because an axis cannot begin at zero.
func log10(x float64) float64 { return math.Log10(max(x, 1e-6)) }
