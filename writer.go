package idempotency

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"sync"
	"time"
)

// writer is the http.ResponseWriter that a guarded handler writes to. A handler may leave goroutines behind that use it
// for ever: it lets go of the recorder when the handler returns.
//
// Inside of a framework that answersLater, it leads to the writer of the framework once the handler has failed to answer:
// the framework may answer by way of it.
//
// It has neither Unwrap nor ReadFrom, because both would let bytes pass by the record, and no Hijack.
type writer struct {
	outer http.ResponseWriter

	mu     sync.Mutex
	header http.Header // of the handler's own, as in http.TimeoutHandler; nil: it has not asked for it
	before http.Header // what outer middleware had set when the handler asked for it
	rec    *recorder   // nil: the handler has returned
	open   bool        // to outer, because the handler has returned and the framework is to answer
}

// Header returns the header of the response, which begins with what outer middleware has set.
func (w *writer) Header() http.Header {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open {
		return w.outer.Header()
	}
	if w.header == nil && w.rec != nil {
		outer := w.outer.Header()
		w.header = outer.Clone()
		if len(outer) > 0 {
			w.before = maps.Clone(outer)
		}
	}
	if w.header == nil {
		w.header = make(http.Header)
	}
	return w.header
}

// WriteHeader records status and header as they are now.
func (w *writer) WriteHeader(status int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.open:
		w.outer.WriteHeader(status)
	case w.rec != nil:
		w.rec.writeHeader(status, w.header, w.before)
	}
}

// Write records p.
func (w *writer) Write(p []byte) (int, error) { return write(w, p) }

// WriteString records s without a copy in between.
func (w *writer) WriteString(s string) (int, error) { return write(w, s) }

func write[T []byte | string](w *writer, p T) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.open:
		return w.outer.Write([]byte(p))
	case w.rec == nil:
		return 0, http.ErrHandlerTimeout
	}
	w.rec.writeHeader(http.StatusOK, w.header, w.before) // unless there is one
	return record(w.rec, p)
}

// FlushError is accepted, as handlers expect. It sends nothing unless the answer is streamed.
func (w *writer) FlushError() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.open:
		return http.NewResponseController(w.outer).Flush()
	case w.rec == nil:
		return http.ErrHandlerTimeout
	}
	w.rec.writeHeader(http.StatusOK, w.header, w.before)
	return w.rec.flush()
}

// Flush is FlushError for those who have no use for the error.
func (w *writer) Flush() { _ = w.FlushError() }

// SetReadDeadline is for http.ResponseController.
func (w *writer) SetReadDeadline(t time.Time) error {
	return http.NewResponseController(w.outer).SetReadDeadline(t)
}

// SetWriteDeadline is for http.ResponseController.
func (w *writer) SetWriteDeadline(t time.Time) error {
	return http.NewResponseController(w.outer).SetWriteDeadline(t)
}

// EnableFullDuplex is for http.ResponseController.
func (w *writer) EnableFullDuplex() error {
	return http.NewResponseController(w.outer).EnableFullDuplex()
}

// finish ends the recording: nothing is written any more. It reports whether anything was, and whether the response is
// complete.
func (w *writer) finish() (resp Response, wrote, complete bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	wrote = w.rec.response.Status != 0
	w.rec.writeHeader(http.StatusOK, w.header, w.before)
	resp, complete = w.rec.finish(w.header)
	w.rec = nil
	return resp, wrote, complete
}

// close ends the recording of a handler that has not returned: it has panicked, or has called runtime.Goexit.
func (w *writer) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open = w.open || w.rec != nil && answersLater(w.outer)
	w.rec = nil
}

// handOver lets a framework answer.
func (w *writer) handOver() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open = true
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

// errAnsweredLater is why nothing is stored if a handler wrote nothing, and answersLater is true of its framework.
var errAnsweredLater = errors.New("idempotency: the handler wrote nothing, and the framework around the middleware " +
	"answers after it: mount the middleware by the framework's adapter, around whatever makes answers of errors")

// The methods by which the writers of echo and gin are recognised. Both answer after their handlers have returned.
type (
	// echoWriter is the writer of echo v4 and v5. echo makes an answer of the error that a handler has returned.
	echoWriter interface {
		Before(func())
		After(func())
	}

	// ginWriter is the writer of gin. gin answers with the status that a handler has set.
	ginWriter interface {
		WriteHeaderNow()
		Written() bool
	}
)

// turnsAway reports whether the writer of a framework has been told a status by which the handler turns the request away.
func turnsAway(w http.ResponseWriter) bool {
	told, ok := w.(interface{ Status() int })
	return ok && refused(told.Status())
}

// answersLater reports whether w, or a writer that it wraps, is that of a framework that answers after its handlers
// have returned. Then a handler that wrote nothing has not said that all is well: it may have returned an error to the
// framework, or have written past the middleware.
func answersLater(w http.ResponseWriter) bool {
	for {
		switch outer := w.(type) {
		case echoWriter, ginWriter:
			return true
		case interface{ Unwrap() http.ResponseWriter }:
			w = outer.Unwrap()
		default:
			return false
		}
	}
}
