package idempotency

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// recorder is the http.ResponseWriter that a guarded handler writes to. It makes a Response of what the handler does,
// by the rules of net/http's own server, and holds everything back until the Response is stored. It goes live, and
// from then on sends what it records, in two cases only:
//
//   - Options.Stream asks for it, and the handler flushes or has filled the server's own buffer;
//   - the body outgrows the limit and can no longer be kept. The store is told before the first byte goes out.
//
// It has neither Unwrap nor ReadFrom, because both would let bytes pass by the record, and no Hijack.
type recorder struct {
	w       http.ResponseWriter
	r       *http.Request
	passing passing
	limit   int64

	// stream lets the recorder go live at once.
	stream bool

	// outgrown is called before a body that has outgrown the limit is sent; an error keeps it from being sent. If it
	// is nil, the body is held back however large it grows.
	outgrown func(Response) error

	header http.Header // the handler's own

	mu         sync.Mutex // a handler may have left goroutines behind that still write
	body       *buffer
	response   Response    // Status and Header as of WriteHeader
	momentary  http.Header // fields as of WriteHeader that only the first client gets
	declared   int64       // Content-Length as of WriteHeader, or -1
	written    int64       // by the handler, accepted or not
	accepted   int64       // of that, what does not exceed declared
	undeclared bool        // the Content-Type is to be found by sniffing
	live       bool
	refused    error // by outgrown
	closed     bool  // the handler has returned
}

// streamChunk is how much the recorder holds back before it goes live: as much as net/http's server, which sniffs the
// Content-Type from it.
const streamChunk = 2048

// Header returns the map that belongs to the handler. It starts as a copy of what outer middleware has set.
func (rec *recorder) Header() http.Header { return rec.header }

// WriteHeader records status and header as they are now. Informational responses are sent and not recorded.
func (rec *recorder) WriteHeader(status int) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.writeHeader(status)
}

func (rec *recorder) writeHeader(status int) {
	switch {
	case rec.closed || rec.response.Status != 0:
		return
	case status < 100 || status > 999:
		panic(fmt.Sprintf("invalid WriteHeader code %v", status)) // as net/http does
	case status < 200 && status != http.StatusSwitchingProtocols:
		rec.inform(status)
		return
	}
	rec.declared = declaredLength(rec.header)
	rec.undeclared = bodyAllowed(status) && !hasContentType(rec.header)
	rec.momentary = rec.passing.pick(rec.header)
	rec.response.Status = status
	rec.response.Header = rec.passing.difference(rec.w.Header(), rec.header)
	if _, set := rec.header["Content-Type"]; !set && rec.r.ProtoMajor == 1 && rec.header.Get("Transfer-Encoding") != "" {
		rec.response.Header["Content-Type"] = nil // net/http does not sniff now, and must not when this field is gone
	}
	if rec.declared <= rec.limit {
		rec.body.grow(int(rec.declared))
	}
}

// inform sends an informational response with the header as the handler has set it so far.
func (rec *recorder) inform(status int) {
	h := rec.w.Header()
	outer := maps.Clone(h)
	clear(h)
	maps.Copy(h, rec.header)
	rec.w.WriteHeader(status)
	clear(h)
	maps.Copy(h, outer)
}

// Write records p.
func (rec *recorder) Write(p []byte) (int, error) { return write(rec, p) }

// WriteString records s without a copy in between.
func (rec *recorder) WriteString(s string) (int, error) { return write(rec, s) }

func write[T []byte | string](rec *recorder, p T) (int, error) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if err := rec.accept(len(p)); err != nil {
		return 0, err
	}
	if len(p) > 0 && !rec.keeps(len(p)) {
		if err := rec.outgrow(); err != nil {
			return 0, err
		}
		return rec.w.Write([]byte(p))
	}
	rec.body.b = append(rec.body.b, p...)
	if rec.live {
		_, _ = rec.w.Write([]byte(p)) // what is recorded does not depend on whether the client is still there
	} else if rec.stream && len(rec.body.b) >= streamChunk {
		rec.goLive()
	}
	return len(p), nil
}

// accept answers as net/http does to n more bytes.
func (rec *recorder) accept(n int) error {
	if rec.closed {
		return http.ErrHandlerTimeout
	}
	rec.writeHeader(http.StatusOK) // unless there is one
	if n == 0 {
		return nil
	}
	if !bodyAllowed(rec.response.Status) {
		return http.ErrBodyNotAllowed
	}
	rec.written += int64(n)
	if rec.declared >= 0 && rec.written > rec.declared {
		return http.ErrContentLength
	}
	rec.accepted += int64(n)
	return nil
}

// keeps reports whether n more bytes go into the buffer.
func (rec *recorder) keeps(n int) bool {
	if rec.response.Omitted {
		return false
	}
	return int64(len(rec.body.b)+n) <= rec.limit || rec.outgrown == nil
}

// outgrow gives up on keeping the body.
func (rec *recorder) outgrow() error {
	if rec.response.Omitted {
		return rec.refused
	}
	rec.sniff()
	rec.response.Omitted = true
	if rec.refused = rec.outgrown(rec.response); rec.refused == nil && !rec.live {
		rec.goLive()
	}
	rec.body.b = rec.body.b[:0]
	return rec.refused
}

// goLive sends what was held back.
func (rec *recorder) goLive() {
	rec.sniff()
	rec.live = true
	maps.Copy(rec.w.Header(), rec.momentary)
	rec.response.sendHeader(rec.w, false)
	_, _ = rec.w.Write(rec.body.b)
}

// sniff resolves the Content-Type once, from what is held back now.
func (rec *recorder) sniff() {
	if rec.undeclared && len(rec.body.b) > 0 {
		rec.response.Header["Content-Type"] = []string{http.DetectContentType(rec.body.b)}
	}
	rec.undeclared = false
}

// FlushError is accepted, as handlers expect, and has no effect beyond what net/http does to the header, unless the
// recorder may go live.
func (rec *recorder) FlushError() error {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.closed {
		return http.ErrHandlerTimeout
	}
	rec.writeHeader(http.StatusOK)
	if rec.undeclared && len(rec.body.b) == 0 {
		rec.response.Header["Content-Type"] = nil // there is nothing to sniff, and net/http adds none later
	}
	rec.sniff()
	if rec.stream && !rec.live {
		rec.goLive()
	}
	if !rec.live {
		return nil
	}
	return http.NewResponseController(rec.w).Flush()
}

// Flush is FlushError for those who have no use for the error.
func (rec *recorder) Flush() { _ = rec.FlushError() }

// SetReadDeadline is for http.ResponseController.
func (rec *recorder) SetReadDeadline(t time.Time) error {
	return http.NewResponseController(rec.w).SetReadDeadline(t)
}

// SetWriteDeadline is for http.ResponseController.
func (rec *recorder) SetWriteDeadline(t time.Time) error {
	return http.NewResponseController(rec.w).SetWriteDeadline(t)
}

// EnableFullDuplex is for http.ResponseController.
func (rec *recorder) EnableFullDuplex() error {
	return http.NewResponseController(rec.w).EnableFullDuplex()
}

// finish ends the recording after the handler has returned. It returns the whole response, and whether the handler
// wrote as much body as it had declared: net/http cuts the connection if not.
func (rec *recorder) finish() (resp Response, whole bool) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.writeHeader(http.StatusOK) // unless there is one
	rec.sniff()
	rec.closed = true
	rec.response.Trailer = trailers(rec.header)
	if !rec.response.Omitted {
		rec.response.Body = rec.body.b
	}
	short := rec.declared > rec.accepted && bodyAllowed(rec.response.Status) && rec.r.Method != http.MethodHead
	return rec.response, !short
}

// close makes sure that nothing is written any more, also when the handler did not return.
func (rec *recorder) close() {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.closed = true
}

// send sends what is still to be sent of the finished response.
func (rec *recorder) send(resp Response) {
	if rec.refused != nil {
		return
	}
	if rec.live {
		resp.sendTrailer(rec.w)
		return
	}
	maps.Copy(rec.w.Header(), rec.momentary)
	resp.send(rec.w, false)
}

// send writes the response to a client. Every answer goes through here, the first as well as its replays: that is
// what makes them equal.
func (resp Response) send(w http.ResponseWriter, replayed bool) {
	resp.sendHeader(w, replayed)
	if len(resp.Body) > 0 {
		_, _ = w.Write(resp.Body) // a client that has left gets the answer when it retries
	}
	resp.sendTrailer(w)
}

func (resp Response) sendHeader(w http.ResponseWriter, replayed bool) {
	setFields(w.Header(), resp.Header, replayed)
	w.WriteHeader(resp.Status)
}

func (resp Response) sendTrailer(w http.ResponseWriter) {
	setFields(w.Header(), resp.Trailer, false)
}

// trailers returns the trailer fields in the header that a handler has left behind, in the two forms of net/http:
// declared under "Trailer", or with http.TrailerPrefix.
func trailers(h http.Header) http.Header {
	var t http.Header
	add := func(name string) {
		if values, ok := h[name]; ok {
			if t == nil {
				t = make(http.Header)
			}
			t[name] = slices.Clone(values)
		}
	}
	for _, line := range h["Trailer"] {
		for name := range strings.SplitSeq(line, ",") {
			add(http.CanonicalHeaderKey(strings.TrimSpace(name)))
		}
	}
	for name := range h {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			add(name)
		}
	}
	return t
}

// declaredLength returns the Content-Length that the handler has set, or -1. One that is no length is deleted.
func declaredLength(h http.Header) int64 {
	value := h.Get("Content-Length")
	if value == "" {
		return -1
	}
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || n < 0 {
		h.Del("Content-Length")
		return -1
	}
	return n
}

// hasContentType reports whether net/http would leave the Content-Type alone.
func hasContentType(h http.Header) bool {
	_, set := h["Content-Type"]
	return set || h.Get("Content-Encoding") != "" || h.Get("Transfer-Encoding") != ""
}

// bodyAllowed reports whether a response with this status has a body (RFC 9110, section 6.4.1).
func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}
