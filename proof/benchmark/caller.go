package benchmark

import (
	"bytes"
	"context"
	"net/http"
	"net/url"
)

const keyHeader = "Idempotency-Key"

const path = "/v1/payments"

// caller calls a net/http handler without a network, and without any allocation of its own. Like a server, it gives a
// request a context that can be cancelled and a body that can only be read.
type caller struct {
	handler  http.Handler
	template http.Request
	request  http.Request
	key      []string
	body     []byte
	unread   body
	answer   writer
	close    context.CancelFunc
}

func newCaller(h http.Handler, c Call) *caller {
	call := &caller{handler: h, body: c.body(), key: make([]string, 1), answer: writer{header: make(http.Header, 16)}}
	header := http.Header{
		"Content-Type": {"application/json"}, "User-Agent": {"benchmark"}, "Accept": {"*/*"},
		"Authorization": {"Bearer abcdefghijklmnopqrstuvwxyz"},
	}
	if c.Path != NoKey {
		header[keyHeader] = call.key
	}
	ctx, cancel := context.WithCancel(context.Background())
	call.close = cancel
	call.template = *(&http.Request{
		Method: c.method(), URL: &url.URL{Path: path}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: header, ContentLength: int64(len(call.body)), Host: "example.com", RequestURI: path,
		RemoteAddr: "127.0.0.1:1234",
	}).WithContext(ctx)
	return call
}

func (c *caller) Do(key string) (status, length int, err error) {
	c.answer.reset()
	c.unread.r.Reset(c.body)
	c.request = c.template
	c.request.Body = &c.unread
	c.key[0] = key
	c.handler.ServeHTTP(&c.answer, &c.request)
	return c.answer.status, c.answer.length, nil
}

func (c *caller) Fetch(key string) (Answer, error) {
	c.answer.keep = true
	defer func() { c.answer.keep = false }()
	_, _, err := c.Do(key)
	return Answer{c.answer.status, c.answer.header.Clone(), bytes.Clone(c.answer.body)}, err
}

func (c *caller) Close() { c.close() }

// body is a request body as a server makes it: it has Read and Close only.
type body struct{ r bytes.Reader }

func (b *body) Read(p []byte) (int, error) { return b.r.Read(p) }
func (b *body) Close() error               { return nil }

// writer is a response writer that counts what a server would send.
type writer struct {
	header http.Header
	status int
	length int
	keep   bool
	body   []byte
}

func (w *writer) reset() {
	clear(w.header)
	w.status, w.length, w.body = 0, 0, w.body[:0]
}

func (w *writer) Header() http.Header { return w.header }

func (w *writer) WriteHeader(status int) { w.status = status }

func (w *writer) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	if w.keep {
		w.body = append(w.body, p...)
	}
	w.length += len(p)
	return len(p), nil
}
