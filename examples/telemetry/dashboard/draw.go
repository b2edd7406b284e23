package main

import (
	"bytes"
	"cmp"
	"fmt"
	"image/color"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// The size of the dashboard, whose panels stand in Grafana's grid of 24 columns.
const (
	gridColumns = 24
	columnWidth = 40
	rowHeight   = 22
	panelMargin = 8
)

var (
	ink    = color.Gray{0x30}
	faint  = color.Gray{0xdd}
	border = draw.LineStyle{Color: faint, Width: 1}
)

// palette has the colours of Okabe and Ito, because colour-blind readers can distinguish these colours, and greys.
var palette = []color.Color{
	color.RGBA{0x00, 0x72, 0xb2, 0xff}, color.RGBA{0xe6, 0x9f, 0x00, 0xff}, color.RGBA{0x00, 0x9e, 0x73, 0xff},
	color.RGBA{0xcc, 0x79, 0xa7, 0xff}, color.RGBA{0xd5, 0x5e, 0x00, 0xff}, color.RGBA{0x56, 0xb4, 0xe9, 0xff},
	color.Gray{0x60}, color.Gray{0x90}, color.Gray{0xc0}, color.RGBA{0xf0, 0xe4, 0x42, 0xff}, color.Black,
}

// drawPanels returns the panels as an SVG.
func drawPanels(panels []panelData) []byte {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	plotter.DefaultFont = plot.DefaultFont
	rows := 0
	for _, p := range panels {
		rows = max(rows, p.GridPos.Y+p.GridPos.H)
	}
	width, height := vg.Length(gridColumns*columnWidth), vg.Length(rows*rowHeight)
	svg := vgsvg.New(width, height)
	page := draw.New(svg)
	page.SetColor(color.White)
	page.Fill(page.Rectangle.Path())
	for _, p := range panels {
		left, top := vg.Length(p.GridPos.X*columnWidth), height-vg.Length(p.GridPos.Y*rowHeight)
		frame := draw.Canvas{Canvas: page.Canvas, Rectangle: vg.Rectangle{
			Min: vg.Point{X: left + panelMargin/2, Y: top - vg.Length(p.GridPos.H*rowHeight) + panelMargin/2},
			Max: vg.Point{X: left + vg.Length(p.GridPos.W*columnWidth) - panelMargin/2, Y: top - panelMargin/2},
		}}
		p.drawPanel(frame)
	}
	var b bytes.Buffer
	_, _ = svg.WriteTo(&b) // a write to a buffer cannot fail
	return bytes.ReplaceAll(b.Bytes(), []byte("font-family:Liberation Sans"), []byte("font-family:Liberation Sans,Arial,sans-serif"))
}

// textStyle returns the style of text with the given font size.
func textStyle(size vg.Length) text.Style {
	return text.Style{
		Color: ink, Font: font.From(plot.DefaultFont, size), Handler: plot.DefaultTextHandler, YAlign: text.YTop,
	}
}

// drawPanel draws the frame of the panel, the title and the data.
func (p *panelData) drawPanel(c draw.Canvas) {
	c.SetLineStyle(border)
	c.Stroke(c.Rectangle.Path())
	c = draw.Crop(c, panelMargin, -panelMargin, panelMargin, -panelMargin)
	c.FillText(textStyle(12), vg.Point{X: c.Min.X, Y: c.Max.Y}, p.Title)
	c = draw.Crop(c, 0, 0, 0, -20)
	if p.Type == "stat" {
		c.FillText(textStyle(30), vg.Point{X: c.Min.X, Y: c.Max.Y - 4}, fmt.Sprintf("%.0f", p.total))
		return
	}
	p.drawLines(draw.Crop(c, 0, 0, p.drawLegend(c), 0))
}

// drawLegend writes the legends of the series at the bottom of c, and returns the height of the text.
func (p *panelData) drawLegend(c draw.Canvas) vg.Length {
	const line, swatch = 13, 8
	names, x, lines := textStyle(9), c.Min.X, 1
	type position struct {
		left       vg.Length
		lineNumber int
	}
	places := make([]position, len(p.series))
	for i, s := range p.series {
		width := names.Width(s.legend)*6/5 + 2*swatch + 6 // a fifth more, because the reader's font may be wider
		if x+width > c.Max.X && x > c.Min.X {
			x, lines = c.Min.X, lines+1
		}
		places[i] = position{x, lines}
		x += width
	}
	for i, s := range p.series {
		y := c.Min.Y + vg.Length(lines-places[i].lineNumber+1)*line
		c.SetColor(p.seriesColour(i))
		c.Fill(vg.Rectangle{
			Min: vg.Point{X: places[i].left, Y: y - swatch - 1}, Max: vg.Point{X: places[i].left + swatch, Y: y - 1},
		}.Path())
		c.FillText(names, vg.Point{X: places[i].left + swatch + 4, Y: y}, s.legend)
	}
	return vg.Length(lines)*line + 4
}

func (p *panelData) seriesColour(i int) color.Color { return palette[i%len(palette)] }

// drawLines draws the series, as areas or as lines, with the axes.
func (p *panelData) drawLines(c draw.Canvas) {
	chart := plot.New()
	chart.BackgroundColor = nil
	chart.X.Min, chart.X.Max, chart.Y.Min, chart.Y.Max = 0, p.durationSeconds, 0, p.highestValue()*1.05
	chart.X.Tick.Marker, chart.Y.Tick.Marker = plot.TickerFunc(p.markTimes), plot.TickerFunc(p.markValues)
	for _, axis := range []*plot.Axis{&chart.X, &chart.Y} {
		axis.LineStyle.Color, axis.Tick.LineStyle.Color, axis.Tick.Length = faint, faint, 3
		axis.Tick.Label.Font.Size, axis.Tick.Label.Color, axis.Padding = 9, ink, 0
	}
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = nil, faint
	chart.Add(grid)
	if p.isStacked() {
		p.addStack(chart)
	} else {
		for i, s := range p.series {
			chart.Add(&plotter.Line{
				XYs: makePoints(s.elapsedSeconds, s.values), LineStyle: draw.LineStyle{Color: p.seriesColour(i), Width: 1.4},
			})
		}
	}
	chart.Draw(c)
}

// isStacked reports whether the panel shows the sum of the series.
func (p *panelData) isStacked() bool { return p.FieldConfig.Defaults.Custom.Stacking.Mode == "normal" }

// addStack adds each series to chart as an area on top of the previous areas.
func (p *panelData) addStack(chart *plot.Plot) {
	floor := make([]float64, int(p.durationSeconds)+2)
	for i, s := range p.series {
		ceiling := slices.Clone(floor)
		for j, elapsed := range s.elapsedSeconds {
			ceiling[int(math.Round(elapsed))] += s.values[j]
		}
		var outline plotter.XYs
		for x, y := range ceiling {
			outline = append(outline, plotter.XY{X: float64(x), Y: y})
		}
		for x, y := range slices.Backward(floor) {
			outline = append(outline, plotter.XY{X: float64(x), Y: y})
		}
		chart.Add(&plotter.Polygon{XYs: []plotter.XYs{outline}, Color: p.seriesColour(i)})
		floor = ceiling
	}
}

// highestValue returns the largest value on the chart, and 1 if all values are zero.
func (p *panelData) highestValue() (highest float64) {
	sums := make([]float64, int(p.durationSeconds)+2)
	for _, s := range p.series {
		for i, value := range s.values {
			at := int(math.Round(s.elapsedSeconds[i]))
			if !p.isStacked() {
				sums[at] = 0
			}
			sums[at] += value
			highest = max(highest, sums[at])
		}
	}
	return cmp.Or(highest, 1)
}

func makePoints(x, y []float64) plotter.XYs {
	xys := make(plotter.XYs, len(x))
	for i := range x {
		xys[i] = plotter.XY{X: x[i], Y: y[i]}
	}
	return xys
}

// markTimes returns a tick for each half minute.
func (p *panelData) markTimes(_, most float64) (ticks []plot.Tick) {
	for t := 0.0; t <= most; t += 30 {
		ticks = append(ticks, plot.Tick{Value: t, Label: fmt.Sprintf("%d:%02d", int(t)/60, int(t)%60)})
	}
	return ticks
}

// markValues returns ticks for at most six round values, with the unit of the panel.
func (p *panelData) markValues(least, most float64) (ticks []plot.Tick) {
	step := math.Pow(10, math.Floor(math.Log10(most)))
	for _, part := range []float64{.1, .2, .5, 1, 2} {
		if most <= 5*part*step {
			step *= part
			break
		}
	}
	for n := 0.0; n*step <= most; n++ {
		ticks = append(ticks, plot.Tick{Value: n * step, Label: p.formatLabel(n * step)})
	}
	return ticks
}

// formatLabel returns v with the unit of the panel.
func (p *panelData) formatLabel(v float64) string {
	switch unit := p.FieldConfig.Defaults.Unit; {
	case v == 0:
		return "0"
	case unit == "s" && v < 1:
		return fmt.Sprintf("%.3g ms", v*1000)
	case unit == "s":
		return fmt.Sprintf("%.3g s", v)
	case unit == "Bps" && v >= 1000:
		return fmt.Sprintf("%.3g kB/s", v/1000)
	case unit == "Bps":
		return fmt.Sprintf("%.3g B/s", v)
	case unit == "reqps":
		return fmt.Sprintf("%.3g/s", v)
	default:
		return fmt.Sprintf("%.3g", v)
	}
}
