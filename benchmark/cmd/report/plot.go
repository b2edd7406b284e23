package main

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// svg is a plot in the making. Its colours can be told from a light and from a dark background.
type svg struct {
	strings.Builder
	width, height int
}

const style = `<style>
text { font: 12px system-ui, sans-serif; fill: #7d8590 }
.title { font-size: 14px; font-weight: 600 }
.value { font-size: 11px }
.grid { stroke: #8c959f; stroke-opacity: .35 }
.c0 { fill: #2f81f7; stroke: #2f81f7 } .c1 { fill: #db6d28; stroke: #db6d28 } .c2 { fill: #8957e5; stroke: #8957e5 }
.pale { opacity: .5 }
.line { fill: none; stroke-width: 2 }
</style>
`

func newSVG(width, height int, title string) *svg {
	s := &svg{width: width, height: height}
	fmt.Fprintf(s, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d">`+"\n",
		width, height)
	fmt.Fprintf(s, "<title>%s</title>\n%s", html.EscapeString(title), style)
	s.text(10, 20, "title", "start", title)
	return s
}

func (s *svg) end() string { return s.String() + "</svg>\n" }

func (s *svg) text(x, y float64, class, anchor, text string) {
	fmt.Fprintf(s, `<text x="%.1f" y="%.1f" class="%s" text-anchor="%s">%s</text>`+"\n",
		x, y, class, anchor, html.EscapeString(text))
}

func (s *svg) gridLine(x1, y1, x2, y2 float64) {
	fmt.Fprintf(s, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="grid"/>`+"\n", x1, y1, x2, y2)
}

// legend names the series, in the order of their colours.
func (s *svg) legend(y float64, names ...string) {
	x := 10.0
	for i, name := range names {
		fmt.Fprintf(s, `<circle cx="%.1f" cy="%.1f" r="4" class="c%d"/>`+"\n", x+4, y-4, i)
		s.text(x+13, y, "", "start", name)
		x += 40 + 7*float64(len(name))
	}
}

// bar is a group of bars of a chart.
type bar struct {
	name   string
	values []float64
	pale   bool // not measured in this run
}

// barChart draws horizontal bars; there is one colour a series.
func barChart(title string, series []string, bars []bar, format func(float64) string) string {
	const left, right, top, thick = 290.0, 60.0, 56.0, 13.0
	group := thick*float64(len(series)) + 12
	s := newSVG(760, int(top+group*float64(len(bars))+8), title)
	s.legend(40, series...)
	most := 0.0
	for _, b := range bars {
		for _, v := range b.values {
			most = max(most, v)
		}
	}
	scale := (float64(s.width) - left - right) / most
	for i, b := range bars {
		y := top + group*float64(i)
		s.text(left-8, y+group/2-2, "", "end", b.name)
		for j, v := range b.values {
			class := fmt.Sprintf("c%d", j)
			if b.pale {
				class += " pale"
			}
			fmt.Fprintf(s, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" class="%s" stroke="none"/>`+"\n",
				left, y+thick*float64(j), v*scale, thick-2, class)
			s.text(left+v*scale+5, y+thick*float64(j)+9, "value", "start", format(v))
		}
	}
	return s.end()
}

// series is a line of a plot.
type series struct {
	name string
	y    []float64
}

// linePlot draws lines over a logarithmic x axis. The y axis begins at zero, so that what is flat looks flat.
func linePlot(title, unit string, x []float64, lines []series) string {
	const left, right, top, bottom = 70.0, 40.0, 56.0, 36.0
	s := newSVG(720, 320, title)
	var names []string
	most := 0.0
	for _, l := range lines {
		names = append(names, l.name)
		for _, v := range l.y {
			most = max(most, v)
		}
	}
	s.legend(40, names...)
	width, height := float64(s.width)-left-right, float64(s.height)-top-bottom
	step := niceStep(most)
	ceiling := math.Ceil(most/step) * step
	px := func(v float64) float64 { return left + width*position(v, x[0], x[len(x)-1]) }
	py := func(v float64) float64 { return top + height*(1-v/ceiling) }
	for v := 0.0; v <= ceiling*1.001; v += step {
		s.gridLine(left, py(v), float64(s.width)-right, py(v))
		s.text(left-6, py(v)+4, "", "end", number(v)+" "+unit)
	}
	for _, v := range x {
		s.text(px(v), float64(s.height)-14, "", "middle", thousands(v))
	}
	for i, l := range lines {
		var points []string
		for j, v := range l.y {
			points = append(points, fmt.Sprintf("%.1f,%.1f", px(x[j]), py(v)))
			fmt.Fprintf(s, `<circle cx="%.1f" cy="%.1f" r="3.5" class="c%d"/>`+"\n", px(x[j]), py(v), i)
		}
		fmt.Fprintf(s, `<polyline points="%s" class="c%d line" style="fill:none"/>`+"\n", strings.Join(points, " "), i)
	}
	return s.end()
}

// dotPlot draws the values of each row on one logarithmic axis; there is one colour a series.
func dotPlot(title string, names []string, rows []bar, format func(float64) string) string {
	const left, right, top, high, bottom = 320.0, 40.0, 56.0, 26.0, 30.0
	s := newSVG(760, int(top+high*float64(len(rows))+bottom), title)
	s.legend(40, names...)
	least, most := math.Inf(1), 0.0
	for _, r := range rows {
		for _, v := range r.values {
			least, most = min(least, v), max(most, v)
		}
	}
	least, most = math.Pow(10, math.Floor(math.Log10(least))), math.Pow(10, math.Ceil(math.Log10(most)))
	px := func(v float64) float64 { return left + (float64(s.width)-left-right)*position(v, least, most) }
	floor := float64(s.height) - bottom
	for v := least; v <= most*1.001; v *= 10 {
		s.gridLine(px(v), top-6, px(v), floor)
		s.text(px(v), floor+16, "", "middle", format(v))
	}
	for i, r := range rows {
		y := top + high*(float64(i)+.5)
		s.text(left-10, y+4, "", "end", r.name)
		s.gridLine(px(r.values[0]), y, px(r.values[len(r.values)-1]), y)
		for j, v := range r.values {
			fmt.Fprintf(s, `<circle cx="%.1f" cy="%.1f" r="5" class="c%d"/>`+"\n", px(v), y, j)
		}
	}
	return s.end()
}

// position returns where v lies between from and to, on a logarithmic scale.
func position(v, from, to float64) float64 {
	if from == to {
		return .5
	}
	return math.Log(v/from) / math.Log(to/from)
}

// niceStep returns a round distance of about five lines up to most.
func niceStep(most float64) float64 {
	step := math.Pow(10, math.Floor(math.Log10(most/4)))
	for _, factor := range []float64{5, 2} {
		if step*factor <= most/4 {
			return step * factor
		}
	}
	return step
}

func thousands(v float64) string {
	if v >= 1e6 {
		return number(v/1e6) + " M"
	}
	return number(v/1e3) + " k"
}
