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

// Annotate attaches a note to the operation that ctx belongs to: the ID of a payment for the support, say, or of a trace.
// The note is stored with the answer of the operation and never sent to a client. [Event] and [Entry] have it, also those of
// a replay. The last note counts. It is lost if the answer is not kept, or larger than Options.MaxResponse.
//
// A note has at most 255 bytes of visible ASCII characters and spaces, and does not begin or end with a space. Annotate
// returns an error if it has not, or if ctx belongs to no operation. It is safe for concurrent use.
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

// CutNote returns a stored response as it was answered, and the note that [Annotate] has attached to its operation, if any.
// It is for stores that implement [Inspector]. A stored response has its note as the first line of Header, which is ": ",
// the note, and a newline. CutNote does not modify r.
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
