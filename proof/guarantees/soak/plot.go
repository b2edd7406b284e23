package soak

import (
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
)

// The size of the plot of one series, and of the margin around the plot.
const (
	plotWidth, plotHeight = 360, 100
	plotMargin            = 24
)

// Plot writes an SVG to w that shows the series over time, two series in a row.
func Plot(w io.Writer, series []Series) error {
	const columns, across, down = 2, plotWidth + 2*plotMargin, plotHeight + 2*plotMargin
	type panel struct {
		X, Y                int
		Title, Line, Colour string
	}
	var panels []panel
	for i, s := range series {
		colour := "steelblue"
		if s.Grows() {
			colour = "crimson"
		}
		panels = append(panels, panel{
			i%columns*across + plotMargin, i/columns*down + plotMargin, s.String(), s.polylinePoints(), colour,
		})
	}
	rows := (len(series) + columns - 1) / columns
	return svgPlot.Execute(w, map[string]any{"Width": columns * across, "Height": rows * down, "Panels": panels})
}

var svgPlot = template.Must(template.New("").Parse(`<svg xmlns="http://www.w3.org/2000/svg" width="{{.Width}}" height="{{.Height}}"
 font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>
{{- range .Panels}}
<g transform="translate({{.X}} {{.Y}})"><text y="-6">{{.Title}}</text>
<rect width="360" height="100" fill="none" stroke="silver"/>
<polyline points="{{.Line}}" fill="none" stroke="{{.Colour}}"/></g>
{{- end}}
</svg>
`))

// polylinePoints returns the points of the series in a plot whose vertical axis begins at zero.
func (s Series) polylinePoints() string {
	var points strings.Builder
	highest := max(1, slices.Max(append([]float64{0}, s.Values...)))
	for i, value := range s.Values {
		x := float64(i) * plotWidth / float64(max(1, len(s.Values)-1))
		fmt.Fprintf(&points, "%.1f,%.1f ", x, plotHeight*(1-value/highest))
	}
	return points.String()
}

// String returns the medians of the second and last third, the highest value, and the verdict of Grows.
func (s Series) String() string {
	middle, end := s.Ends()
	verdict := "flat"
	if s.Grows() {
		verdict = "GROWS"
	}
	highest := slices.Max(append([]float64{0}, s.Values...))
	return fmt.Sprintf("%s: %.4g, then %.4g, at most %.4g: %s", s.Name, middle, end, highest, verdict)
}
