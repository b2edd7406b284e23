package wire_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// TestWireHTTP2 sends rows of frames, which follow the preface, on stream 1. The answers have the form of a
// wireRow, or "RST_STREAM 1" and "GOAWAY 1", with the error code, if the server ends the stream or the connection.
// The test compares only the bodies of replays, because HPACK compresses the fields; TestClientsThatHangUp compares
// the fields.
func TestWireHTTP2(t *testing.T) {
	t.Parallel()
	t.Attr("rows-over-HTTP/2", strconv.Itoa(2*len(http2Rows)))
	withoutLeaks(t, func(t *testing.T, label string) {
		for _, transport := range []transport{http2, http2TLS} {
			for _, row := range http2Rows {
				t.Run(string(transport)+": "+row.name, func(t *testing.T) {
					t.Parallel()
					s := newWireServer(t, label)
					s.start(withLimits(idempotency.Options{}), s.handle, transport)
					require.Equal(t, row.first, s.exchangeFrames(row.sent), "first")
					require.Equal(t, row.again, s.exchangeFrames(row.sent), "again")
					require.EqualValues(t, row.runs, s.runs.Load(), "runs of the handler")
					s.requireInOrder()
				})
			}
		}
	})
}

// These constants are types and flags of frames.
const (
	frameData         = 0
	frameHeaders      = 1
	frameRST          = 3
	frameSettings     = 4
	framePing         = 6
	frameGoAway       = 7
	frameWindow       = 8
	frameContinuation = 9

	endStream  = 1
	ack        = 1
	endHeaders = 4
	padded     = 8
)

// buildFrame returns a frame for a stream.
func buildFrame(kind, flags byte, stream uint32, payload string) string {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(payload))<<8|uint32(kind))
	b = binary.BigEndian.AppendUint32(append(b, flags), stream)
	return string(b) + payload
}

// packFields returns fields, in pairs of name and value, as HPACK literals without indexing or compression.
func packFields(fields ...string) string {
	var b []byte
	for i, field := range fields {
		if i%2 == 0 {
			b = append(b, 0)
		}
		if len(field) < 127 {
			b = append(b, byte(len(field)))
		} else {
			b = binary.AppendUvarint(append(b, 127), uint64(len(field)-127))
		}
		b = append(b, field...)
	}
	return string(b)
}

// opening returns the header of a request with key k and additional fields, without the end of the stream.
func opening(fields ...string) string {
	return buildFrame(frameHeaders, endHeaders, 1, packFields(listFields(fields...)...))
}

// listFields returns the fields of a request with key k. Leading pseudo-header fields in given replace the default
// fields of the same name; the other given fields are added at the end.
func listFields(given ...string) []string {
	all := []string{":method", "POST", ":scheme", "http", ":authority", "example.com", ":path", "/pay"}
	for i := 0; i < len(all); i += 2 {
		if len(given) > 1 && given[0] == all[i] {
			all[i+1], given = given[1], given[2:]
		}
	}
	return append(append(all, given...), "idempotency-key", "k")
}

// lastData returns the last frame of a request.
func lastData(body string) string { return buildFrame(frameData, endStream, 1, body) }

// paysH2 returns a request with key k, additional fields, and a body.
func paysH2(fields ...string) string { return opening(fields...) + lastData(amountBody) }

// asksH2 returns a request with key k and additional fields, without a body.
func asksH2(fields ...string) string { return rawH2(listFields(fields...)...) }

// keysH2 returns a request without a body and without a key, apart from the given fields.
func keysH2(fields ...string) string { return rawH2(append(listFields()[:8:8], fields...)...) }

// rawH2 returns a request with exactly the given fields.
func rawH2(fields ...string) string {
	return buildFrame(frameHeaders, endHeaders|endStream, 1, packFields(fields...))
}

const (
	protocolError = "RST_STREAM 1"
	brokenOff     = "GOAWAY 1"
)

var ping = buildFrame(framePing, 0, 0, "12345678")

var http2Rows = []wireRow{
	{"good", paysH2(), "201", "replay", 1},
	{"no body", asksH2(), "201", "replay", 1},
	{"empty body", opening() + lastData(""), "201", "replay", 1},
	{"padding", opening() + buildFrame(frameData, endStream|padded, 1, "\x03x\x00\x00\x00"), "201", "replay", 1},
	{"body in pieces", opening() + strings.Repeat(buildFrame(frameData, 0, 1, "x"), 100) + lastData(""), "201", "replay", 1},
	{"header in pieces", buildFrame(frameHeaders, 0, 1, packFields(listFields()...)[:20]) +
		buildFrame(frameContinuation, endHeaders, 1, packFields(listFields()...)[20:]) + lastData(""), "201", "replay", 1},
	{"slow", opening() + buildFrame(frameData, 0, 1, "a") + meanwhile + lastData("b"), "201", "replay", 1},
	{"trailer", opening() + buildFrame(frameData, 0, 1, "x") +
		buildFrame(frameHeaders, endHeaders|endStream, 1, packFields("x-sum", "1")), "201", "replay", 1},
	{"key in the trailer only", buildFrame(frameHeaders, endHeaders, 1, packFields(listFields()[:8]...)) +
		buildFrame(frameHeaders, endHeaders|endStream, 1, packFields("idempotency-key", "k")), "201", "201", 2},
	{"quoted key", keysH2("idempotency-key", `"k"`), "201", "replay", 1},
	{"no key", keysH2(), "201", "201", 2},
	{"two keys", keysH2("idempotency-key", "a", "idempotency-key", "b"), invalid, invalid, 0},
	{"the same key twice", keysH2("idempotency-key", "k", "idempotency-key", "k"), invalid, invalid, 0},
	{"list of keys", keysH2("idempotency-key", "a, b"), invalid, invalid, 0},
	{"empty key", keysH2("idempotency-key", ""), invalid, invalid, 0},
	{"255 characters", keysH2("idempotency-key", strings.Repeat("k", 255)), "201", "replay", 1},
	{"256 characters", keysH2("idempotency-key", strings.Repeat("k", 256)), invalid, invalid, 0},
	{"blank around the key", keysH2("idempotency-key", " k"), invalid, invalid, 0},
	{"tab in the key", keysH2("idempotency-key", "a\tb"), invalid, invalid, 0},
	{"invalid UTF-8 in the key", keysH2("idempotency-key", "\xff\xfe"), invalid, invalid, 0},
	{"UTF-8 in the key", keysH2("idempotency-key", "café"), invalid, invalid, 0},
	{"NUL in the key", keysH2("idempotency-key", "a\x00b"), protocolError, protocolError, 0},
	{"CR LF in the key", keysH2("idempotency-key", "a\r\nx: b"), protocolError, protocolError, 0},
	{"LF in the key", keysH2("idempotency-key", "a\nb"), protocolError, protocolError, 0},
	{"DEL in the key", keysH2("idempotency-key", "a\x7fb"), protocolError, protocolError, 0},
	{"name in capitals", keysH2("Idempotency-Key", "k"), protocolError, protocolError, 0},
	{"blank in the name", keysH2("idempotency key", "k"), protocolError, protocolError, 0},
	{"name with a colon", keysH2("idempotency-key:", "k"), protocolError, protocolError, 0},
	{"empty name", keysH2("", "k"), protocolError, protocolError, 0},
	{"Connection", asksH2("connection", "close"), noRequest, noRequest, 0},
	{"Transfer-Encoding", asksH2("transfer-encoding", "chunked"), noRequest, noRequest, 0},
	{"Upgrade", asksH2("upgrade", "h2c"), noRequest, noRequest, 0},
	{"TE: trailers", asksH2("te", "trailers"), "201", "replay", 1},
	{"TE: gzip", asksH2("te", "gzip"), noRequest, noRequest, 0},
	{"Expect", paysH2("expect", "100-continue"), "201", "replay", 1},
	{"length", paysH2("content-length", "12"), "201", "replay", 1},
	{"length too small", paysH2("content-length", "11"), protocolError, protocolError, 0},
	{"length too large", paysH2("content-length", "13"), unreadable, unreadable, 0},
	{"length that is none", paysH2("content-length", "x"), protocolError, protocolError, 0},
	{"negative length", paysH2("content-length", "-1"), protocolError, protocolError, 0},
	{"announced too large", opening("content-length", "1001"), tooLarge, tooLarge, 0},
	{"too large", opening() + lastData(strings.Repeat("x", 1001)), tooLarge, tooLarge, 0},
	{"cancelled in the body", opening() + buildFrame(frameData, 0, 1, "x") + buildFrame(frameRST, 0, 1, "\x00\x00\x00\x08") + ping,
		"", "", 0},
	{"cancelled at once", opening() + buildFrame(frameRST, 0, 1, "\x00\x00\x00\x08") + ping, "", "", 0},
	{"PATCH", paysH2(":method", "PATCH"), "201", "replay", 1},
	{"PUT", asksH2(":method", "PUT"), "201", "201", 2},
	{"lower case", asksH2(":method", "post"), "201", "201", 2},
	{"no token is another method", asksH2(":method", "PO ST"), "201", "201", 2},
	{"empty method", asksH2(":method", ""), protocolError, protocolError, 0},
	{"override", asksH2("x-http-method-override", "DELETE"), "201", "replay", 1},
	{"no method", rawH2(":scheme", "http", ":path", "/pay"), protocolError, protocolError, 0},
	{"two methods", rawH2(":method", "PUT", ":method", "POST", ":scheme", "http", ":path", "/pay"),
		protocolError, protocolError, 0},
	{"no path", rawH2(":method", "POST", ":scheme", "http"), protocolError, protocolError, 0},
	{"empty path", asksH2(":path", ""), protocolError, protocolError, 0},
	{"path without a slash", asksH2(":path", "pay"), protocolError, protocolError, 0},
	{"bad escape", asksH2(":path", "/%zz"), protocolError, protocolError, 0},
	{"asterisk", asksH2(":path", "*"), "201", "replay", 1},
	{"two slashes", asksH2(":path", "//pay"), "201", "replay", 1},
	{"%2F", asksH2(":path", "/pay%2F1"), "201", "replay", 1},
	{"two dots", asksH2(":path", "/x/../pay"), "201", "replay", 1},
	{"scheme", asksH2(":scheme", "ftp"), protocolError, protocolError, 0},
	{"pseudo-header field at the end", rawH2("x-other", "a", ":method", "POST", ":scheme", "http", ":path", "/pay"),
		protocolError, protocolError, 0},
	{"unknown pseudo-header field", asksH2(":key", "k"), protocolError, protocolError, 0},
	{"status in a request", asksH2(":status", "200"), protocolError, protocolError, 0},
	{"Host and authority", asksH2("host", "other.example"), "201", "replay", 1},
	{"unknown frame", buildFrame(0xfe, 0, 0, "x") + paysH2(), "201", "replay", 1},
	{"data before the header", lastData("x"), brokenOff, brokenOff, 0},
	{"frame within a header", buildFrame(frameHeaders, 0, 1, packFields(listFields()...)) + ping, brokenOff, brokenOff, 0},
	{"more padding than data", opening() + buildFrame(frameData, endStream|padded, 1, "\x09x"), brokenOff, brokenOff, 0},
	{"window of nothing", opening() + buildFrame(frameWindow, 0, 1, "\x00\x00\x00\x00"), protocolError, protocolError, 0},
	{"bad compression", buildFrame(frameHeaders, endHeaders, 1, strings.Repeat("\xff", 10)), "GOAWAY 9", "GOAWAY 9", 0},
	{"huge frame", opening() + buildFrame(frameData, endStream, 1, strings.Repeat("x", 2<<20)), "GOAWAY 6", "GOAWAY 6", 0},
}

// exchangeFrames sends frames over a new connection, and describes the answer.
func (s *wireServer) exchangeFrames(frames string) string {
	conn := s.dial("h2")
	defer conn.Close()
	preface := "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + buildFrame(frameSettings, 0, 0, "")
	for i, part := range strings.Split(preface+frames, meanwhile) {
		if i > 0 {
			s.requireServed()
		}
		_, _ = io.WriteString(conn, part)
	}
	return s.describeFrames(conn)
}

// describeFrames reads until an answer is complete, or no further answer can come.
func (s *wireServer) describeFrames(from io.Reader) string {
	var body []byte
	for {
		var head [9]byte
		_, err := io.ReadFull(from, head[:])
		require.NoError(s.t, err)
		payload := make([]byte, binary.BigEndian.Uint32(head[:])>>8)
		_, err = io.ReadFull(from, payload)
		require.NoError(s.t, err)
		kind, flags := head[3], head[4]
		switch {
		case kind == frameRST:
			return fmt.Sprintf("RST_STREAM %d", binary.BigEndian.Uint32(payload))
		case kind == frameGoAway:
			return fmt.Sprintf("GOAWAY %d", binary.BigEndian.Uint32(payload[4:]))
		case kind == framePing && flags&ack != 0:
			return ""
		case kind == frameData:
			body = append(body, payload...)
		}
		if (kind == frameData || kind == frameHeaders) && flags&endStream != 0 {
			return s.describeBody(string(body))
		}
	}
}

// describeBody describes an answer by its body alone.
func (s *wireServer) describeBody(body string) string {
	if strings.HasPrefix(body, "{") {
		var p testservice.Problem
		require.NoError(s.t, json.Unmarshal([]byte(body), &p))
		_, code, _ := strings.Cut(p.Type, "#")
		return fmt.Sprint(p.Status, " ", code)
	}
	if strings.HasPrefix(body, "request header") {
		return noRequest // the text of net/http
	}
	run, _, ran := strings.Cut(body, ": ")
	require.True(s.t, ran, "neither a problem nor an answer of the handler: %q", body)
	first, known := s.firsts[run]
	if !known {
		s.firsts[run] = testservice.Answer{Body: body}
		return "201"
	}
	require.Equal(s.t, first.Body, body)
	return "replay"
}
