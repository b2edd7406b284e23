// Package visible makes text and durations readable for people who look at the records of strangers.
package visible

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Text returns text that does nothing to a terminal, and that nobody can mistake for other text: what is not printable is
// written as in a string of Go, also a newline, and characters that change the direction of writing.
func Text(text string) string {
	if !strings.ContainsFunc(text, func(c rune) bool { return c == '\\' || c == utf8.RuneError || !strconv.IsPrint(c) }) {
		return text
	}
	quoted := strconv.Quote(text)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// Line is Text for a line without its end. Tabs stay.
func Line(line string) string { return strings.ReplaceAll(Text(line), `\t`, "\t") }

// Duration returns a duration, in at most two units.
func Duration(d time.Duration) string {
	switch {
	case d < time.Second:
		return "less than 1 s"
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute)
	default:
		return fmt.Sprintf("%d days", d/(24*time.Hour))
	}
}
