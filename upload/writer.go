package upload

import (
	"net/http"

	"github.com/idempotency-go/idempotency"
)

// writer holds an answer back until the body of the request was judged, when the answer begins.
type writer struct {
	http.ResponseWriter
	verify  func(status int) *idempotency.Error
	begun   bool
	refusal *idempotency.Error // goes out in place of the answer
}

func (w *writer) begin(status int) {
	if w.begun || status < 200 {
		return
	}
	w.begun = true
	w.refusal = w.verify(status)
}

// WriteHeader implements [http.ResponseWriter].
func (w *writer) WriteHeader(status int) {
	if w.begin(status); w.refusal == nil {
		w.ResponseWriter.WriteHeader(status)
	}
}

// Write implements [http.ResponseWriter].
func (w *writer) Write(p []byte) (int, error) {
	if w.begin(http.StatusOK); w.refusal != nil {
		return len(p), nil // as if it was sent
	}
	return w.ResponseWriter.Write(p)
}

// FlushError is for [http.ResponseController].
func (w *writer) FlushError() error {
	if w.begin(http.StatusOK); w.refusal != nil {
		return nil
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Flush implements [http.Flusher].
func (w *writer) Flush() { _ = w.FlushError() }

// Unwrap is for [http.ResponseController].
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }
