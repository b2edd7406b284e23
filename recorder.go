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

// answerWriter is the http.ResponseWriter of a guarded handler. A handler may leave goroutines behind, and any of them
// may keep the answerWriter forever. To keep such goroutines away from later requests, the answerWriter drops the
// recorder when the handler returns.
//
// Inside a framework like echo or gin, a handler may return without an answer. The answerWriter then passes everything
// through to the writer of the framework, because the framework may write the answer to the answerWriter.
//
// answerWriter deliberately lacks Unwrap, ReadFrom and Hijack, because all three would let bytes bypass the record.
type answerWriter struct {
	outerWriter http.ResponseWriter

	mu             sync.Mutex
	handlerHeader  http.Header     // a separate header, as in http.TimeoutHandler; nil before the handler calls Header
	outerHeader    http.Header     // the header of outer middleware, when the handler first called Header
	answerRecorder *answerRecorder // nil after the handler has returned
	isPassThrough  bool            // the handler has returned, and the framework answers through the answerWriter
}

// Header returns the header of the answer. At the first call the header is a copy of the header of outer middleware.
func (w *answerWriter) Header() http.Header {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.isPassThrough {
		return w.outerWriter.Header()
	}
	if w.handlerHeader == nil && w.answerRecorder != nil {
		outer := w.outerWriter.Header()
		w.handlerHeader = outer.Clone()
		if len(outer) > 0 {
			w.outerHeader = maps.Clone(outer)
		}
	}
	if w.handlerHeader == nil {
		w.handlerHeader = make(http.Header)
	}
	return w.handlerHeader
}

// WriteHeader records status and the current header.
func (w *answerWriter) WriteHeader(status int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.isPassThrough:
		w.outerWriter.WriteHeader(status)
	case w.answerRecorder != nil:
		w.answerRecorder.writeHeader(status, w.handlerHeader, w.outerHeader)
	}
}

// Write records p.
func (w *answerWriter) Write(p []byte) (int, error) { return writeAnswer(w, p) }

// WriteString records s without copying s to a byte slice first.
func (w *answerWriter) WriteString(s string) (int, error) { return writeAnswer(w, s) }

// writeAnswer records p, and before p the status 200 unless a status is recorded.
func writeAnswer[T []byte | string](w *answerWriter, p T) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.isPassThrough:
		return w.outerWriter.Write([]byte(p))
	case w.answerRecorder == nil:
		return 0, http.ErrHandlerTimeout
	}
	w.answerRecorder.writeHeader(http.StatusOK, w.handlerHeader, w.outerHeader)
	return recordBody(w.answerRecorder, p)
}

// FlushError accepts a flush, because handlers expect success. Only a streamed answer is sent by a flush.
func (w *answerWriter) FlushError() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.isPassThrough:
		return http.NewResponseController(w.outerWriter).Flush()
	case w.answerRecorder == nil:
		return http.ErrHandlerTimeout
	}
	w.answerRecorder.writeHeader(http.StatusOK, w.handlerHeader, w.outerHeader)
	return w.answerRecorder.flushAnswer()
}

// Flush is FlushError without the error, as in [http.Flusher].
func (w *answerWriter) Flush() { _ = w.FlushError() }

// SetReadDeadline serves [http.ResponseController].
func (w *answerWriter) SetReadDeadline(t time.Time) error {
	return http.NewResponseController(w.outerWriter).SetReadDeadline(t)
}

// SetWriteDeadline serves [http.ResponseController].
func (w *answerWriter) SetWriteDeadline(t time.Time) error {
	return http.NewResponseController(w.outerWriter).SetWriteDeadline(t)
}

// EnableFullDuplex serves [http.ResponseController].
func (w *answerWriter) EnableFullDuplex() error {
	return http.NewResponseController(w.outerWriter).EnableFullDuplex()
}

// finishRecording ends the recording after the handler has returned, and returns the recorded answer. The result wrote
// reports whether the handler wrote anything, and isComplete whether the body is as long as the declared
// Content-Length.
func (w *answerWriter) finishRecording() (resp Response, wrote, isComplete bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	wrote = w.answerRecorder.response.Status != 0
	w.answerRecorder.writeHeader(http.StatusOK, w.handlerHeader, w.outerHeader)
	resp, isComplete = w.answerRecorder.finishResponse(w.handlerHeader)
	w.answerRecorder = nil
	return resp, wrote, isComplete
}

// close ends the recording of a handler that panicked or called [runtime.Goexit]. If the handler has returned, close
// changes nothing.
func (w *answerWriter) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isPassThrough = w.isPassThrough || w.answerRecorder != nil && answersAfterHandler(w.outerWriter)
	w.answerRecorder = nil
}

// passThrough connects the answerWriter with the writer of the framework.
func (w *answerWriter) passThrough() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isPassThrough = true
}

// bodyReader gives the handler the request body from memory. Once the handler has returned, reading fails: the buffer
// then belongs to a later request, and goroutines that the handler left behind must see none of its bytes.
type bodyReader struct {
	mu         sync.Mutex
	unreadBody []byte
	isClosed   bool
}

func (r *bodyReader) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isClosed {
		return 0, http.ErrBodyReadAfterClose
	}
	if len(r.unreadBody) == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.unreadBody)
	r.unreadBody = r.unreadBody[n:]
	return n, nil
}

func (r *bodyReader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unreadBody, r.isClosed = nil, true
	return nil
}

// errLeftToFramework is the reason to store nothing if a handler wrote nothing inside a framework like echo or gin.
var errLeftToFramework = errors.New("idempotency: the handler wrote nothing, and a framework such as echo or gin answers " +
	"after the handler: mount the middleware by the framework's adapter, outside of everything that turns errors into answers")

// The writers of echo and gin are recognised by their methods. Both frameworks answer after their handlers have returned.
type (
	// echoWriter is the writer of echo v4 and v5. After a handler has returned an error, echo makes an answer of the
	// error.
	echoWriter interface {
		Before(func())
		After(func())
	}

	// ginWriter is the writer of gin. After a handler has set a status without writing, gin answers with the status.
	ginWriter interface {
		WriteHeaderNow()
		Written() bool
	}
)

// hasRefusalStatus reports whether the handler has told the framework's writer a status that turns the request away.
func hasRefusalStatus(w http.ResponseWriter) bool {
	statusWriter, ok := w.(interface{ Status() int })
	return ok && isRefusalStatus(statusWriter.Status())
}

// answersAfterHandler reports whether w, or a writer that w wraps, belongs to a framework that answers after its
// handlers have returned. An unwritten answer means nothing in such a framework: the handler may have returned an error
// to the framework, or may have written past the middleware.
func answersAfterHandler(w http.ResponseWriter) bool {
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

// answerRecorder makes a Response of what a guarded handler writes, by the rules of net/http's own server. The recorder
// keeps the answer in memory until the Response is stored. Only two kinds of answers are sent earlier:
//
//   - Options.Stream is set, and the handler flushes or has filled the server's own buffer;
//   - the body is larger than the limit and can no longer be kept. overflowSettler settles the claim before the first
//     byte is sent.
//
// The handler writes through an answerWriter, and has a header of its own.
type answerRecorder struct {
	w               http.ResponseWriter // the writer of the server or of outer middleware
	r               *http.Request
	rules           recorderRules
	overflowSettler *overflowSettler // settles the claim before a body larger than the limit is sent

	response        Response // Status and Header are set by writeHeader
	headState       headState
	bodyState       bodyState
	isSending       bool  // the header has been sent
	overflowRefusal error // the claim was lost when overflowSettler settled, and nothing may be sent
}

// recorderRules decide what is recorded, and when the answer is sent.
type recorderRules struct {
	unstoredFields unstoredFields
	bodyLimit      int64 // the largest body to store, in bytes
	isStreamed     bool  // the answer may be sent before the answer is stored
}

// headState is what the recorder notes about the header at WriteHeader, besides the stored fields.
type headState struct {
	valueBuffer    []string    // memory for the values of the header; the server keeps the values
	unstoredHeader http.Header // fields for the first client only
	trailerNames   []string    // declared by the field Trailer
	mayBeChunked   bool        // over HTTP/1, net/http may send trailers without a declaration
	mustSniff      bool        // the Content-Type has to be detected from the body
}

// bodyState is the body as the handler writes it.
type bodyState struct {
	buffer         *bounds.Buffer
	declaredLength int64 // the Content-Length at WriteHeader, or -1
	writtenBytes   int64 // all bytes that the handler has written
	acceptedBytes  int64 // bytes of the writes that ended within declaredLength
}

// sendThreshold is how many bytes a streamed answer is held back. The buffer of net/http's server has the same size,
// and net/http detects the Content-Type from the buffer.
const sendThreshold = 2048

// writeHeader records status and the current header, unless a status is recorded already. Only the difference between
// header and outerHeader is stored. An informational response is sent at once and never recorded.
func (rec *answerRecorder) writeHeader(status int, header, outerHeader http.Header) {
	switch {
	case rec.response.Status != 0:
		return
	case status < 100 || status > 999:
		panic(fmt.Sprintf("invalid WriteHeader code %v", status)) // as net/http does
	case status < 200 && status != http.StatusSwitchingProtocols:
		rec.sendInformational(status, header)
		return
	}
	if header == nil { // the handler has never called Header
		header, outerHeader = rec.w.Header(), rec.w.Header()
	}
	rec.bodyState.declaredLength = takeContentLength(header)
	rec.headState.mustSniff = bodyAllowed(status) && !hasContentType(header)
	rec.response.Status = status
	rec.response.Header, rec.headState.unstoredHeader = rec.rules.unstoredFields.diffHeaders(outerHeader, header)
	rec.headState.trailerNames, rec.headState.mayBeChunked = declaredTrailers(header)
	if _, set := header["Content-Type"]; !set && rec.r.ProtoMajor == 1 && header.Get("Transfer-Encoding") != "" {
		rec.setContentType() // Transfer-Encoding keeps net/http from sniffing, but the field is never stored
	}
	if rec.bodyState.declaredLength <= rec.rules.bodyLimit {
		rec.bodyState.buffer.Grow(int(min(rec.bodyState.declaredLength, maxPreallocated)))
	}
}

// maxPreallocated bounds the memory reserved by a Content-Length before the handler writes.
const maxPreallocated = 1 << 20

// sendInformational sends an informational response with the handler's current header, except the mark of a replay.
// Afterwards the header of outer middleware is as before.
func (rec *answerRecorder) sendInformational(status int, header http.Header) {
	outer := rec.w.Header()
	before := maps.Clone(outer)
	if header != nil {
		clear(outer)
		maps.Copy(outer, header)
		maps.DeleteFunc(outer, func(name string, _ []string) bool { return canonicalFieldName(name) == replayMarker })
	}
	rec.w.WriteHeader(status)
	clear(outer)
	maps.Copy(outer, before)
}

// setContentType records the Content-Type. A field without a value keeps net/http from detecting one.
func (rec *answerRecorder) setContentType(value ...string) {
	rec.response.Header = rec.response.Header.withField("Content-Type", value)
}

// recordBody appends p to the body. A body that grows beyond the limit is sent instead of recorded from here on.
func recordBody[T []byte | string](rec *answerRecorder, p T) (int, error) {
	if err := rec.acceptBytes(len(p)); err != nil {
		return 0, err
	}
	if len(p) > 0 && !rec.fitsLimit(len(p)) {
		if err := rec.stopBuffering([]byte(p[:min(len(p), sniffLength)])); err != nil {
			return 0, err
		}
		return rec.w.Write([]byte(p))
	}
	if len(rec.bodyState.buffer.B)+len(p) <= bounds.MaxPooled {
		rec.bodyState.buffer.Grow(len(p)) // for a larger buffer, append chooses a better capacity
	}
	rec.bodyState.buffer.B = append(rec.bodyState.buffer.B, p...)
	if rec.isSending {
		_, _ = rec.w.Write([]byte(p)) // the record must be complete even if the client has left
	} else if rec.rules.isStreamed && len(rec.bodyState.buffer.B) >= sendThreshold {
		rec.startSending()
	}
	return len(p), nil
}

// acceptBytes counts n more bytes, and returns the error that net/http would return.
func (rec *answerRecorder) acceptBytes(n int) error {
	if n == 0 {
		return nil
	}
	if !bodyAllowed(rec.response.Status) {
		return http.ErrBodyNotAllowed
	}
	rec.bodyState.writtenBytes += int64(n)
	if rec.bodyState.declaredLength >= 0 && rec.bodyState.writtenBytes > rec.bodyState.declaredLength {
		return http.ErrContentLength
	}
	rec.bodyState.acceptedBytes += int64(n)
	return nil
}

// fitsLimit reports whether the body is kept and has room for n more bytes.
func (rec *answerRecorder) fitsLimit(n int) bool {
	if rec.response.Omitted {
		return false
	}
	return int64(len(rec.bodyState.buffer.B)+n) <= rec.rules.bodyLimit
}

// stopBuffering stops keeping the body at the first byte beyond the limit. After the claim is settled, the answer
// begins to go out. The parameter next is the continuation of the body, for the detection of the Content-Type.
func (rec *answerRecorder) stopBuffering(next []byte) error {
	if rec.response.Omitted {
		return rec.overflowRefusal
	}
	rec.sniffContentType(next...)
	answer := rec.response
	answer.Omitted = true
	refusal := rec.overflowSettler.settleOverflow(answer) // if Storable panics here, the next write settles again
	rec.response.Omitted, rec.overflowRefusal = true, refusal
	if refusal == nil && !rec.isSending {
		rec.startSending()
	}
	rec.bodyState.buffer.B = rec.bodyState.buffer.B[:0]
	return rec.overflowRefusal
}

// startSending sends header and buffered body.
func (rec *answerRecorder) startSending() {
	rec.sniffContentType()
	rec.setHeader()
	rec.isSending = true
	rec.w.WriteHeader(rec.response.Status)
	_, _ = rec.w.Write(rec.bodyState.buffer.B)
}

// sniffLength is how many bytes of a body http.DetectContentType considers.
const sniffLength = 512

// sniffContentType detects the Content-Type once, from the buffered body followed by next.
func (rec *answerRecorder) sniffContentType(next ...byte) {
	body := rec.bodyState.buffer.B
	head := slices.Clip(body[:min(len(body), sniffLength)]) // clipped, so that append copies instead of writing into the buffer
	if rec.headState.mustSniff && len(head)+len(next) > 0 {
		rec.setContentType(http.DetectContentType(append(head, next...)))
	}
	rec.headState.mustSniff = false
}

// flushAnswer does to header and trailer what a flush does in net/http. The answer is sent only if the answer is
// streamed or sending has begun.
func (rec *answerRecorder) flushAnswer() error {
	rec.headState.mayBeChunked = true
	if rec.headState.mustSniff && len(rec.bodyState.buffer.B) == 0 {
		rec.setContentType() // after a flush without a body, net/http adds no Content-Type
	}
	rec.sniffContentType()
	if rec.rules.isStreamed && !rec.isSending {
		rec.startSending()
	}
	if !rec.isSending {
		return nil
	}
	return http.NewResponseController(rec.w).Flush()
}

// finishResponse returns the whole response after the handler has returned, and whether the body is as long as
// declared. For a shorter body net/http would cut the connection.
func (rec *answerRecorder) finishResponse(header http.Header) (resp Response, isComplete bool) {
	rec.sniffContentType()
	rec.response.Trailer = rec.collectTrailer(header)
	if !rec.response.Omitted {
		rec.response.Body = rec.bodyState.buffer.B
	}
	isTruncated := rec.bodyState.declaredLength > rec.bodyState.acceptedBytes &&
		bodyAllowed(rec.response.Status) && rec.r.Method != http.MethodHead
	return rec.response, !isTruncated
}

// collectTrailer returns the trailer fields in the handler's header, in both forms of net/http: declared, or with
// http.TrailerPrefix. The mark of a replay is left out.
//
// Over HTTP/1, net/http sends the second form only if the length of the body is unknown. Otherwise collectTrailer
// leaves the header unread, because a goroutine that the handler left behind may be writing to the header.
func (rec *answerRecorder) collectTrailer(header http.Header) Fields {
	sendsPrefixed := rec.headState.mayBeChunked || rec.r.ProtoMajor > 1 || rec.bodyState.writtenBytes > sendThreshold
	if header == nil || len(rec.headState.trailerNames) == 0 && !sendsPrefixed {
		return ""
	}
	trailer := make(http.Header)
	for _, name := range rec.headState.trailerNames {
		if values, set := header[name]; set && canonicalFieldName(name) != replayMarker {
			trailer[name] = values
		}
	}
	for name, values := range header {
		if strings.HasPrefix(name, http.TrailerPrefix) && canonicalFieldName(name) != replayMarker {
			trailer[name] = values
		}
	}
	return NewFields(trailer)
}

// setHeader copies the recorded header, and the fields for the first client only, to the header of the server.
func (rec *answerRecorder) setHeader() {
	h := rec.w.Header()
	maps.Copy(h, rec.headState.unstoredHeader)
	rec.response.Header.setFields(h, rec.headState.valueBuffer)
	rec.overflowSettler.setKeyInfo(h)
}

// sendRemaining sends the finished response, or only the trailer if header and body have been sent before.
func (rec *answerRecorder) sendRemaining() {
	if rec.isSending {
		rec.response.sendTrailer(rec.w)
		return
	}
	rec.setHeader()
	rec.response.sendResponse(rec.w)
}

// sendAsReplay sends the response with the mark of a replay.
func (resp *Response) sendAsReplay(w http.ResponseWriter) {
	h := w.Header()
	values := resp.Header.setFields(h, make([]string, 0, resp.Header.countLines()+1))
	values = append(values, "true")
	h[replayMarker] = values[len(values)-1:]
	resp.sendResponse(w)
}

// sendResponse writes the response after its header is set. First answers and replays both go through sendResponse, so
// both are equal.
func (resp *Response) sendResponse(w http.ResponseWriter) {
	if prefixed := resp.Trailer.prefixedTrailers(); prefixed != "" {
		prefixed.setFields(w.Header(), prefixed.makeValues()) // over HTTP/1, net/http must know prefixed trailers before the body
	}
	w.WriteHeader(resp.Status)
	if len(resp.Body) > 0 {
		_, _ = w.Write(resp.Body) // a client that has left gets the answer by a retry
	}
	resp.sendTrailer(w)
}

// sendTrailer sets the trailer fields in the header of the server. The server sends the trailer when the handler
// returns.
func (resp *Response) sendTrailer(w http.ResponseWriter) {
	if resp.Trailer != "" {
		resp.Trailer.setFields(w.Header(), resp.Trailer.makeValues())
	}
}

// declaredTrailers returns the names that a header declares as trailers, except Content-Length, because net/http never
// sends a declared Content-Length. The result hasPrefixed reports whether the header has trailers with
// http.TrailerPrefix.
func declaredTrailers(h http.Header) (names []string, hasPrefixed bool) {
	for _, line := range h["Trailer"] {
		for name := range strings.SplitSeq(line, ",") {
			if name = http.CanonicalHeaderKey(strings.TrimSpace(name)); name != "Content-Length" {
				names = append(names, name)
			}
		}
	}
	for name := range h {
		hasPrefixed = hasPrefixed || strings.HasPrefix(name, http.TrailerPrefix)
	}
	return names, hasPrefixed
}

// takeContentLength returns the Content-Length that the handler has set, or -1. An invalid length is deleted from h. A
// field without a value stays, because such a field keeps net/http from adding a length.
func takeContentLength(h http.Header) int64 {
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

// bodyAllowed reports whether a response with status may have a body (RFC 9110, section 6.4.1).
func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}
