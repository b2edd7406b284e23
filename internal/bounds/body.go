package bounds

import (
	"io"
	"net/http"
	"sync"
)

// Body is the whole body of a request in memory. A Body counts against its budget until all of it has been read, or
// until Close. Code in front of the middleware passes a Body on, and the middleware copies the Body into its own budget:
// a handler that runs for long therefore takes no room from bodies that are still arriving.
//
// A Body is safe for concurrent use, because a handler may leave goroutines behind.
type Body struct {
	budget *Shares
	user   string

	mu          sync.Mutex
	buffer      *Buffer // nil before ReadRequest, and after releaseBuffer
	unreadBytes []byte  // the unread rest of buffer
}

// NewBody returns a Body without content, which counts as a part of what user holds in budget.
func NewBody(budget *Shares, user string) *Body { return &Body{budget: budget, user: user} }

// ReadRequest reads the body of r. The errors are those of [ReadBody]. Call Close also after an error.
func (b *Body) ReadRequest(r *http.Request, limit int64) (err error) {
	b.buffer, err = ReadBody(r, limit, b.budget, b.user)
	b.unreadBytes = b.buffer.B
	return err
}

// Bytes returns the unread rest. The bytes are valid until the Body has been read or closed.
func (b *Body) Bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.unreadBytes
}

// Read implements [io.Reader].
func (b *Body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := copy(p, b.unreadBytes)
	b.unreadBytes = b.unreadBytes[n:]
	if len(b.unreadBytes) > 0 {
		return n, nil
	}
	b.releaseBuffer()
	return n, io.EOF
}

// Close returns the room of the body to the budget. The unread rest of the body is lost.
func (b *Body) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.releaseBuffer()
	return nil
}

// releaseBuffer frees the buffer, and returns its room to the budget. The caller holds mu.
func (b *Body) releaseBuffer() {
	if b.buffer == nil {
		return
	}
	b.budget.GiveBack(b.user, int64(cap(b.buffer.B)))
	b.buffer.Free()
	b.buffer, b.unreadBytes = nil, nil
}
