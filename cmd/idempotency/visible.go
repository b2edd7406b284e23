package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/idempotency-go/idempotency/internal/visible"
)

// quoteLines escapes each line of text and puts prefix in front, so that no line of text looks like a line by the program.
func quoteLines(text, prefix string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		bare, _ := strings.CutSuffix(line, "\n")
		b.WriteString(prefix + visible.Line(bare) + "\n")
	}
	return b.String()
}

// writeJSON writes document as JSON with all unprintable characters escaped. JSON requires escapes only for ASCII control
// characters, but some terminals interpret other control characters as well.
func writeJSON(w io.Writer, document any) error {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(document); err != nil {
		return err
	}
	var safe strings.Builder
	for _, c := range b.String() { // characters beyond ASCII occur only in strings
		switch {
		case c == '\n' || c != utf8.RuneError && strconv.IsPrint(c):
			safe.WriteRune(c)
		case c > 0xFFFF:
			first, second := utf16.EncodeRune(c)
			fmt.Fprintf(&safe, `\u%04x\u%04x`, first, second)
		default:
			fmt.Fprintf(&safe, `\u%04x`, c)
		}
	}
	_, err := io.WriteString(w, safe.String())
	return err
}
