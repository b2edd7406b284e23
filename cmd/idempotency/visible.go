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

// visibleLines is visible.Text for text of several lines. Each gets a mark in front, so that none is taken for the program's own.
func visibleLines(text, mark string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		bare, _ := strings.CutSuffix(line, "\n")
		b.WriteString(mark + visible.Line(bare) + "\n")
	}
	return b.String()
}

// writeJSON writes a document in which everything that is not printable is escaped, not only what JSON demands: some
// terminals obey also the control characters beyond ASCII.
func writeJSON(w io.Writer, document any) error {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(document); err != nil {
		return err
	}
	var safe strings.Builder
	for _, c := range b.String() { // what is not ASCII is within strings
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
