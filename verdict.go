package idempotency

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"io"
	"net/http"
	"strings"
)

// Verdict says what an answer means for its operation.
type Verdict int32

const (
	undecided Verdict = iota

	// Keep ends the operation: the answer is stored and replayed, whatever its status is.
	Keep

	// Tombstone ends the operation as Keep does, but only the status of the answer is stored. A retry gets not-replayable:
	// the handler does not run, and the answer is not shown. Tombstone is for answers with secrets that must be shown only
	// once.
	Tombstone

	// Release says that nothing has happened. The answer is sent but not stored, and the operation may be tried again. The
	// operation is forgotten after two leases, unless an earlier attempt may have done something.
	Release

	// Unknown says that nobody can tell what has happened, as after a crash. The answer is sent but not stored, and
	// Options.Abandoned decides whether the operation may be tried again. A transactional store rolls back, and the
	// operation may be tried again.
	Unknown

	// failed is what an answer means that is not kept, of a handler that has decided nothing: the operation may be tried
	// again, and something may have happened.
	failed
)

// ends reports whether an answer with this verdict ends its operation.
func (v Verdict) ends() bool { return v == Keep || v == Tombstone }

// refused reports whether a status says that the handler has turned the request away, so that nothing has happened.
// With 408, 409 and 499 that is not certain: a service behind the handler may have sent them, and still be at work.
func refused(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusConflict, statusClientClosedRequest:
		return false
	}
	return status >= 400 && status <= 499
}

// Decide states what the answer of a handler means. It outranks Options.Storable. The handler calls it with the context
// of its request, before or after it writes. The last call counts. Decide has no effect once the handler has returned.
// Unless Options.Stream is set, it has none either once an answer larger than Options.MaxResponse has begun to go out.
//
// The work of [Runner.Do] may call Decide too. If that work returns an error, Keep and Tombstone make no difference,
// because an error is never stored.
//
// Decide reports whether ctx belongs to an operation. It is safe for concurrent use.
func Decide(ctx context.Context, v Verdict) bool {
	op := operationIn(ctx)
	if op == nil {
		return false
	}
	op.verdict.Store(int32(v))
	return true
}

// Decided returns the last verdict that [Decide] was given with ctx, or with a context derived from ctx. If there is
// none, ok is false. Decided is for adapters of other protocols, which run handlers as the work of [Runner.Do]. This
// work returns a response if the handler has decided to keep a failure. It returns an error if the handler has failed
// and decided nothing.
func Decided(ctx context.Context) (v Verdict, ok bool) {
	op := operationIn(ctx)
	if op == nil || op.decided() == undecided {
		return undecided, false
	}
	return op.decided(), true
}

// statusClientClosedRequest is what nginx, connect-go and grpc-gateway send if the client has cancelled its call.
const statusClientClosedRequest = 499

// DefaultStorable is the default of Options.Storable. It stores every answer except those that say "try again":
//
//   - a status of 500 or more, 401, 408, 425, 429 and 499;
//   - 409 with Retry-After, which another idempotent service answers while the first attempt is in progress;
//   - an answer of gRPC or gRPC-Web whose status may pass: canceled, unknown, deadline_exceeded, resource_exhausted,
//     aborted, unimplemented, internal, unavailable, data_loss, unauthenticated, none at all, or one that gRPC does not
//     know. The status is read from the header, the trailer, or the trailer frame of gRPC-Web;
//   - a stream of Connect that ends with an error of such a code, or without the message that ends it.
func DefaultStorable(resp *Response) bool {
	switch resp.Status {
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests,
		statusClientClosedRequest:
		return false
	case http.StatusConflict:
		return resp.Header.Get("Retry-After") == ""
	}
	return resp.Status < 500 && !passingGRPC(resp) && !passingConnect(resp)
}

// passingConnect reports whether resp is a stream of Connect that ended with an error that may pass. Its status is 200
// whatever its end is.
func passingConnect(resp *Response) bool {
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/connect+") {
		return false
	}
	const end = 0x02
	message, compressed, ended := endFrame(resp.Body, end)
	if !ended {
		return !resp.Omitted
	}
	if compressed {
		var err error
		if message, err = gunzip(message); err != nil {
			return false // as statusUnreadable
		}
	}
	var stream struct {
		Error *struct{ Code string }
	}
	if err := json.Unmarshal(message, &stream); err != nil {
		return true
	}
	if stream.Error == nil {
		return false
	}
	switch stream.Error.Code {
	case "invalid_argument", "not_found", "already_exists", "permission_denied", "failed_precondition", "out_of_range":
		return false
	}
	return true
}

// passingGRPC reports whether resp is an answer of gRPC with a status that may pass.
func passingGRPC(resp *Response) bool {
	media := resp.Header.Get("Content-Type")
	if !strings.HasPrefix(media, "application/grpc") {
		return false
	}
	switch grpcStatus(resp, media) {
	case "0", "3", "5", "6", "7", "9", "11":
		// OK, invalid_argument, not_found, already_exists, permission_denied, failed_precondition, out_of_range
		return false
	case statusUnreadable: // to run once more what succeeded is worse than to keep what failed
		return false
	case "":
		return !resp.Omitted // of an answer that was not kept, the status may be in what is missing
	}
	return true
}

// grpcStatus returns the status code of an answer of gRPC, or nothing.
func grpcStatus(resp *Response, media string) string {
	const name = "Grpc-Status"
	for _, status := range []string{
		resp.Header.Get(name), resp.Trailer.Get(name), resp.Trailer.Get(http.TrailerPrefix + name),
	} {
		if status != "" {
			return status
		}
	}
	switch {
	case strings.HasPrefix(media, "application/grpc-web-text"):
		return grpcWebStatus(decodeSegments(resp.Body))
	case strings.HasPrefix(media, "application/grpc-web"):
		return grpcWebStatus(resp.Body)
	}
	return ""
}

// grpcWebStatus returns the status in the trailer frame that ends an answer of gRPC-Web.
func grpcWebStatus(body []byte) string {
	const trailer = 0x80
	frame, compressed, _ := endFrame(body, trailer)
	if compressed {
		return compressedStatus(frame)
	}
	return fieldIn(frame, "grpc-status")
}

// endFrame returns the frame of an answer of gRPC-Web or Connect that has the bit end in its first byte.
func endFrame(body []byte, end byte) (frame []byte, compressed, found bool) {
	const head, compression = 5, 0x01 // the size of a frame's head; a bit in its first byte
	for len(body) >= head {
		flags, frame := body[0], body[head:]
		size := int64(binary.BigEndian.Uint32(body[1:head]))
		if size > int64(len(frame)) {
			return nil, false, false
		}
		if flags&^compression == end {
			return frame[:size], flags&compression != 0, true
		}
		body = frame[size:]
	}
	return nil, false, false
}

// statusUnreadable stands for a status that is there, but compressed otherwise than by gzip.
const statusUnreadable = "unreadable"

// compressedStatus returns the status in a trailer frame that is compressed by gzip, as connect-go sends it.
func compressedStatus(frame []byte) string {
	lines, err := gunzip(frame)
	if err != nil {
		return statusUnreadable
	}
	return fieldIn(lines, "grpc-status")
}

// gunzip decompresses the beginning of what is compressed by gzip.
func gunzip(b []byte) ([]byte, error) {
	const most = 64 << 10
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(z, most))
}

// fieldIn returns the value of a field in lines as HTTP/1 sends them.
func fieldIn(lines []byte, name string) string {
	for line := range bytes.Lines(lines) {
		key, value, _ := bytes.Cut(line, []byte(":"))
		if strings.EqualFold(string(key), name) {
			return string(bytes.TrimSpace(value))
		}
	}
	return ""
}

// decodeSegments decodes base64 in which padding may end a segment anywhere, as gRPC-Web sends it.
func decodeSegments(text []byte) []byte {
	const quantum = 4
	var decoded []byte
	for ; len(text) >= quantum; text = text[quantum:] {
		var err error
		if decoded, err = base64.StdEncoding.AppendDecode(decoded, text[:quantum]); err != nil {
			return nil
		}
	}
	return decoded
}
