package idempotency

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"net/http"
	"sync"
)

// buffer is a byte slice that one request after another uses. For a body of a megabyte, a new allocation would cost
// more than all else that the middleware does.
type buffer struct {
	b    []byte
	next [1]byte // the byte behind a full b
}

const (
	smallestBuffer = 512
	maxPooled      = 2 << 20 // the most that a buffer may keep for the next request
)

// room returns the capacity of a new buffer for n bytes.
func room(n int64) int64 {
	if n > maxPooled {
		return n
	}
	return 1 << bits.Len64(uint64(max(n, smallestBuffer)-1))
}

// buffers has those that nobody uses, by the power of two that is their capacity. So nothing small is in a buffer that
// was made for something large.
var buffers [22]sync.Pool

// unused returns where the buffers with a capacity are that nobody uses.
func unused(capacity int64) *sync.Pool { return &buffers[bits.Len64(uint64(capacity))-1] }

// newBuffer returns a buffer with room for n bytes.
func newBuffer(n int) *buffer {
	capacity := room(int64(n))
	if capacity <= maxPooled {
		if b, ok := unused(capacity).Get().(*buffer); ok {
			return b
		}
	}
	return &buffer{b: make([]byte, 0, capacity)}
}

// free gives the buffer to the next request, and reports whether it did: a huge one is left to the garbage collector.
func (b *buffer) free() bool {
	capacity := int64(cap(b.b))
	if capacity > maxPooled || capacity != room(capacity) {
		return false
	}
	b.b = b.b[:0]
	unused(capacity).Put(b)
	return true
}

// grow makes room for n more bytes.
func (b *buffer) grow(n int) {
	if cap(b.b)-len(b.b) >= n {
		return
	}
	larger := newBuffer(len(b.b) + n)
	b.b, larger.b = append(larger.b, b.b...), b.b
	larger.free()
}

// largestRead bounds the room for a body at first, whatever the request announces: an announcement costs its sender
// nothing.
const largestRead = 32 << 10

// noBody is the buffer of requests without a body.
var noBody = new(buffer)

// readBody reads the whole body of a request. The capacity of the buffer is taken from the budget, also if there is an error
// besides. A body of more than limit bytes is refused, if possible before it is read.
func readBody(r *http.Request, limit int64, budget *shares, user string) (*buffer, error) {
	if r.ContentLength > limit {
		return noBody, fmt.Errorf("%w: %d bytes, the limit is %d", ErrBodyTooLarge, r.ContentLength, limit)
	}
	if r.Body == nil || r.Body == http.NoBody {
		return noBody, nil
	}
	first := min(max(r.ContentLength, smallestBuffer), largestRead)
	if !budget.take(user, room(first)) {
		return noBody, ErrOverloaded
	}
	b := newBuffer(int(first))
	for {
		space := b.b[len(b.b):cap(b.b)]
		full := len(space) == 0
		if full {
			space = b.next[:] // so that a body that fits needs no growth to meet its end
		}
		n, err := r.Body.Read(space)
		if int64(len(b.b)+n) > limit {
			return b, fmt.Errorf("%w: over %d bytes", ErrBodyTooLarge, limit)
		}
		switch {
		case !full:
			b.b = b.b[:len(b.b)+n]
		case n > 0:
			larger := min(b.doubled(r.ContentLength), limit)
			if !budget.take(user, room(larger)-int64(cap(b.b))) {
				return b, ErrOverloaded
			}
			b.grow(int(larger) - len(b.b))
			b.b = append(b.b, b.next[0])
		}
		if err == io.EOF {
			return b, nil
		}
		if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge { // for a limit of outer middleware
			return b, fmt.Errorf("%w: %w", ErrBodyTooLarge, err)
		}
		if err != nil {
			return b, fmt.Errorf("%w: %w", ErrBodyInvalid, err)
		}
	}
}

// doubled returns what a full buffer grows to: twice as much, but not beyond what the request announces.
func (b *buffer) doubled(announced int64) int64 {
	twice := 2 * int64(cap(b.b))
	if announced > int64(cap(b.b)) {
		return min(twice, announced)
	}
	return twice
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
