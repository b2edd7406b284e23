package benchmark

import (
	"bytes"
	"context"
	"net/http"
	"net/url"
)

const keyHeader = "Idempotency-Key"

const paymentsPath = "/v1/payments"

// caller calls a net/http handler without a network, and allocates nothing for a call. A request has a context with a
// cancel function, and a body with Read and Close only, because a server makes such requests.
type caller struct {
	handler         http.Handler
	requestTemplate http.Request
	request         http.Request
	keyValues       []string
	requestBody     []byte
	unreadBody      serverBody
	answer          countingWriter
	cancelContext   context.CancelFunc
}

func newCaller(h http.Handler, c Call) *caller {
	call := &caller{
		handler: h, requestBody: c.makeBody(), keyValues: make([]string, 1),
		answer: countingWriter{header: make(http.Header, 16)},
	}
	header := http.Header{
		"Content-Type": {"application/json"}, "User-Agent": {"benchmark"}, "Accept": {"*/*"},
		"Authorization": {"Bearer abcdefghijklmnopqrstuvwxyz"},
	}
	if c.Path != NoKey {
		header[keyHeader] = call.keyValues
	}
	ctx, cancel := context.WithCancel(context.Background())
	call.cancelContext = cancel
	call.requestTemplate = *(&http.Request{
		Method: c.httpMethod(), URL: &url.URL{Path: paymentsPath}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: header, ContentLength: int64(len(call.requestBody)), Host: "example.com", RequestURI: paymentsPath,
		RemoteAddr: "127.0.0.1:1234",
	}).WithContext(ctx)
	return call
}

func (c *caller) Do(key string) (status, length int, err error) {
	c.answer.reset()
	c.unreadBody.reader.Reset(c.requestBody)
	c.request = c.requestTemplate
	c.request.Body = &c.unreadBody
	c.keyValues[0] = key
	c.handler.ServeHTTP(&c.answer, &c.request)
	return c.answer.status, c.answer.bodyLength, nil
}

func (c *caller) Fetch(key string) (Answer, error) {
	c.answer.keepsBody = true
	defer func() { c.answer.keepsBody = false }()
	_, _, err := c.Do(key)
	return Answer{c.answer.status, c.answer.header.Clone(), bytes.Clone(c.answer.keptBody)}, err
}

func (c *caller) Close() { c.cancelContext() }

// serverBody is a request body with Read and Close only, as a server makes the body.
type serverBody struct{ reader bytes.Reader }

func (b *serverBody) Read(p []byte) (int, error) { return b.reader.Read(p) }
func (b *serverBody) Close() error               { return nil }

// countingWriter is a response writer. countingWriter counts the bytes of a body, and keeps the body if keepsBody is set.
type countingWriter struct {
	header     http.Header
	status     int
	bodyLength int
	keepsBody  bool
	keptBody   []byte
}

func (w *countingWriter) reset() {
	clear(w.header)
	w.status, w.bodyLength, w.keptBody = 0, 0, w.keptBody[:0]
}

func (w *countingWriter) Header() http.Header { return w.header }

func (w *countingWriter) WriteHeader(status int) { w.status = status }

func (w *countingWriter) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	if w.keepsBody {
		w.keptBody = append(w.keptBody, p...)
	}
	w.bodyLength += len(p)
	return len(p), nil
}
