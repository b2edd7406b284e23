package upload

import (
	"net/http"

	"github.com/idempotency-go/idempotency"
)

// verifyingWriter verifies the body of the request before the answer begins. If the body is wrong, verifyingWriter
// discards the answer.
type verifyingWriter struct {
	http.ResponseWriter
	verifyBody func(status int) *idempotency.Error
	hasBegun   bool
	refusal    *idempotency.Error // replaces the answer
}

// beginAnswer verifies the body of the request before the first final status. Informational statuses pass.
func (w *verifyingWriter) beginAnswer(status int) {
	if w.hasBegun || status < 200 {
		return
	}
	w.hasBegun = true
	w.refusal = w.verifyBody(status)
}

// WriteHeader implements [http.ResponseWriter].
func (w *verifyingWriter) WriteHeader(status int) {
	if w.beginAnswer(status); w.refusal == nil {
		w.ResponseWriter.WriteHeader(status)
	}
}

// Write implements [http.ResponseWriter].
func (w *verifyingWriter) Write(p []byte) (int, error) {
	if w.beginAnswer(http.StatusOK); w.refusal != nil {
		return len(p), nil // the handler need not notice the refusal
	}
	return w.ResponseWriter.Write(p)
}

// FlushError implements the flush of [http.ResponseController].
func (w *verifyingWriter) FlushError() error {
	if w.beginAnswer(http.StatusOK); w.refusal != nil {
		return nil
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Flush implements [http.Flusher].
func (w *verifyingWriter) Flush() { _ = w.FlushError() }

// Unwrap returns the inner writer for [http.ResponseController].
func (w *verifyingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
