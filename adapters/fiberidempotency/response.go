package fiberidempotency

import (
	"bytes"
	"maps"
	"net/http"
	"slices"

	"github.com/gofiber/fiber/v3"
	"github.com/valyala/fasthttp"
)

// connectionFields are the fields that fasthttp sets for each connection and message by itself.
var connectionFields = []string{"Connection", "Content-Length", "Trailer"}

// copyFields returns a copy of the header without the connectionFields.
func copyFields(resp *fasthttp.Response) http.Header {
	header := make(http.Header)
	for name, value := range resp.Header.All() {
		header.Add(string(name), string(value))
	}
	for _, name := range connectionFields {
		header.Del(name)
	}
	return header
}

// writeResponse writes resp to w. The error is the error of a body that is a stream.
func writeResponse(w http.ResponseWriter, resp *fasthttp.Response) error {
	header := w.Header()
	clear(header)
	maps.Copy(header, copyFields(resp))
	w.WriteHeader(resp.StatusCode())
	return resp.BodyWriteTo(w)
}

// answerWriter is the http.ResponseWriter that gets first answers, replays and refusals.
type answerWriter struct {
	header     http.Header // begins with the fields of outer middleware
	sentHeader http.Header // the header at the time of WriteHeader
	sentStatus int         // 0 without an answer
	sentBody   bytes.Buffer
}

func (w *answerWriter) Header() http.Header { return w.header }

func (w *answerWriter) WriteHeader(status int) {
	if w.sentStatus == 0 && status >= http.StatusOK { // an informational response is no answer
		w.sentStatus, w.sentHeader = status, maps.Clone(w.header)
	}
}

func (w *answerWriter) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.sentBody.Write(b)
}

// copyTo makes the answer the response of c. Without an answer, the response is left to an ErrorHandler that has used c, and to
// outer middleware.
func (w *answerWriter) copyTo(c fiber.Ctx) error {
	if w.sentStatus == 0 {
		return nil
	}
	header := &c.Response().Header
	for _, name := range connectionFields {
		delete(w.sentHeader, name)
	}
	for name, values := range copyFields(c.Response()) {
		if slices.Equal(values, w.sentHeader[name]) {
			delete(w.sentHeader, name) // fasthttp leaves out its default Content-Type without a body, unless the field is set
		} else {
			header.Del(name)
		}
	}
	for name, values := range w.sentHeader {
		for _, value := range values {
			header.Add(name, value)
		}
	}
	return c.Status(w.sentStatus).Send(w.sentBody.Bytes())
}
