package main

import (
	"fmt"
	"strings"

	bm "github.com/idempotency-go/idempotency/proof/benchmark"
)

// The plots are transparent. The colours can be read on a light and on a dark page.
const (
	grey, blue, orange = "#737c86", "#3b82c4", "#c9772b"

	barsLeft  = 220
	barHeight = 15
)

// barGroup is a list of bars below each other, with a name at their left.
type barGroup struct {
	name string
	bars []bar
}

type bar struct {
	length        float64
	label, colour string
}

// plotCost draws a bar for each subject: the processor time, divided by the processor time of the least.
func plotCost(compared []comparison) string {
	const unit = 130 // length of a bar with ratio 1, because a bar with ratio 2 must leave room for the name
	var groups []barGroup
	for _, c := range compared {
		if len(c.subjects) == 1 { // a single subject is compared with nothing
			continue
		}
		g := barGroup{name: c.heading() + ", " + requestName(c.path)}
		for i, s := range c.subjects {
			ratio := c.withManyClients.Ratio(i, 0)
			g.bars = append(g.bars, bar{ratio * unit, fmt.Sprintf("%.2f  %s", ratio, nameInGroup(s)), colourOf(s)})
		}
		groups = append(groups, g)
	}
	return drawBars("processor time of a request over HTTP: clients, server and store together, beside the least", groups)
}

// plotLatency draws a bar for each subject: the median latency of a first request with one client.
func plotLatency(compared []comparison) string {
	const longest = 320 // because the bar must leave room for the name
	var groups []barGroup
	slowest := 0.0
	for _, c := range compared {
		if c.path != bm.First {
			continue
		}
		g := barGroup{name: c.heading()}
		for i, s := range c.subjects {
			median := c.withOneClient.Latency(i, 0.5)
			slowest = max(slowest, median.Seconds())
			g.bars = append(g.bars, bar{median.Seconds(), formatMilliseconds(median) + "  " + nameInGroup(s), colourOf(s)})
		}
		groups = append(groups, g)
	}
	for _, g := range groups {
		for i := range g.bars {
			g.bars[i].length *= longest / slowest
		}
	}
	return drawBars("latency of a first request over HTTP, in milliseconds: median, with one client", groups)
}

// colourOf returns the colour of the library, of fiber, or of what is written by hand.
func colourOf(s *bm.Subject) string {
	switch {
	case s.Mark == bm.ReplayMark:
		return blue
	case s == bm.FiberMemory, s == bm.FiberRedis:
		return orange
	}
	return grey
}

func drawBars(title string, groups []barGroup) string {
	var b strings.Builder
	drawText(&b, 0, 12, title)
	y := 28
	for _, g := range groups {
		drawText(&b, 0, y+12, g.name)
		for _, bar := range g.bars {
			length := int(bar.length + 0.5)
			fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%d" height="%d" fill="%s"/>`+"\n", barsLeft, y, length, barHeight, bar.colour)
			drawText(&b, barsLeft+length+6, y+12, bar.label)
			y += barHeight + 4
		}
		y += 10
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="760" height="%d" viewBox="0 0 760 %[1]d" `+
		`font-family="sans-serif" font-size="12" fill="%s">`+"\n%s</svg>\n", y, grey, b.String())
}

func drawText(b *strings.Builder, x, y int, s string) {
	fmt.Fprintf(b, `<text x="%d" y="%d">%s</text>`+"\n", x, y, s)
}
