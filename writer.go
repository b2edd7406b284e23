package idempotency

import (
	"net/http"
	"sync"
	"time"
)

// writer is the http.ResponseWriter that a guarded handler writes to. A handler may leave goroutines behind that write
// to it for ever: it lets go of the recorder when the handler returns, so that the recorder can serve another request.
//
// It has neither Unwrap nor ReadFrom, because both would let bytes pass by the record, and no Hijack.
type writer struct {
	outer http.ResponseWriter

	mu  sync.Mutex
	rec *recorder // nil: the handler has returned
}

// Header returns the header of the response.
func (w *writer) Header() http.Header { return w.outer.Header() }

// WriteHeader records status and header as they are now.
func (w *writer) WriteHeader(status int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.rec != nil {
		w.rec.writeHeader(status)
	}
}

// Write records p.
func (w *writer) Write(p []byte) (int, error) { return write(w, p) }

// WriteString records s without a copy in between.
func (w *writer) WriteString(s string) (int, error) { return write(w, s) }

func write[T []byte | string](w *writer, p T) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.rec == nil {
		return 0, http.ErrHandlerTimeout
	}
	return record(w.rec, p)
}

// FlushError is accepted, as handlers expect. It sends nothing unless the answer is streamed.
func (w *writer) FlushError() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.rec == nil {
		return http.ErrHandlerTimeout
	}
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

// finish ends the recording: nothing is written any more. It also reports whether nothing was.
func (w *writer) finish() (resp Response, whole, silent bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	silent = w.rec.response.Status == 0
	resp, whole = w.rec.finish()
	w.rec = nil
	return resp, whole, silent
}

// close ends the recording, and reports whether the handler had not returned.
func (w *writer) close() (interrupted bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	interrupted = w.rec != nil
	w.rec = nil
	return interrupted
}
