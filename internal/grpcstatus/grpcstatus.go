// Package grpcstatus reads the status of a call in an answer of gRPC or gRPC-Web, or in a stream of Connect. The HTTP
// status of such an answer is 200, however the call has ended.
package grpcstatus

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"io"
	"net/http"
	"strings"
)

// Answer is an HTTP answer.
type Answer struct {
	Media   string                   // Content-Type
	Header  func(name string) string // returns the value of a field
	Trailer func(name string) string // the same
	Body    []byte
	Omitted bool // trailer and body are missing: they were not kept
}

// MayPass reports whether the call may end otherwise if it is repeated. That is so after an error that may pass, and if
// the answer is whole and has no status. It is not so if the status is compressed in a way that nobody here can read: to
// run once more what succeeded is worse than to keep what failed. Other media types have no status that may pass.
func MayPass(a Answer) bool {
	switch {
	case strings.HasPrefix(a.Media, "application/grpc"):
		return mayPassGRPC(a)
	case strings.HasPrefix(a.Media, "application/connect+"):
		return mayPassConnect(a)
	}
	return false
}

// grpc reports what MayPass does, of an answer of gRPC or gRPC-Web.
func mayPassGRPC(a Answer) bool {
	switch findStatus(a) {
	case "0", "3", "5", "6", "7", "9", "11":
		// OK, invalid_argument, not_found, already_exists, permission_denied, failed_precondition, out_of_range
		return false
	case statusUnreadable:
		return false
	case "":
		return !a.Omitted // the status may be in what is missing
	}
	return true
}

// connect reports what MayPass does, of a stream of Connect.
func mayPassConnect(a Answer) bool {
	const end = 0x02
	message, compressed, ended := endFrame(a.Body, end)
	if !ended {
		return !a.Omitted
	}
	if compressed {
		var err error
		if message, err = decompressGzip(message); err != nil {
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

// status returns the status code of an answer of gRPC, or nothing.
func findStatus(a Answer) string {
	const name = "Grpc-Status"
	if code := cmp.Or(a.Header(name), a.Trailer(name), a.Trailer(http.TrailerPrefix+name)); code != "" {
		return code
	}
	switch {
	case strings.HasPrefix(a.Media, "application/grpc-web-text"):
		return trailerFrameStatus(decodeSegments(a.Body))
	case strings.HasPrefix(a.Media, "application/grpc-web"):
		return trailerFrameStatus(a.Body)
	}
	return ""
}

// webStatus returns the status in the trailer frame that ends an answer of gRPC-Web.
func trailerFrameStatus(body []byte) string {
	const trailer = 0x80
	frame, compressed, _ := endFrame(body, trailer)
	if compressed {
		return compressedStatus(frame)
	}
	return findField(frame, "grpc-status")
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
	lines, err := decompressGzip(frame)
	if err != nil {
		return statusUnreadable
	}
	return findField(lines, "grpc-status")
}

// gunzip decompresses the beginning of what is compressed by gzip.
func decompressGzip(b []byte) ([]byte, error) {
	const most = 64 << 10
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(z, most))
}

// fieldIn returns the value of a field in lines as HTTP/1 sends them.
func findField(lines []byte, name string) string {
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
