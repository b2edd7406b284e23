package ginidempotency

import (
	"bufio"
	"context"
	"io"
	"maps"
	"net"
	"net/http"

	"github.com/gin-gonic/gin"
)

// prompt is the writer of gin, but with a WriteHeader that writes, as idem and net/http mean it. Middleware outside
// must not change the status of a replay that has no body.
type prompt struct{ gin.ResponseWriter }

func (w prompt) WriteHeader(status int) {
	if status < http.StatusOK && status != http.StatusSwitchingProtocols {
		return // gin sends no informational responses
	}
	w.ResponseWriter.WriteHeader(status)
	w.WriteHeaderNow()
}

// Unwrap is for [http.ResponseController].
func (w prompt) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// closed is the writer of a request that is refused after its handler has run. Middleware that makes answers of errors
// would write a second answer after the refusal.
type closed struct{ gin.ResponseWriter }

func (closed) Write(p []byte) (int, error) { return len(p), nil }

func (closed) WriteString(s string) (int, error) { return len(s), nil }

// Unwrap is for [http.ResponseController].
func (w closed) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// unwritten is the size that gin gives a response of which nothing is written.
const unwritten = -1

// writer is the gin.ResponseWriter of a guarded handler. It behaves as gin's does, and writes to a recorded one. But until
// there is a body, it holds back a header that is written: AbortWithError writes the header first, and only then says
// that there is an error, which may be left to outer middleware.
type writer struct {
	recorded  http.ResponseWriter
	ctx       context.Context // of the handler
	status    int
	size      int
	chosen    bool        // the handler has set the status
	held      http.Header // as it was when it was written
	committed bool        // status and header are recorded
}

var _ gin.ResponseWriter = (*writer)(nil)

// answered reports whether the handler has answered by way of w. It may have found another way to the outer writer, by
// Engine.HandleContext.
func (w *writer) answered(outer gin.ResponseWriter, withErrors bool) bool {
	switch {
	case w.committed:
		return true
	case outer.Written():
		return false
	case withErrors:
		return w.chosen && w.status < http.StatusBadRequest
	default:
		return w.Written() || w.chosen || w.ctx.Err() == nil
	}
}

// untouched reports whether the handler has left the answer as it has found it.
func (w *writer) untouched(outer gin.ResponseWriter) bool {
	return !w.Written() && w.status == outer.Status()
}

// commit records status and header, unless they are recorded already.
func (w *writer) commit() {
	switch {
	case w.committed:
	case w.held == nil:
		w.size = 0
		w.recorded.WriteHeader(w.status)
	default:
		later := w.Header().Clone()
		w.takeBack()
		w.recorded.WriteHeader(w.status)
		replace(w.Header(), later) // there may be trailers
	}
	w.committed = true
}

// takeBack undoes what was done to the header after it was written.
func (w *writer) takeBack() {
	if w.held != nil {
		replace(w.Header(), w.held)
	}
}

func replace(h, by http.Header) {
	clear(h)
	maps.Copy(h, by)
}

func (w *writer) Header() http.Header { return w.recorded.Header() }

func (w *writer) WriteHeader(status int) {
	if status > 0 && !w.Written() {
		w.status, w.chosen = status, true
	}
}

func (w *writer) WriteHeaderNow() {
	if !w.Written() {
		w.size, w.held = 0, w.Header().Clone()
	}
}

func (w *writer) Write(p []byte) (int, error) {
	w.commit()
	n, err := w.recorded.Write(p)
	w.size += n
	return n, err
}

func (w *writer) WriteString(s string) (int, error) {
	w.commit()
	n, err := io.WriteString(w.recorded, s)
	w.size += n
	return n, err
}

func (w *writer) Flush() {
	w.commit()
	_ = http.NewResponseController(w.recorded).Flush()
}

func (w *writer) Status() int { return w.status }

func (w *writer) Size() int { return w.size }

func (w *writer) Written() bool { return w.size != unwritten }

// Hijack refuses: what goes over a hijacked connection cannot be stored.
func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, http.ErrNotSupported }

// Unwrap is for [http.ResponseController].
func (w *writer) Unwrap() http.ResponseWriter { return w.recorded }

// CloseNotify tells of the end of the handler's context, which by default outlives the client: so does Context.Stream.
func (w *writer) CloseNotify() <-chan bool {
	gone := make(chan bool, 1)
	context.AfterFunc(w.ctx, func() { gone <- true })
	return gone
}

// Pusher returns nil: a pushed response would not be replayed.
func (w *writer) Pusher() http.Pusher { return nil }
