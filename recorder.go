package idempotency

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/idempotency-go/idempotency/internal/bounds"
)

// writer is the http.ResponseWriter that a guarded handler writes to. A handler may leave goroutines behind that use it
// for ever: it lets go of the recorder when the handler returns.
//
// Inside of a framework that answersLater, it leads to the writer of the framework once the handler has failed to answer:
// the framework may answer by way of it.
//
// It has neither Unwrap nor ReadFrom, because both would let bytes pass by the record, and no Hijack.
type writer struct {
	outer http.ResponseWriter

	mu     sync.Mutex
	header http.Header // of the handler's own, as in http.TimeoutHandler; nil: it has not asked for it
	before http.Header // what outer middleware had set when the handler asked for it
	rec    *recorder   // nil: the handler has returned
	open   bool        // to outer, because the handler has returned and the framework is to answer
}

// Header returns the header of the response, which begins with what outer middleware has set.
func (w *writer) Header() http.Header {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open {
		return w.outer.Header()
	}
	if w.header == nil && w.rec != nil {
		outer := w.outer.Header()
		w.header = outer.Clone()
		if len(outer) > 0 {
			w.before = maps.Clone(outer)
		}
	}
	if w.header == nil {
		w.header = make(http.Header)
	}
	return w.header
}

// WriteHeader records status and header as they are now.
func (w *writer) WriteHeader(status int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.open:
		w.outer.WriteHeader(status)
	case w.rec != nil:
		w.rec.writeHeader(status, w.header, w.before)
	}
}

// Write records p.
func (w *writer) Write(p []byte) (int, error) { return write(w, p) }

// WriteString records s without a copy in between.
func (w *writer) WriteString(s string) (int, error) { return write(w, s) }

func write[T []byte | string](w *writer, p T) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.open:
		return w.outer.Write([]byte(p))
	case w.rec == nil:
		return 0, http.ErrHandlerTimeout
	}
	w.rec.writeHeader(http.StatusOK, w.header, w.before) // unless there is one
	return record(w.rec, p)
}

// FlushError is accepted, as handlers expect. It sends nothing unless the answer is streamed.
func (w *writer) FlushError() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.open:
		return http.NewResponseController(w.outer).Flush()
	case w.rec == nil:
		return http.ErrHandlerTimeout
	}
	w.rec.writeHeader(http.StatusOK, w.header, w.before)
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

// finish ends the recording: nothing is written any more. It reports whether anything was, and whether the response is
// complete.
func (w *writer) finish() (resp Response, wrote, complete bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	wrote = w.rec.response.Status != 0
	w.rec.writeHeader(http.StatusOK, w.header, w.before)
	resp, complete = w.rec.finish(w.header)
	w.rec = nil
	return resp, wrote, complete
}

// close ends the recording of a handler that has not returned: it has panicked, or has called runtime.Goexit.
func (w *writer) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open = w.open || w.rec != nil && answersLater(w.outer)
	w.rec = nil
}

// handOver lets a framework answer.
func (w *writer) handOver() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open = true
}

// bodyReader gives a handler the body that was read before, and nothing once the handler has returned: the buffer
// belongs to another request by then, and a goroutine that the handler left behind must not see it.
type bodyReader struct {
	mu     sync.Mutex
	unread []byte
	closed bool
}

func (r *bodyReader) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0, http.ErrBodyReadAfterClose
	}
	if len(r.unread) == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.unread)
	r.unread = r.unread[n:]
	return n, nil
}

func (r *bodyReader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unread, r.closed = nil, true
	return nil
}

// errAnsweredLater is why nothing is stored if a handler wrote nothing, and answersLater is true of its framework.
var errAnsweredLater = errors.New("idempotency: the handler wrote nothing, and the framework around the middleware " +
	"answers after it: mount the middleware by the framework's adapter, around whatever makes answers of errors")

// The methods by which the writers of echo and gin are recognised. Both answer after their handlers have returned.
type (
	// echoWriter is the writer of echo v4 and v5. echo makes an answer of the error that a handler has returned.
	echoWriter interface {
		Before(func())
		After(func())
	}

	// ginWriter is the writer of gin. gin answers with the status that a handler has set.
	ginWriter interface {
		WriteHeaderNow()
		Written() bool
	}
)

// turnsAway reports whether the writer of a framework has been told a status by which the handler turns the request away.
func turnsAway(w http.ResponseWriter) bool {
	told, ok := w.(interface{ Status() int })
	return ok && refused(told.Status())
}

// answersLater reports whether w, or a writer that it wraps, is that of a framework that answers after its handlers
// have returned. Then a handler that wrote nothing has not said that all is well: it may have returned an error to the
// framework, or have written past the middleware.
func answersLater(w http.ResponseWriter) bool {
	for {
		switch outer := w.(type) {
		case echoWriter, ginWriter:
			return true
		case interface{ Unwrap() http.ResponseWriter }:
			w = outer.Unwrap()
		default:
			return false
		}
	}
}

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
	rules    recorderRules
	overflow *overflow // is told before a body that has outgrown the limit is sent

	response  Response // Status and Header as of WriteHeader
	head      recordedHead
	body      recordedBody
	isSending bool
	refused   error // by overflow: nothing may be sent
}

// recorderRules says what is recorded, and when it is sent.
type recorderRules struct {
	unstored   unstoredFields
	limit      int64 // of the body
	isStreamed bool  // lets the recorder send at once
}

// recordedHead is what the recorder knows of the header, as of WriteHeader, besides what is stored.
type recordedHead struct {
	values    []string    // memory for the values of the header, which the server keeps
	once      http.Header // fields that only the first client gets
	trailers  []string    // names of the trailers that are declared
	isChunked bool        // over HTTP/1, net/http sends trailers that are not declared
	mustSniff bool        // the Content-Type is to be found in the body
}

// recordedBody is the body as the handler writes it.
type recordedBody struct {
	buffer   *bounds.Buffer
	declared int64 // the Content-Length as of WriteHeader, or -1
	written  int64 // by the handler, accepted or not
	accepted int64 // of written, what does not exceed declared
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
	rec.body.declared = declaredLength(h)
	rec.head.mustSniff = bodyAllowed(status) && !hasContentType(h)
	rec.response.Status = status
	rec.response.Header, rec.head.once = rec.rules.unstored.difference(before, h)
	rec.head.trailers, rec.head.isChunked = declaredTrailers(h)
	if _, set := h["Content-Type"]; !set && rec.r.ProtoMajor == 1 && h.Get("Transfer-Encoding") != "" {
		rec.setContentType() // net/http does not sniff now, and must not when this field is gone
	}
	if rec.body.declared <= rec.rules.limit {
		rec.body.buffer.Grow(int(min(rec.body.declared, mostAnnounced)))
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
	if len(rec.body.buffer.B)+len(p) <= bounds.MaxPooled {
		rec.body.buffer.Grow(len(p)) // else append knows better by how much
	}
	rec.body.buffer.B = append(rec.body.buffer.B, p...)
	if rec.isSending {
		_, _ = rec.w.Write([]byte(p)) // what is recorded does not depend on whether the client is still there
	} else if rec.rules.isStreamed && len(rec.body.buffer.B) >= streamChunk {
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
	rec.body.written += int64(n)
	if rec.body.declared >= 0 && rec.body.written > rec.body.declared {
		return http.ErrContentLength
	}
	rec.body.accepted += int64(n)
	return nil
}

// keeps reports whether n more bytes go into the buffer.
func (rec *recorder) keeps(n int) bool {
	if rec.response.Omitted {
		return false
	}
	return int64(len(rec.body.buffer.B)+n) <= rec.rules.limit
}

// outgrow gives up on keeping the body, which goes on with next.
func (rec *recorder) outgrow(next []byte) error {
	if rec.response.Omitted {
		return rec.refused
	}
	rec.sniff(next...)
	rec.response.Omitted = true
	if rec.refused = rec.overflow.settle(rec.response); rec.refused == nil && !rec.isSending {
		rec.beginToSend()
	}
	rec.body.buffer.B = rec.body.buffer.B[:0]
	return rec.refused
}

// beginToSend sends what was held back.
func (rec *recorder) beginToSend() {
	rec.sniff()
	rec.setHeader()
	rec.isSending = true
	rec.w.WriteHeader(rec.response.Status)
	_, _ = rec.w.Write(rec.body.buffer.B)
}

// sniffed is how many bytes of a body its Content-Type is found from.
const sniffed = 512

// sniff resolves the Content-Type once, from what is held back now and what follows it.
func (rec *recorder) sniff(next ...byte) {
	head := slices.Clip(rec.body.buffer.B[:min(len(rec.body.buffer.B), sniffed)]) // else next would be written into the buffer
	if rec.head.mustSniff && len(head)+len(next) > 0 {
		rec.setContentType(http.DetectContentType(append(head, next...)))
	}
	rec.head.mustSniff = false
}

// flush is accepted, as handlers expect, and has no effect beyond what net/http does to header and trailers, unless the
// recorder may send.
func (rec *recorder) flush() error {
	rec.head.isChunked = true
	if rec.head.mustSniff && len(rec.body.buffer.B) == 0 {
		rec.setContentType() // there is nothing to sniff, and net/http adds none later
	}
	rec.sniff()
	if rec.rules.isStreamed && !rec.isSending {
		rec.beginToSend()
	}
	if !rec.isSending {
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
		rec.response.Body = rec.body.buffer.B
	}
	short := rec.body.declared > rec.body.accepted && bodyAllowed(rec.response.Status) && rec.r.Method != http.MethodHead
	return rec.response, !short
}

// trailer returns the trailer fields that the handler has left behind in its header, in the two forms of net/http:
// declared, or with http.TrailerPrefix. Of the second form net/http sends nothing over HTTP/1 if it knows the length of
// the body. Then the header is not read here, either: a goroutine that was left behind may write to it. The mark of a
// replay is left out.
func (rec *recorder) trailer(h http.Header) Fields {
	prefixed := rec.head.isChunked || rec.r.ProtoMajor > 1 || rec.body.written > streamChunk
	if h == nil || len(rec.head.trailers) == 0 && !prefixed {
		return ""
	}
	t := make(http.Header)
	for _, name := range rec.head.trailers {
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
	maps.Copy(h, rec.head.once)
	rec.response.Header.set(h, rec.head.values)
}

// send sends what is still to be sent of the finished response.
func (rec *recorder) send() {
	if rec.isSending {
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
