package bounds

import (
	"errors"
	"fmt"
	"io"
	"net/http"
)

// Reasons for which ReadBody gives up. Any other error is that of the body.
var (
	ErrTooLarge = errors.New("over the limit")
	ErrNoRoom   = errors.New("no room for the body")
)

// largestRead bounds the room for a body at first, whatever the request announces: an announcement costs its sender
// nothing.
const largestRead = 32 << 10

// noBody is the buffer of requests without a body.
var noBody = new(Buffer)

// ReadBody reads the whole body of r, which must not have more than limit bytes. ReadBody takes the capacity of the buffer
// from what user may hold of budget, and the caller gives that capacity back, also after an error. If r announces more
// than limit bytes, ReadBody fails without reading.
//
//   - ErrTooLarge: the body has more than limit bytes, or more than an [http.MaxBytesReader] around it allows.
//   - ErrNoRoom: the budget is used up.
//   - Any other error: the body breaks off.
func ReadBody(r *http.Request, limit int64, budget *Shares, user string) (*Buffer, error) {
	if r.ContentLength > limit {
		return noBody, fmt.Errorf("%w of %d bytes: %d are announced", ErrTooLarge, limit, r.ContentLength)
	}
	if r.Body == nil || r.Body == http.NoBody {
		return noBody, nil
	}
	first := min(max(r.ContentLength, smallest), largestRead)
	if !budget.Take(user, Room(first)) {
		return noBody, ErrNoRoom
	}
	b := NewBuffer(int(first))
	for {
		space := b.B[len(b.B):cap(b.B)]
		full := len(space) == 0
		if full {
			space = b.Next[:] // so that a body that fits needs no growth to meet its end
		}
		n, err := r.Body.Read(space)
		if int64(len(b.B)+n) > limit {
			return b, fmt.Errorf("%w of %d bytes", ErrTooLarge, limit)
		}
		switch {
		case !full:
			b.B = b.B[:len(b.B)+n]
		case n > 0:
			larger := min(doubled(b, r.ContentLength), limit)
			if !budget.Take(user, Room(larger)-int64(cap(b.B))) {
				return b, ErrNoRoom
			}
			b.Grow(int(larger) - len(b.B))
			b.B = append(b.B, b.Next[0])
		}
		if err == io.EOF {
			return b, nil
		}
		if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge { // for a limit of outer middleware
			return b, fmt.Errorf("%w: %w", ErrTooLarge, err)
		}
		if err != nil {
			return b, err
		}
	}
}

// doubled returns the size to which a full buffer grows: twice as much, but not beyond what the request announces.
func doubled(b *Buffer, announced int64) int64 {
	twice := 2 * int64(cap(b.B))
	if announced > int64(cap(b.B)) {
		return min(twice, announced)
	}
	return twice
}
