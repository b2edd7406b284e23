package idempotency

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// recorder makes a Response of what a guarded handler does, by the rules of net/http's own server, and holds everything
// back until the Response is stored. It goes live, and from then on sends what it records, in two cases only:
//
//   - Options.Stream asks for it, and the handler flushes or has filled the server's own buffer;
//   - the body outgrows the limit and can no longer be kept. The store is told before the first byte goes out.
//
// The handler writes to it through a writer. It sets its fields in the header of the server, like any handler; what
// does not belong to the response is taken back before anything is sent.
type recorder struct {
	w       http.ResponseWriter // of the server, or of outer middleware
	r       *http.Request
	passing passing
	limit   int64

	// stream lets the recorder go live at once.
	stream bool

	// owner is asked before a body that has outgrown the limit is sent. If it is nil, the body is held back however
	// large it grows.
	owner interface{ outgrown(Response) error }

	before     http.Header // what outer middleware has set
	body       buffer
	response   Response    // Status and Header as of WriteHeader
	momentary  http.Header // fields as of WriteHeader that only the first client gets
	declared   int64       // Content-Length as of WriteHeader, or -1
	written    int64       // by the handler, accepted or not
	accepted   int64       // of that, what does not exceed declared
	undeclared bool        // the Content-Type is to be found by sniffing
	live       bool
	untouched  bool  // the header of the server is what the response has, and was not touched since WriteHeader
	refused    error // by owner
}

// streamChunk is how much the recorder holds back before it goes live: as much as net/http's server, which sniffs the
// Content-Type from it.
const streamChunk = 2048

// writeHeader records status and header as they are now. Informational responses are sent and not recorded.
func (rec *recorder) writeHeader(status int) {
	switch {
	case rec.response.Status != 0:
		return
	case status < 100 || status > 999:
		panic(fmt.Sprintf("invalid WriteHeader code %v", status)) // as net/http does
	case status < 200 && status != http.StatusSwitchingProtocols:
		rec.w.WriteHeader(status)
		return
	}
	h := rec.w.Header()
	rec.declared = declaredLength(h)
	rec.undeclared = bodyAllowed(status) && !hasContentType(h)
	rec.response.Status = status
	rec.response.Header, rec.momentary = rec.passing.difference(rec.before, h)
	if _, set := h["Content-Type"]; !set && rec.r.ProtoMajor == 1 && h.Get("Transfer-Encoding") != "" {
		rec.setContentType() // net/http does not sniff now, and must not when this field is gone
	}
	if rec.declared <= rec.limit {
		rec.body.grow(int(min(rec.declared, mostAnnounced)))
	}
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
	return int64(len(rec.body.b)+n) <= rec.limit || rec.owner == nil
}

// outgrow gives up on keeping the body, which goes on with next.
func (rec *recorder) outgrow(next []byte) error {
	if rec.response.Omitted {
		return rec.refused
	}
	rec.sniff(next...)
	rec.response.Omitted = true
	if rec.refused = rec.owner.outgrown(rec.response); rec.refused == nil && !rec.live {
		rec.goLive()
	}
	rec.body.b = rec.body.b[:0]
	return rec.refused
}

// goLive sends what was held back. Trailers that are set already stay in the header.
func (rec *recorder) goLive() {
	rec.sniff()
	trailer := trailers(rec.w.Header())
	rec.setHeader()
	rec.live = true
	rec.w.WriteHeader(rec.response.Status)
	trailer.set(rec.w.Header(), trailer.room(0))
	_, _ = rec.w.Write(rec.body.b)
}

// sniffed is how many bytes of a body its Content-Type is found from.
const sniffed = 512

// sniff resolves the Content-Type once, from what is held back now and what follows it.
func (rec *recorder) sniff(next ...byte) {
	head := slices.Clip(rec.body.b[:min(len(rec.body.b), sniffed)])
	if rec.undeclared && len(head)+len(next) > 0 {
		rec.setContentType(http.DetectContentType(append(head, next...)))
	}
	rec.undeclared = false
}

// flush is accepted, as handlers expect, and has no effect beyond what net/http does to the header, unless the
// recorder may go live.
func (rec *recorder) flush() error {
	rec.writeHeader(http.StatusOK)
	if rec.undeclared && len(rec.body.b) == 0 {
		rec.setContentType() // there is nothing to sniff, and net/http adds none later
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

// finish ends the recording after the handler has returned. It returns the whole response, and whether the handler
// wrote as much body as it had declared: net/http cuts the connection if not.
func (rec *recorder) finish() (resp Response, whole bool) {
	rec.writeHeader(http.StatusOK) // unless there is one
	rec.sniff()
	h := rec.w.Header()
	rec.untouched = len(rec.before) == 0 && rec.response.Header.describes(h)
	if !rec.untouched { // else trailers that are set already go with the header
		rec.response.Trailer = trailers(h)
	}
	if !rec.response.Omitted {
		rec.response.Body = rec.body.b
	}
	short := rec.declared > rec.accepted && bodyAllowed(rec.response.Status) && rec.r.Method != http.MethodHead
	return rec.response, !short
}

// discard takes back all that the handler did to the header of the server, if nothing of it was sent.
func (rec *recorder) discard() {
	if !rec.live {
		clear(rec.w.Header())
		maps.Copy(rec.w.Header(), rec.before)
	}
}

// setHeader makes the header of the server that of the response, and what only the first client gets.
func (rec *recorder) setHeader() {
	if rec.untouched {
		return
	}
	rec.discard()
	maps.Copy(rec.w.Header(), rec.momentary)
	rec.response.Header.set(rec.w.Header(), rec.response.Header.room(0))
}

// send sends what is still to be sent of the finished response.
func (rec *recorder) send() {
	if rec.refused != nil {
		return
	}
	if rec.live {
		rec.response.sendTrailer(rec.w)
		return
	}
	rec.setHeader()
	rec.response.send(rec.w)
}

// replay sends the response once more.
func (resp *Response) replay(w http.ResponseWriter) {
	h := w.Header()
	room := resp.Header.set(h, resp.Header.room(1))
	room = append(room, "true")
	h[replayMarker] = room[len(room)-1:]
	resp.send(w)
}

// send writes the response, whose header is set, to a client. Every answer goes through here, the first as well as its
// replays: that is what makes them equal.
func (resp *Response) send(w http.ResponseWriter) {
	w.WriteHeader(resp.Status)
	if len(resp.Body) > 0 {
		_, _ = w.Write(resp.Body) // a client that has left gets the answer when it retries
	}
	resp.sendTrailer(w)
}

func (resp *Response) sendTrailer(w http.ResponseWriter) {
	if resp.Trailer != "" {
		resp.Trailer.set(w.Header(), resp.Trailer.room(0))
	}
}

// trailers returns the trailer fields in the header that a handler has left behind, in the two forms of net/http:
// declared under "Trailer", or with http.TrailerPrefix.
func trailers(h http.Header) Fields {
	var t http.Header
	add := func(name string) {
		if values, ok := h[name]; ok {
			if t == nil {
				t = make(http.Header)
			}
			t[name] = values
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
	return NewFields(t)
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
