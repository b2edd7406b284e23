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

// The size of the dashboard: Grafana's grid has 24 columns.
const (
	columns = 24
	column  = 40
	row     = 22
	margin  = 8
)

var (
	ink    = color.Gray{0x30}
	faint  = color.Gray{0xdd}
	border = draw.LineStyle{Color: faint, Width: 1}
)

// palette is that of Okabe and Ito, which the colour-blind can tell apart, and greys.
var palette = []color.Color{
	color.RGBA{0x00, 0x72, 0xb2, 0xff}, color.RGBA{0xe6, 0x9f, 0x00, 0xff}, color.RGBA{0x00, 0x9e, 0x73, 0xff},
	color.RGBA{0xcc, 0x79, 0xa7, 0xff}, color.RGBA{0xd5, 0x5e, 0x00, 0xff}, color.RGBA{0x56, 0xb4, 0xe9, 0xff},
	color.Gray{0x60}, color.Gray{0x90}, color.Gray{0xc0}, color.RGBA{0xf0, 0xe4, 0x42, 0xff}, color.Black,
}

// drawPanels returns the panels as an SVG.
func drawPanels(panels []shown) []byte {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	plotter.DefaultFont = plot.DefaultFont
	rows := 0
	for _, p := range panels {
		rows = max(rows, p.GridPos.Y+p.GridPos.H)
	}
	width, height := vg.Length(columns*column), vg.Length(rows*row)
	svg := vgsvg.New(width, height)
	page := draw.New(svg)
	page.SetColor(color.White)
	page.Fill(page.Rectangle.Path())
	for _, p := range panels {
		left, top := vg.Length(p.GridPos.X*column), height-vg.Length(p.GridPos.Y*row)
		frame := draw.Canvas{Canvas: page.Canvas, Rectangle: vg.Rectangle{
			Min: vg.Point{X: left + margin/2, Y: top - vg.Length(p.GridPos.H*row) + margin/2},
			Max: vg.Point{X: left + vg.Length(p.GridPos.W*column) - margin/2, Y: top - margin/2},
		}}
		p.draw(frame)
	}
	var b bytes.Buffer
	_, _ = svg.WriteTo(&b) // a buffer takes everything
	return bytes.ReplaceAll(b.Bytes(), []byte("font-family:Liberation Sans"), []byte("font-family:Liberation Sans,Arial,sans-serif"))
}

func style(size vg.Length) text.Style {
	return text.Style{
		Color: ink, Font: font.From(plot.DefaultFont, size), Handler: plot.DefaultTextHandler, YAlign: text.YTop,
	}
}

func (p *shown) draw(c draw.Canvas) {
	c.SetLineStyle(border)
	c.Stroke(c.Rectangle.Path())
	c = draw.Crop(c, margin, -margin, margin, -margin)
	c.FillText(style(12), vg.Point{X: c.Min.X, Y: c.Max.Y}, p.Title)
	c = draw.Crop(c, 0, 0, 0, -20)
	if p.Type == "stat" {
		c.FillText(style(30), vg.Point{X: c.Min.X, Y: c.Max.Y - 4}, fmt.Sprintf("%.0f", p.number))
		return
	}
	p.drawLines(draw.Crop(c, 0, 0, p.drawLegend(c), 0))
}

// drawLegend writes the names of the series at the bottom, and returns how high that is.
func (p *shown) drawLegend(c draw.Canvas) vg.Length {
	const line, swatch = 13, 8
	names, x, lines := style(9), c.Min.X, 1
	type entry struct {
		x    vg.Length
		line int
	}
	places := make([]entry, len(p.series))
	for i, s := range p.series {
		width := names.Width(s.name)*6/5 + 2*swatch + 6 // other fonts than ours may be wider
		if x+width > c.Max.X && x > c.Min.X {
			x, lines = c.Min.X, lines+1
		}
		places[i] = entry{x, lines}
		x += width
	}
	for i, s := range p.series {
		y := c.Min.Y + vg.Length(lines-places[i].line+1)*line
		c.SetColor(p.colour(i))
		c.Fill(vg.Rectangle{
			Min: vg.Point{X: places[i].x, Y: y - swatch - 1}, Max: vg.Point{X: places[i].x + swatch, Y: y - 1},
		}.Path())
		c.FillText(names, vg.Point{X: places[i].x + swatch + 4, Y: y}, s.name)
	}
	return vg.Length(lines)*line + 4
}

func (p *shown) colour(i int) color.Color { return palette[i%len(palette)] }

func (p *shown) drawLines(c draw.Canvas) {
	chart := plot.New()
	chart.BackgroundColor = nil
	chart.X.Min, chart.X.Max, chart.Y.Min, chart.Y.Max = 0, p.seconds, 0, p.highest()*1.05
	chart.X.Tick.Marker, chart.Y.Tick.Marker = plot.TickerFunc(p.times), plot.TickerFunc(p.values)
	for _, axis := range []*plot.Axis{&chart.X, &chart.Y} {
		axis.LineStyle.Color, axis.Tick.LineStyle.Color, axis.Tick.Length = faint, faint, 3
		axis.Tick.Label.Font.Size, axis.Tick.Label.Color, axis.Padding = 9, ink, 0
	}
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = nil, faint
	chart.Add(grid)
	if p.stacked() {
		p.addStack(chart)
	} else {
		for i, s := range p.series {
			chart.Add(&plotter.Line{XYs: points(s.x, s.y), LineStyle: draw.LineStyle{Color: p.colour(i), Width: 1.4}})
		}
	}
	chart.Draw(c)
}

func (p *shown) stacked() bool { return p.FieldConfig.Defaults.Custom.Stacking.Mode == "normal" }

// addStack adds each series as an area on top of those before it.
func (p *shown) addStack(chart *plot.Plot) {
	floor := make([]float64, int(p.seconds)+2)
	for i, s := range p.series {
		ceiling := slices.Clone(floor)
		for j, x := range s.x {
			ceiling[int(math.Round(x))] += s.y[j]
		}
		var outline plotter.XYs
		for x, y := range ceiling {
			outline = append(outline, plotter.XY{X: float64(x), Y: y})
		}
		for x, y := range slices.Backward(floor) {
			outline = append(outline, plotter.XY{X: float64(x), Y: y})
		}
		chart.Add(&plotter.Polygon{XYs: []plotter.XYs{outline}, Color: p.colour(i)})
		floor = ceiling
	}
}

// highest returns the largest value that is drawn.
func (p *shown) highest() (highest float64) {
	sums := make([]float64, int(p.seconds)+2)
	for _, s := range p.series {
		for i, y := range s.y {
			at := int(math.Round(s.x[i]))
			if !p.stacked() {
				sums[at] = 0
			}
			sums[at] += y
			highest = max(highest, sums[at])
		}
	}
	return cmp.Or(highest, 1)
}

func points(x, y []float64) plotter.XYs {
	xys := make(plotter.XYs, len(x))
	for i := range x {
		xys[i] = plotter.XY{X: x[i], Y: y[i]}
	}
	return xys
}

// times marks half minutes.
func (p *shown) times(_, most float64) (ticks []plot.Tick) {
	for t := 0.0; t <= most; t += 30 {
		ticks = append(ticks, plot.Tick{Value: t, Label: fmt.Sprintf("%d:%02d", int(t)/60, int(t)%60)})
	}
	return ticks
}

// values marks at most six round values, with their unit.
func (p *shown) values(least, most float64) (ticks []plot.Tick) {
	step := math.Pow(10, math.Floor(math.Log10(most)))
	for _, part := range []float64{.1, .2, .5, 1, 2} {
		if most <= 5*part*step {
			step *= part
			break
		}
	}
	for n := 0.0; n*step <= most; n++ {
		ticks = append(ticks, plot.Tick{Value: n * step, Label: p.label(n * step)})
	}
	return ticks
}

func (p *shown) label(v float64) string {
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
