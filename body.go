package idempotency

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
)

// maxPooled bounds what a buffer may keep for the next request.
const maxPooled = 2 << 20

// buffer is a byte slice that one request after another makes use of.
type buffer struct{ b []byte }

// reuse returns the buffer for the next request.
func (b buffer) reuse() buffer {
	if cap(b.b) > maxPooled {
		return buffer{}
	}
	return buffer{b.b[:0]}
}

// grow makes room for n more bytes.
func (b *buffer) grow(n int) {
	if free := cap(b.b) - len(b.b); free < n {
		b.b = append(make([]byte, 0, len(b.b)+n), b.b...)
	}
}

const smallestRead = 512

// mostAnnounced bounds what is made room for before it is there: what a header announces costs its sender nothing.
const mostAnnounced = 1<<20 + 1

// readBody reads the whole body into the buffer. A body of more than limit bytes is refused, if possible before it
// is read.
func (b *buffer) readBody(r *http.Request, limit int64) error {
	if r.ContentLength > limit {
		return fmt.Errorf("%w: %d bytes, the limit is %d", ErrBodyTooLarge, r.ContentLength, limit)
	}
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	// One byte more than announced, so that the read that meets the end needs no growth.
	b.grow(int(min(max(r.ContentLength+1, smallestRead), mostAnnounced)))
	for {
		n, err := r.Body.Read(b.b[len(b.b):cap(b.b)])
		b.b = b.b[:len(b.b)+n]
		if int64(len(b.b)) > limit {
			return fmt.Errorf("%w: over %d bytes", ErrBodyTooLarge, limit)
		}
		if err == io.EOF {
			return nil
		}
		if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge { // for a limit of outer middleware
			return fmt.Errorf("%w: %w", ErrBodyTooLarge, err)
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrBodyInvalid, err)
		}
		if len(b.b) == cap(b.b) {
			b.grow(cap(b.b))
		}
	}
}

// bodyReader gives a handler the body that was read before, and nothing once the handler has returned: the buffer
// belongs to another request by then, and a goroutine that the handler left behind must not see it.
type bodyReader struct {
	mu     sync.Mutex
	unread []byte
	closed bool
}

func (r *bodyReader) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0, http.ErrBodyReadAfterClose
	}
	if len(r.unread) == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.unread)
	r.unread = r.unread[n:]
	return n, nil
}

func (r *bodyReader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unread, r.closed = nil, true
	return nil
}
