package main

import (
	"fmt"
	"strings"

	bm "github.com/idempotency-go/idempotency/proof/benchmark"
)

// plotName is the file of the plot.
const plotName = "cost.svg"

// The plot has a bar for each subject, below one another. It has no background, and its colours can be read on a light and
// on a dark page.
const (
	plotWidth = 680
	plotLeft  = 150 // where the bars begin
	plotUnit  = 280 // how long one is that takes as much as the least
	plotTop   = 28

	barHeight, barStep, groupGap = 15, 19, 10

	grey, blue, orange = "#737c86", "#3b82c4", "#c9772b"
)

// plot draws the processor time over HTTP, beside that of the least.
func (r *results) plot() string {
	var b strings.Builder
	text(&b, 0, 12, "processor time of a request over HTTP: client, server and store together, beside the least")
	y := plotTop
	for _, store := range []bm.Store{bm.InMemory, bm.InRedis, bm.InPostgres, bm.RowsInPostgres} {
		for _, c := range r.on(store, true) {
			text(&b, 0, y+12, fmt.Sprintf("%s, %s", c.store, c.scenario.Path))
			for i := range c.subjects {
				bar(&b, y, c, i)
				y += barStep
			}
			y += groupGap
		}
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" `+
		`font-family="sans-serif" font-size="12" fill="%s">`+"\n%s</svg>\n", plotWidth, y, grey, &b)
}

// bar draws what one subject takes.
func bar(b *strings.Builder, y int, c comparison, i int) {
	subject, ratio := c.subjects[i], c.Ratio(i, 0, bm.Processor).Median
	length := int(ratio*plotUnit + 0.5)
	fmt.Fprintf(b, `<rect x="%d" y="%d" width="%d" height="%d" fill="%s"/>`+"\n", plotLeft, y, length, barHeight, colour(subject))
	text(b, plotLeft+length+6, y+12, fmt.Sprintf("%.2f  %s", ratio, label(subject)))
}

func text(b *strings.Builder, x, y int, s string) {
	fmt.Fprintf(b, `<text x="%d" y="%d">%s</text>`+"\n", x, y, s)
}

// label is the name of a subject without its store, which is said at the left.
func label(s *bm.Subject) string {
	switch colour(s) {
	case blue:
		return "this library"
	case orange:
		return "fiber v3, on fasthttp"
	default:
		name, _, _ := strings.Cut(s.Name, ",")
		return name
	}
}

func colour(s *bm.Subject) string {
	switch {
	case s.Mark == bm.ReplayMark:
		return blue
	case s == bm.FiberMemory, s == bm.FiberRedis:
		return orange
	default:
		return grey
	}
}
