package idempotency

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
)

// maxBuffered is the size of the largest body that is kept in memory to be sent again.
const maxBuffered = 1 << 20

// bufferBody returns the request with a body that can be replayed, if it is small. Otherwise the body remains a stream.
// The request itself is not changed, but its body is used up.
func bufferBody(req *http.Request) (*http.Request, error) {
	if replayable(req) || req.ContentLength < 0 || req.ContentLength > maxBuffered {
		return req, nil
	}
	start, err := readStart(req.Context(), req.Body)
	if err != nil {
		closeBody(req)
		return nil, err
	}
	buffered := req.WithContext(req.Context())
	if len(start) > maxBuffered {
		buffered.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(start), req.Body), req.Body}
		return buffered, nil
	}
	closeBody(req)
	buffered.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(start)), nil }
	buffered.Body, _ = buffered.GetBody()
	return buffered, nil
}

// readStart reads body to its end, or one byte more than can be kept. It does not outlast ctx, even if body does.
func readStart(ctx context.Context, body io.Reader) ([]byte, error) {
	type result struct {
		start []byte
		err   error
	}
	read := make(chan result, 1)
	go func() {
		start, err := io.ReadAll(io.LimitReader(body, maxBuffered+1))
		read <- result{start, err}
	}()
	select {
	case r := <-read:
		return r.start, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// replayable reports whether the body of the request can be sent once more.
func replayable(req *http.Request) bool {
	return !hasBody(req) || req.GetBody != nil
}

func hasBody(req *http.Request) bool { return req.Body != nil && req.Body != http.NoBody }

func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close() // its reader is gone; there is nobody to tell
	}
}

// sendable reports whether net/http can send such a request. Its body is judged by measure.
func sendable(req *http.Request) bool {
	return req.URL != nil && (req.URL.Scheme == "http" || req.URL.Scheme == "https") &&
		(req.Method == "" || isToken(req.Method)) && validFields(req.Header) && validFields(req.Trailer) &&
		(req.Body != nil || req.ContentLength == 0)
}

func validFields(h http.Header) bool {
	for name, values := range h {
		if !isToken(name) {
			return false
		}
		for _, value := range values {
			if strings.ContainsFunc(value, isControl) {
				return false
			}
		}
	}
	return true
}

// isControl reports whether r is a character that no field value can have.
func isControl(r rune) bool { return r < ' ' && r != '\t' || r == 0x7F }

// measuredBody notices that a body differs in length from its ContentLength. It is safe for concurrent use, because
// net/http can still read a body after its attempt has failed.
type measuredBody struct {
	io.ReadCloser
	left    atomic.Int64
	closed  atomic.Bool
	differs atomic.Bool
}

// measure returns the body of the request, for mismeasured to judge.
func measure(req *http.Request) io.ReadCloser {
	if !hasBody(req) || req.ContentLength <= 0 {
		return req.Body
	}
	body := &measuredBody{ReadCloser: req.Body}
	body.left.Store(req.ContentLength)
	return body
}

func (b *measuredBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	left := b.left.Add(-int64(n))
	if left < 0 || left > 0 && err == io.EOF && !b.closed.Load() {
		b.differs.Store(true)
	}
	return n, err
}

func (b *measuredBody) Close() error {
	b.closed.Store(true)
	return b.ReadCloser.Close()
}

// mismeasured reports whether the body of an attempt differed from its ContentLength.
func mismeasured(attempt *http.Request) bool {
	body, ok := attempt.Body.(*measuredBody)
	return ok && body.differs.Load()
}
