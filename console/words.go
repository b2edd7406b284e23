package console

import (
	"strings"
	"time"

	"github.com/idempotency-go/idempotency/internal/visible"
)

// escapeLines escapes invisible characters in each line of text. The template escapes HTML.
func escapeLines(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = visible.Line(line)
	}
	return strings.Join(lines, "\n")
}

// formatAge returns the time since t for people.
func formatAge(t time.Time) string {
	if d := time.Since(t); d >= time.Second {
		return visible.Duration(d) + " ago"
	}
	return "just now" // t is also in the future if the clock of the store is ahead
}
