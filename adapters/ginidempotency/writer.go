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

// promptWriter is the writer of gin with a WriteHeader that writes immediately, like net/http. The WriteHeader of gin only sets
// the status, so outer middleware could change the status of a replay without a body.
type promptWriter struct{ gin.ResponseWriter }

func (w promptWriter) WriteHeader(status int) {
	if status < http.StatusOK && status != http.StatusSwitchingProtocols {
		return // gin sends no informational responses
	}
	w.ResponseWriter.WriteHeader(status)
	w.WriteHeaderNow()
}

// Unwrap is for [http.ResponseController].
func (w promptWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// closedWriter is the writer of a request that was refused after the handler had run. closedWriter discards the body, because outer
// middleware that answers errors would write a second answer after the refusal.
type closedWriter struct{ gin.ResponseWriter }

func (closedWriter) Write(p []byte) (int, error) { return len(p), nil }

func (closedWriter) WriteString(s string) (int, error) { return len(s), nil }

// Unwrap is for [http.ResponseController].
func (w closedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// sizeUnwritten is the size that gin reports for an unwritten response.
const sizeUnwritten = -1

// guardedWriter is the gin.ResponseWriter of a guarded handler. guardedWriter behaves like the writer of gin, and writes to
// recordingWriter. Until the first byte of the body, guardedWriter holds back the header, because AbortWithError writes the header
// before it attaches the error, and the handler may leave the error to outer middleware.
type guardedWriter struct {
	recordingWriter http.ResponseWriter
	handlerContext  context.Context
	status          int
	size            int
	hasChosenStatus bool        // the handler has called WriteHeader
	heldHeader      http.Header // copy of the header at WriteHeaderNow
	isCommitted     bool        // status and header are recorded
}

var _ gin.ResponseWriter = (*guardedWriter)(nil)

// hasAnswered reports whether the handler has answered through w. A handler that calls Engine.HandleContext answers through the
// outer writer instead.
func (w *guardedWriter) hasAnswered(outer gin.ResponseWriter, withErrors bool) bool {
	switch {
	case w.isCommitted:
		return true
	case outer.Written():
		return false
	case withErrors:
		return w.hasChosenStatus && w.status < http.StatusBadRequest
	default:
		return w.Written() || w.hasChosenStatus || w.handlerContext.Err() == nil
	}
}

// isUntouched reports whether the handler has neither written nor changed the status.
func (w *guardedWriter) isUntouched(outer gin.ResponseWriter) bool {
	return !w.Written() && w.status == outer.Status()
}

// commitHeader passes status and header to recordingWriter. Further calls have no effect.
func (w *guardedWriter) commitHeader() {
	switch {
	case w.isCommitted:
	case w.heldHeader == nil:
		w.size = 0
		w.recordingWriter.WriteHeader(w.status)
	default:
		later := w.Header().Clone()
		w.restoreHeader()
		w.recordingWriter.WriteHeader(w.status)
		replaceHeader(w.Header(), later) // changes after WriteHeaderNow may be trailers
	}
	w.isCommitted = true
}

// restoreHeader undoes all changes of the header after WriteHeaderNow.
func (w *guardedWriter) restoreHeader() {
	if w.heldHeader != nil {
		replaceHeader(w.Header(), w.heldHeader)
	}
}

func replaceHeader(h, replacement http.Header) {
	clear(h)
	maps.Copy(h, replacement)
}

func (w *guardedWriter) Header() http.Header { return w.recordingWriter.Header() }

func (w *guardedWriter) WriteHeader(status int) {
	if status > 0 && !w.Written() {
		w.status, w.hasChosenStatus = status, true
	}
}

func (w *guardedWriter) WriteHeaderNow() {
	if !w.Written() {
		w.size, w.heldHeader = 0, w.Header().Clone()
	}
}

func (w *guardedWriter) Write(p []byte) (int, error) {
	w.commitHeader()
	n, err := w.recordingWriter.Write(p)
	w.size += n
	return n, err
}

func (w *guardedWriter) WriteString(s string) (int, error) {
	w.commitHeader()
	n, err := io.WriteString(w.recordingWriter, s)
	w.size += n
	return n, err
}

func (w *guardedWriter) Flush() {
	w.commitHeader()
	_ = http.NewResponseController(w.recordingWriter).Flush()
}

func (w *guardedWriter) Status() int { return w.status }

func (w *guardedWriter) Size() int { return w.size }

func (w *guardedWriter) Written() bool { return w.size != sizeUnwritten }

// Hijack returns [http.ErrNotSupported], because the bytes on a hijacked connection cannot be recorded.
func (w *guardedWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return nil, nil, http.ErrNotSupported
}

// Unwrap is for [http.ResponseController].
func (w *guardedWriter) Unwrap() http.ResponseWriter { return w.recordingWriter }

// CloseNotify notifies the handler of the end of its context. By default, the context outlives the client, and so does
// Context.Stream.
func (w *guardedWriter) CloseNotify() <-chan bool {
	gone := make(chan bool, 1)
	context.AfterFunc(w.handlerContext, func() { gone <- true })
	return gone
}

// Pusher returns nil, because a replay could not repeat a pushed response.
func (w *guardedWriter) Pusher() http.Pusher { return nil }
