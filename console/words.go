package console

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// visible returns text that nobody can mistake for other text: what is not printable is written as in a string of Go,
// also a newline, and characters that change the direction of writing. The template escapes the rest.
func visible(text string) string {
	if !strings.ContainsFunc(text, func(c rune) bool { return c == '\\' || c == utf8.RuneError || !strconv.IsPrint(c) }) {
		return text
	}
	quoted := strconv.Quote(text)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// visibleLines is visible for text of several lines.
func visibleLines(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.ReplaceAll(visible(line), `\t`, "\t")
	}
	return strings.Join(lines, "\n")
}

// ago says how long something is ago.
func ago(t time.Time) string {
	if d := time.Since(t); d >= time.Second {
		return span(d) + " ago"
	}
	return "just now" // or by another clock
}

// span returns a duration for people.
func span(d time.Duration) string {
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
