package main

import (
	"fmt"
	"strings"

	bm "github.com/idempotency-go/idempotency/proof/benchmark"
)

// The plot is transparent. The colours can be read on a light and on a dark page.
const (
	grey, blue, orange = "#737c86", "#3b82c4", "#c9772b"

	barsLeft  = 200
	barUnit   = 130 // length of a bar with ratio 1, because a bar with ratio 2 must leave room for the name
	barHeight = 15
)

// plotCost draws a bar for each subject: the processor time, divided by the processor time of the least.
func plotCost(compared []comparison) string {
	var b strings.Builder
	drawText(&b, 0, 12, "processor time of a request over HTTP: clients, server and store together, beside the least")
	y := 28
	for _, c := range compared {
		if len(c.subjects) == 1 { // a single subject is compared with nothing
			continue
		}
		drawText(&b, 0, y+12, fmt.Sprintf("%s, %s", c.store, requestName(c.path)))
		for i, s := range c.subjects {
			colour, ratio := grey, c.withManyClients.Ratio(i, 0)
			switch {
			case s.Mark == bm.ReplayMark:
				colour = blue
			case s == bm.FiberMemory, s == bm.FiberRedis:
				colour = orange
			}
			length := int(ratio*barUnit + 0.5)
			fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%d" height="%d" fill="%s"/>`+"\n", barsLeft, y, length, barHeight, colour)
			drawText(&b, barsLeft+length+6, y+12, fmt.Sprintf("%.2f  %s", ratio, s.Name))
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
