package idempotency

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// mostNote is how long a note may be.
const mostNote = 255

var errNoOperation = errors.New("idempotency: the context belongs to no operation")

// Annotate attaches a note to the operation that ctx belongs to, such as the ID of a payment or of a trace. The note is
// stored with the answer and never sent to a client. [Event] and [Entry] show it, also for a replay. If a handler calls
// Annotate again, the last note counts. A note that comes after the handler has returned may not be stored. The note is
// lost if the answer is not kept, or is larger than Options.MaxResponse.
//
// A note has at most 255 bytes. They are visible ASCII characters and spaces, with no space at the beginning or the
// end. Annotate returns an error if a note has anything else, or if ctx belongs to no operation. It is safe for
// concurrent use.
func Annotate(ctx context.Context, note string) error {
	if len(note) > mostNote {
		return fmt.Errorf("idempotency: note of %d bytes; at most %d", len(note), mostNote)
	}
	if strings.TrimSpace(note) != note || strings.ContainsFunc(note, func(c rune) bool { return c < ' ' || c > '~' }) {
		return fmt.Errorf("idempotency: note %q: only visible ASCII characters, and spaces between them", note)
	}
	op := operationIn(ctx)
	if op == nil {
		return errNoOperation
	}
	op.note.Store(&note)
	return nil
}

// noteStart begins the line that a note is stored as. A field without a name cannot be set by anybody, see [NewFields].
const noteStart = ": "

// withNote returns resp as it is stored with a note. One whose fields are not kept stays as it is.
func (r Response) withNote(note *string) Response {
	if note != nil && *note != "" && !r.Omitted {
		r.Header = Fields(noteStart+*note+"\n") + r.Header
	}
	return r
}

// CutNote returns a stored response as the handler answered it, and the note of its operation (see [Annotate]), if
// there is one. It is for stores that implement [Inspector]. A stored response has its note as the first line of
// Header: ": ", the note, and a newline. CutNote does not modify r.
func (r *Response) CutNote() (answer *Response, note string) {
	line, found := strings.CutPrefix(string(r.Header), noteStart)
	if !found {
		return r, ""
	}
	note, rest, _ := strings.Cut(line, "\n")
	bare := *r
	bare.Header = Fields(rest)
	return &bare, note
}
