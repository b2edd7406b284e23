package console

import (
	"strings"
	"time"

	"github.com/idempotency-go/idempotency/internal/visible"
)

// visibleLines is visible.Text for text of several lines. The template escapes the rest.
func visibleLines(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = visible.Line(line)
	}
	return strings.Join(lines, "\n")
}

// ago says how long something is ago.
func ago(t time.Time) string {
	if d := time.Since(t); d >= time.Second {
		return visible.Duration(d) + " ago"
	}
	return "just now" // or by another clock
}
