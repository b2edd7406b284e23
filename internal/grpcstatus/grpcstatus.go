// Package grpcstatus reads the status of a call from an answer of gRPC or gRPC-Web, or from a stream of Connect. The
// HTTP status of such an answer is 200, also if the call has failed.
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
	Header  func(name string) string // returns the value of a header field
	Trailer func(name string) string // returns the value of a trailer field
	Body    []byte
	Omitted bool // the record has no trailer and no body
}

// MayPass reports whether a repetition of the call may end differently. The result is true for a transient error, and
// for a complete answer without a status. The result is false for a status that is compressed in an unknown way,
// because repeating a successful call is worse than keeping an error. Answers of other media types have no call
// status, so MayPass returns false.
func MayPass(a Answer) bool {
	switch {
	case strings.HasPrefix(a.Media, "application/grpc"):
		return mayPassGRPC(a)
	case strings.HasPrefix(a.Media, "application/connect+"):
		return mayPassConnect(a)
	}
	return false
}

// mayPassGRPC is MayPass for an answer of gRPC or gRPC-Web.
func mayPassGRPC(a Answer) bool {
	switch findStatus(a) {
	case "0", "3", "5", "6", "7", "9", "11":
		// OK, invalid_argument, not_found, already_exists, permission_denied, failed_precondition, out_of_range
		return false
	case statusUnreadable:
		return false
	case "":
		return !a.Omitted // an omitted trailer or body may have had the status
	}
	return true
}

// mayPassConnect is MayPass for a stream of Connect.
func mayPassConnect(a Answer) bool {
	const end = 0x02
	message, compressed, ended := endFrame(a.Body, end)
	if !ended {
		return !a.Omitted
	}
	if compressed {
		var err error
		if message, err = decompressGzip(message); err != nil {
			return false // the same as for statusUnreadable
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

// findStatus returns the status code in an answer of gRPC, or the empty string.
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

// trailerFrameStatus returns the status in the trailer frame at the end of an answer of gRPC-Web.
func trailerFrameStatus(body []byte) string {
	const trailer = 0x80
	frame, compressed, _ := endFrame(body, trailer)
	if compressed {
		return compressedStatus(frame)
	}
	return findField(frame, "grpc-status")
}

// endFrame returns the frame of an answer of gRPC-Web or Connect whose first byte has the bit end.
func endFrame(body []byte, end byte) (frame []byte, compressed, found bool) {
	const head, compression = 5, 0x01 // the size of the head of a frame, and the bit for compression in its first byte
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

// statusUnreadable replaces a status in a frame with a compression other than gzip.
const statusUnreadable = "unreadable"

// compressedStatus returns the status in a trailer frame that is compressed by gzip, as connect-go sends it.
func compressedStatus(frame []byte) string {
	lines, err := decompressGzip(frame)
	if err != nil {
		return statusUnreadable
	}
	return findField(lines, "grpc-status")
}

// decompressGzip decompresses the beginning of b, at most 64 KiB.
func decompressGzip(b []byte) ([]byte, error) {
	const maxSize = 64 << 10
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(z, maxSize))
}

// findField returns the value of a field in lines of the form of HTTP/1.
func findField(lines []byte, name string) string {
	for line := range bytes.Lines(lines) {
		key, value, _ := bytes.Cut(line, []byte(":"))
		if strings.EqualFold(string(key), name) {
			return string(bytes.TrimSpace(value))
		}
	}
	return ""
}

// decodeSegments decodes base64 text in which padding may end a segment at any place, as in gRPC-Web.
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
