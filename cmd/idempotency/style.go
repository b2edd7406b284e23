package main

import (
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"golang.org/x/term"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/visible"
)

// colourMode is true if the output has colours.
type colourMode bool

// detectColour turns colours on for a terminal with colours, unless the environment has NO_COLOR (https://no-color.org).
func detectColour(out *os.File, env func(string) (string, bool)) colourMode {
	no, _ := env("NO_COLOR")
	kind, _ := env("TERM")
	return colourMode(no == "" && kind != "dumb" && term.IsTerminal(int(out.Fd())))
}

// All colour codes have the same length, so that tabwriter aligns columns of coloured cells.
const (
	plain  = "39"
	red    = "31"
	green  = "32"
	yellow = "33"
	blue   = "34"
)

func (s colourMode) colourText(code, text string) string {
	if !s {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

var stateColours = map[idempotency.State]string{
	idempotency.StateRunning: blue, idempotency.StateAbandoned: red,
	idempotency.StateReleased: yellow, idempotency.StateCompleted: green,
}

func (s colourMode) colourState(state idempotency.State) string {
	code, ok := stateColours[state]
	if !ok {
		code = plain
	}
	return s.colourText(code, visible.Text(string(state)))
}

// clearLine makes the next text replace the present line of a terminal.
const clearLine = "\r\x1b[K"

// alignedTable prints rows in aligned columns. The caller has escaped the cells.
type alignedTable struct{ tabWriter *tabwriter.Writer }

func newTable(w io.Writer) alignedTable { return alignedTable{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)} }

func (t alignedTable) writeRow(cells ...any) {
	for i, cell := range cells {
		if i > 0 {
			fmt.Fprint(t.tabWriter, "\t")
		}
		fmt.Fprint(t.tabWriter, cell)
	}
	fmt.Fprintln(t.tabWriter)
}

// writeRows prints a row for each value, with name in the first row.
func (t alignedTable) writeRows(name string, values []string) {
	for i, value := range values {
		t.writeRow([]string{name, ""}[min(i, 1)], visible.Text(value))
	}
}

func (t alignedTable) flush() { _ = t.tabWriter.Flush() }
