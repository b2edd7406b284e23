package idempotency

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/idempotency-go/idempotency/internal/bounds"
)

// recorder makes a Response of what a guarded handler does, by the rules of net/http's own server. It holds everything
// back until the Response is stored. It begins to send before that in two cases only:
//
//   - Options.Stream asks for it, and the handler flushes or has filled the server's own buffer;
//   - the body outgrows the limit and can no longer be kept. The store is told before the first byte goes out.
//
// The handler writes to it through a writer, and sets its fields in a header of its own.
type recorder struct {
	w        http.ResponseWriter // of the server, or of outer middleware
	r        *http.Request
	unstored unstoredFields
	limit    int64

	// stream lets the recorder send at once.
	stream bool

	// owner is asked before a body that has outgrown the limit is sent. If it is nil, the body is held back however large
	// it grows.
	owner interface{ outgrown(Response) error }

	body     *bounds.Buffer
	values   []string    // memory for those of the header, which the server keeps
	response Response    // Status and Header as of WriteHeader
	once     http.Header // fields as of WriteHeader that only the first client gets
	trailers []string    // names of the trailers that are declared as of WriteHeader
	chunked  bool        // over HTTP/1, net/http sends trailers that are not declared

	contentLength int64 // as of WriteHeader, or -1
	written       int64 // by the handler, accepted or not
	accepted      int64 // of that, what does not exceed contentLength
	mustSniff     bool  // the Content-Type is to be found in the body
	sending       bool
	refused       error // by owner
}

// streamChunk is how much the recorder holds back before it sends: as much as net/http's server, which sniffs the
// Content-Type from it.
const streamChunk = 2048

// writeHeader records status and header as they are now, unless they are recorded already. The header was made from that
// which outer middleware had set before. Informational responses are sent and not recorded.
func (rec *recorder) writeHeader(status int, h, before http.Header) {
	switch {
	case rec.response.Status != 0:
		return
	case status < 100 || status > 999:
		panic(fmt.Sprintf("invalid WriteHeader code %v", status)) // as net/http does
	case status < 200 && status != http.StatusSwitchingProtocols:
		rec.inform(status, h)
		return
	}
	if h == nil { // the handler has not asked for it
		h, before = rec.w.Header(), rec.w.Header()
	}
	rec.contentLength = declaredLength(h)
	rec.mustSniff = bodyAllowed(status) && !hasContentType(h)
	rec.response.Status = status
	rec.response.Header, rec.once = rec.unstored.difference(before, h)
	rec.trailers, rec.chunked = declaredTrailers(h)
	if _, set := h["Content-Type"]; !set && rec.r.ProtoMajor == 1 && h.Get("Transfer-Encoding") != "" {
		rec.setContentType() // net/http does not sniff now, and must not when this field is gone
	}
	if rec.contentLength <= rec.limit {
		rec.body.Grow(int(min(rec.contentLength, mostAnnounced)))
	}
}

// mostAnnounced bounds what is made room for before it is written.
const mostAnnounced = 1 << 20

// inform sends an informational response, with the header as the handler has it now, but without the mark of a replay.
func (rec *recorder) inform(status int, h http.Header) {
	outer := rec.w.Header()
	before := maps.Clone(outer)
	if h != nil {
		clear(outer)
		maps.Copy(outer, h)
		maps.DeleteFunc(outer, func(name string, _ []string) bool { return fieldName(name) == replayMarker })
	}
	rec.w.WriteHeader(status)
	clear(outer)
	maps.Copy(outer, before)
}

// setContentType records the Content-Type; without a value it keeps net/http from finding one.
func (rec *recorder) setContentType(value ...string) {
	rec.response.Header = rec.response.Header.with("Content-Type", value)
}

func record[T []byte | string](rec *recorder, p T) (int, error) {
	if err := rec.accept(len(p)); err != nil {
		return 0, err
	}
	if len(p) > 0 && !rec.keeps(len(p)) {
		if err := rec.outgrow([]byte(p[:min(len(p), sniffed)])); err != nil {
			return 0, err
		}
		return rec.w.Write([]byte(p))
	}
	if len(rec.body.B)+len(p) <= bounds.MaxPooled {
		rec.body.Grow(len(p)) // else append knows better by how much
	}
	rec.body.B = append(rec.body.B, p...)
	if rec.sending {
		_, _ = rec.w.Write([]byte(p)) // what is recorded does not depend on whether the client is still there
	} else if rec.stream && len(rec.body.B) >= streamChunk {
		rec.beginToSend()
	}
	return len(p), nil
}

// accept answers as net/http does to n more bytes.
func (rec *recorder) accept(n int) error {
	if n == 0 {
		return nil
	}
	if !bodyAllowed(rec.response.Status) {
		return http.ErrBodyNotAllowed
	}
	rec.written += int64(n)
	if rec.contentLength >= 0 && rec.written > rec.contentLength {
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
	return int64(len(rec.body.B)+n) <= rec.limit || rec.owner == nil
}

// outgrow gives up on keeping the body, which goes on with next.
func (rec *recorder) outgrow(next []byte) error {
	if rec.response.Omitted {
		return rec.refused
	}
	rec.sniff(next...)
	rec.response.Omitted = true
	if rec.refused = rec.owner.outgrown(rec.response); rec.refused == nil && !rec.sending {
		rec.beginToSend()
	}
	rec.body.B = rec.body.B[:0]
	return rec.refused
}

// beginToSend sends what was held back.
func (rec *recorder) beginToSend() {
	rec.sniff()
	rec.setHeader()
	rec.sending = true
	rec.w.WriteHeader(rec.response.Status)
	_, _ = rec.w.Write(rec.body.B)
}

// sniffed is how many bytes of a body its Content-Type is found from.
const sniffed = 512

// sniff resolves the Content-Type once, from what is held back now and what follows it.
func (rec *recorder) sniff(next ...byte) {
	head := slices.Clip(rec.body.B[:min(len(rec.body.B), sniffed)]) // else next would be written into the buffer
	if rec.mustSniff && len(head)+len(next) > 0 {
		rec.setContentType(http.DetectContentType(append(head, next...)))
	}
	rec.mustSniff = false
}

// flush is accepted, as handlers expect, and has no effect beyond what net/http does to header and trailers, unless the
// recorder may send.
func (rec *recorder) flush() error {
	rec.chunked = true
	if rec.mustSniff && len(rec.body.B) == 0 {
		rec.setContentType() // there is nothing to sniff, and net/http adds none later
	}
	rec.sniff()
	if rec.stream && !rec.sending {
		rec.beginToSend()
	}
	if !rec.sending {
		return nil
	}
	return http.NewResponseController(rec.w).Flush()
}

// finish ends the recording after the handler has returned. It returns the whole response, and whether the handler wrote
// as much body as it had declared: net/http cuts the connection if not.
func (rec *recorder) finish(h http.Header) (resp Response, complete bool) {
	rec.sniff()
	rec.response.Trailer = rec.trailer(h)
	if !rec.response.Omitted {
		rec.response.Body = rec.body.B
	}
	short := rec.contentLength > rec.accepted && bodyAllowed(rec.response.Status) && rec.r.Method != http.MethodHead
	return rec.response, !short
}

// trailer returns the trailer fields that the handler has left behind in its header, in the two forms of net/http:
// declared, or with http.TrailerPrefix. Of the second form net/http sends nothing over HTTP/1 if it knows the length of
// the body. Then the header is not read here, either: a goroutine that was left behind may write to it. The mark of a
// replay is left out.
func (rec *recorder) trailer(h http.Header) Fields {
	prefixed := rec.chunked || rec.r.ProtoMajor > 1 || rec.written > streamChunk
	if h == nil || len(rec.trailers) == 0 && !prefixed {
		return ""
	}
	t := make(http.Header)
	for _, name := range rec.trailers {
		if values, set := h[name]; set && fieldName(name) != replayMarker {
			t[name] = values
		}
	}
	for name, values := range h {
		if strings.HasPrefix(name, http.TrailerPrefix) && fieldName(name) != replayMarker {
			t[name] = values
		}
	}
	return NewFields(t)
}

// setHeader makes the header of the server that of the response, and adds what only the first client gets.
func (rec *recorder) setHeader() {
	h := rec.w.Header()
	maps.Copy(h, rec.once)
	rec.response.Header.set(h, rec.values)
}

// send sends what is still to be sent of the finished response.
func (rec *recorder) send() {
	if rec.sending {
		rec.response.sendTrailer(rec.w)
		return
	}
	rec.setHeader()
	rec.response.send(rec.w)
}

// replay sends the response once more.
func (resp *Response) replay(w http.ResponseWriter) {
	h := w.Header()
	values := resp.Header.set(h, make([]string, 0, resp.Header.lines()+1))
	values = append(values, "true")
	h[replayMarker] = values[len(values)-1:]
	resp.send(w)
}

// send writes the response, whose header is set, to a client. Every answer goes through here, the first as well as its
// replays: that is what makes them equal.
func (resp *Response) send(w http.ResponseWriter) {
	if early := resp.Trailer.prefixed(); early != "" {
		early.set(w.Header(), early.noValues()) // over HTTP/1, net/http must know of them before the body
	}
	w.WriteHeader(resp.Status)
	if len(resp.Body) > 0 {
		_, _ = w.Write(resp.Body) // a client that has left gets the answer when it retries
	}
	resp.sendTrailer(w)
}

func (resp *Response) sendTrailer(w http.ResponseWriter) {
	if resp.Trailer != "" {
		resp.Trailer.set(w.Header(), resp.Trailer.noValues())
	}
}

// declaredTrailers returns the names of the trailers that a header declares, and whether it has some that need no
// declaration. A length is none: net/http does not send it as a declared trailer.
func declaredTrailers(h http.Header) (names []string, prefixed bool) {
	for _, line := range h["Trailer"] {
		for name := range strings.SplitSeq(line, ",") {
			if name = http.CanonicalHeaderKey(strings.TrimSpace(name)); name != "Content-Length" {
				names = append(names, name)
			}
		}
	}
	for name := range h {
		prefixed = prefixed || strings.HasPrefix(name, http.TrailerPrefix)
	}
	return names, prefixed
}

// declaredLength returns the Content-Length that the handler has set, or -1. One that is no length is deleted. A field
// without a value stays: it keeps net/http from adding one.
func declaredLength(h http.Header) int64 {
	values := h["Content-Length"]
	if len(values) == 0 {
		return -1
	}
	n, err := strconv.ParseInt(values[0], 10, 64)
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
