package idempotency

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
)

// buffer is a byte slice that one request after another uses. For a body of a megabyte, a new allocation would cost
// more than all else that the middleware does.
type buffer struct{ b []byte }

var buffers = sync.Pool{New: func() any { return new(buffer) }}

func newBuffer() *buffer { return buffers.Get().(*buffer) }

// maxPooled bounds what a buffer may keep for the next request.
const maxPooled = 2 << 20

// free gives the buffer to the next request, and reports whether it did: a huge one is left to the garbage collector.
func (b *buffer) free() bool {
	if cap(b.b) > maxPooled {
		return false
	}
	b.b = b.b[:0]
	buffers.Put(b)
	return true
}

// grow makes room for n more bytes.
func (b *buffer) grow(n int) {
	if free := cap(b.b) - len(b.b); free < n {
		b.b = append(make([]byte, 0, len(b.b)+n), b.b...)
	}
}

const (
	smallestRead = 512
	largestRead  = 32 << 10 // at first, whatever the request announces: an announcement costs its sender nothing
)

// readBody reads the whole body into the buffer. All that is in the buffer is taken from the budget, also after an error.
// A body of more than limit bytes is refused, if possible before it is read.
func (b *buffer) readBody(r *http.Request, limit int64, budget *shares, user string) error {
	if r.ContentLength > limit {
		return fmt.Errorf("%w: %d bytes, the limit is %d", ErrBodyTooLarge, r.ContentLength, limit)
	}
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	// One byte more than announced, so that the read that meets the end needs no growth.
	b.grow(int(min(max(r.ContentLength+1, smallestRead), largestRead)))
	for {
		n, err := r.Body.Read(b.b[len(b.b):cap(b.b)])
		if int64(len(b.b)+n) > limit {
			return fmt.Errorf("%w: over %d bytes", ErrBodyTooLarge, limit)
		}
		if !budget.take(user, int64(n)) {
			return ErrOverloaded
		}
		b.b = b.b[:len(b.b)+n]
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
			b.grow(b.next(r.ContentLength))
		}
	}
}

// next returns by how much a full buffer grows: it doubles, but not beyond what the request announces.
func (b *buffer) next(announced int64) int {
	if left := announced + 1 - int64(len(b.b)); left > 0 {
		return int(min(left, int64(cap(b.b))))
	}
	return cap(b.b)
}

// consumed reports whether somebody else has read the body of r before, of which read bytes were left: then nothing
// tells this request from another one with its key.
func consumed(r *http.Request, read int) bool {
	return read == 0 && (r.ContentLength > 0 || len(r.PostForm) > 0 || r.MultipartForm != nil)
}

// waitingBodies lets requests that wait for the same operation hold one body for all of them.
type waitingBodies struct {
	mu    sync.Mutex
	byKey map[Key]*sharedBody
}

type sharedBody struct {
	buffer  *buffer
	holders int
}

// join returns the body that all requests with this key hold. If there is none yet, it becomes body. It returns nil if
// that body is another one, as it may be if the fingerprint leaves something out.
func (w *waitingBodies) join(key Key, body *buffer) *sharedBody {
	w.mu.Lock()
	defer w.mu.Unlock()
	shared := w.byKey[key]
	switch {
	case shared == nil:
		if w.byKey == nil {
			w.byKey = make(map[Key]*sharedBody)
		}
		shared = &sharedBody{buffer: body}
		w.byKey[key] = shared
	case !bytes.Equal(shared.buffer.b, body.b):
		return nil
	}
	shared.holders++
	return shared
}

// leave reports whether the caller was the last one to hold the body.
func (w *waitingBodies) leave(key Key, shared *sharedBody) (last bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	shared.holders--
	if shared.holders > 0 {
		return false
	}
	delete(w.byKey, key)
	return true
}
