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

// style says whether there are colours.
type style bool

// styleOf returns colours for a terminal that can show them, unless the environment has NO_COLOR (https://no-color.org).
func styleOf(out *os.File, env func(string) (string, bool)) style {
	no, _ := env("NO_COLOR")
	kind, _ := env("TERM")
	return style(no == "" && kind != "dumb" && term.IsTerminal(int(out.Fd())))
}

// The colours have codes of one length, so that columns of coloured cells are still aligned.
const (
	plain  = "39"
	red    = "31"
	green  = "32"
	yellow = "33"
	blue   = "34"
)

func (s style) colour(code, text string) string {
	if !s {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

var stateColours = map[idempotency.State]string{
	idempotency.StateRunning: blue, idempotency.StateAbandoned: red,
	idempotency.StateReleased: yellow, idempotency.StateCompleted: green,
}

func (s style) state(state idempotency.State) string {
	code, ok := stateColours[state]
	if !ok {
		code = plain
	}
	return s.colour(code, visible.Text(string(state)))
}

// table writes aligned rows. The cells are visible already.
type table struct{ w *tabwriter.Writer }

func newTable(w io.Writer) table { return table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)} }

func (t table) row(cells ...any) {
	for i, cell := range cells {
		if i > 0 {
			fmt.Fprint(t.w, "\t")
		}
		fmt.Fprint(t.w, cell)
	}
	fmt.Fprintln(t.w)
}

// rows writes a row for each value, with the name in the first one.
func (t table) rows(name string, values []string) {
	for i, value := range values {
		t.row([]string{name, ""}[min(i, 1)], visible.Text(value))
	}
}

func (t table) flush() { _ = t.w.Flush() }
