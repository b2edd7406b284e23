// Package visible formats text and durations for operators, who look at records with untrusted content.
package visible

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Text returns text in a form that is harmless to a terminal and unambiguous: unprintable characters, newlines and
// characters that change the direction of writing are escaped as in a Go string.
func Text(text string) string {
	if !strings.ContainsFunc(text, func(c rune) bool { return c == '\\' || c == utf8.RuneError || !strconv.IsPrint(c) }) {
		return text
	}
	quoted := strconv.Quote(text)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// Line is like Text for a line without its newline, and keeps tabs.
func Line(line string) string { return strings.ReplaceAll(Text(line), `\t`, "\t") }

// Duration formats a duration with at most two units.
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
