package idempotency

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// Response is what a handler answered, or what is kept of it.
type Response struct {
	// Status is the final status code.
	Status int

	// Header is the difference that the handler made to the header it was given: fields with values were added or
	// changed, fields with a nil value deleted (or, for those that net/http adds by itself, suppressed).
	Header http.Header

	// Trailer holds what is set after the body. Fields that Header does not declare under "Trailer" carry
	// [http.TrailerPrefix].
	Trailer http.Header

	// Body is the whole body as the handler wrote it.
	Body []byte

	// Omitted says that the body was not kept, so that the response cannot be sent again.
	Omitted bool
}

// Clone returns a copy that shares no memory with r.
func (r Response) Clone() Response {
	r.Header = cloneHeader(r.Header)
	r.Trailer = cloneHeader(r.Trailer)
	r.Body = bytes.Clone(r.Body)
	return r
}

// cloneHeader is http.Header.Clone, but that it costs nothing for an empty header.
func cloneHeader(h http.Header) http.Header {
	if len(h) == 0 {
		return nil
	}
	return h.Clone()
}

// The stored form of a response is text as far as its body is text, so that an operator can read it in the store:
//
//	response/1 crc=1a2b3c4d 201 header=2 trailer=0 body=8
//	Content-Type: application/json
//	X-Suppressed
//
//	{"id":1}
//
// One line a value, a line without a colon for a field with none. Backslash, CR and LF are escaped (and the colon in
// names), everything else stands as it is. The checksum (CRC-32C) covers all that follows it. A body that was not kept
// is written as body=omitted.
const responseMagic = "response/1 "

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// AppendBinary appends the stored form of r to b. It never fails; it implements [encoding.BinaryAppender].
func (r Response) AppendBinary(b []byte) ([]byte, error) {
	b = append(b, responseMagic+"crc="...)
	sum := len(b)
	b = append(b, "00000000"...)
	start := len(b)
	b = append(b, ' ')
	b = strconv.AppendInt(b, int64(r.Status), 10)
	b = append(b, " header="...)
	b = strconv.AppendInt(b, int64(countLines(r.Header)), 10)
	b = append(b, " trailer="...)
	b = strconv.AppendInt(b, int64(countLines(r.Trailer)), 10)
	b = append(b, " body="...)
	if r.Omitted {
		b = append(b, "omitted\n"...)
	} else {
		b = strconv.AppendInt(b, int64(len(r.Body)), 10)
		b = append(b, '\n')
	}
	b = appendFields(b, r.Header)
	b = appendFields(b, r.Trailer)
	b = append(b, '\n')
	if !r.Omitted {
		b = append(b, r.Body...)
	}
	crc := checksum(b[start:])
	copy(b[sum:], crc[:])
	return b, nil
}

// checksum returns the CRC-32C of b in hexadecimal.
func checksum(b []byte) (digits [8]byte) {
	var crc [4]byte
	binary.BigEndian.PutUint32(crc[:], crc32.Checksum(b, castagnoli))
	hex.Encode(digits[:], crc[:])
	return digits
}

// MarshalBinary returns the stored form of r.
func (r Response) MarshalBinary() ([]byte, error) {
	return r.AppendBinary(make([]byte, 0, r.encodedSize()))
}

// encodedSize returns about how many bytes the stored form of r has, and no less unless there is much to escape.
func (r Response) encodedSize() int {
	n := 96 + len(r.Body)
	for _, h := range [...]http.Header{r.Header, r.Trailer} {
		for name, values := range h {
			n += len(name) + 3
			for _, v := range values {
				n += len(name) + len(v) + 3
			}
		}
	}
	return n
}

func countLines(h http.Header) int {
	n := 0
	for _, values := range h {
		n += max(1, len(values))
	}
	return n
}

func appendFields(b []byte, h http.Header) []byte {
	var space [16]string
	names := slices.AppendSeq(space[:0], maps.Keys(h))
	slices.Sort(names)
	for _, name := range names {
		for _, value := range h[name] {
			b = append(appendEscaped(b, name, nameEscapes), ": "...)
			b = append(appendEscaped(b, value, valueEscapes), '\n')
		}
		if len(h[name]) == 0 {
			if name == "" {
				b = append(b, emptyName...)
			}
			b = append(appendEscaped(b, name, nameEscapes), '\n')
		}
	}
	return b
}

// emptyName is the line of a field that has neither a name nor values, since an empty line ends the header.
const emptyName = `\`

const (
	valueEscapes = "\\\r\n"
	nameEscapes  = valueEscapes + ":"
)

func appendEscaped(b []byte, s, special string) []byte {
	for {
		i := strings.IndexAny(s, special)
		if i < 0 {
			return append(b, s...)
		}
		b = append(append(b, s[:i]...), '\\', escapeLetter(s[i]))
		s = s[i+1:]
	}
}

// escapeLetter swaps a character and the letter that stands for it behind a backslash.
func escapeLetter(c byte) byte {
	switch c {
	case '\r':
		return 'r'
	case '\n':
		return 'n'
	case 'r':
		return '\r'
	case 'n':
		return '\n'
	default:
		return c // backslash and colon stand for themselves
	}
}

func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == '\\' && i+1 < len(s) {
			i++
			c = escapeLetter(s[i])
		}
		b = append(b, c)
	}
	return string(b)
}

// UnmarshalBinary sets r to the response that data is the stored form of. The body of r is a part of data, which
// must not be modified afterwards. The error wraps [ErrRecordInvalid] if data is damaged, or was written by a
// version of this package that this one does not know.
func (r *Response) UnmarshalBinary(data []byte) error {
	// No line of the header is empty, so the first empty line ends it.
	head, body, found := bytes.Cut(data, []byte("\n\n"))
	first, fields, _ := strings.Cut(string(head), "\n")
	line := words{rest: first, ok: found}
	if magic := line.next(""); magic+" " != responseMagic {
		return fmt.Errorf("%w: no response, or of an unknown version", ErrRecordInvalid)
	}
	crc := line.next("crc=")
	sum := checksum(data[min(len(data), len(responseMagic)+len("crc=")+len(crc)):])
	if crc != string(sum[:]) {
		return fmt.Errorf("%w: checksum of the response", ErrRecordInvalid)
	}
	status := line.number("")
	headerLines, trailerLines := line.number("header="), line.number("trailer=")
	size := line.next("body=")
	omitted := size == "omitted"
	if !line.ok || line.rest != "" || !omitted && size != strconv.Itoa(len(body)) {
		return fmt.Errorf("%w: first line of the response", ErrRecordInvalid)
	}
	*r = Response{Status: status, Omitted: omitted}
	if !omitted {
		r.Body = body
	}
	return r.parseHead(fields, headerLines, trailerLines)
}

func (r *Response) parseHead(fields string, headerLines, trailerLines int) error {
	if lines := countText(fields); headerLines > lines || trailerLines != lines-headerLines {
		return fmt.Errorf("%w: header of the response", ErrRecordInvalid)
	}
	r.Header, fields = parseFields(fields, headerLines)
	r.Trailer, _ = parseFields(fields, trailerLines)
	return nil
}

// countText returns the number of lines in a text whose last one has no end.
func countText(text string) int {
	if text == "" {
		return 0
	}
	return 1 + strings.Count(text, "\n")
}

// words reads a line of words separated by single spaces. Once a word is not as expected, ok stays false.
type words struct {
	rest string
	ok   bool
}

func (w *words) next(prefix string) string {
	word, rest, _ := strings.Cut(w.rest, " ")
	value, found := strings.CutPrefix(word, prefix)
	w.rest, w.ok = rest, w.ok && found && value != ""
	return value
}

func (w *words) number(prefix string) int {
	n, err := strconv.Atoi(w.next(prefix))
	w.ok = w.ok && err == nil && n >= 0
	return n
}

// parseFields reads n lines, in which the values of one field follow one another.
func parseFields(lines string, n int) (http.Header, string) {
	if n == 0 {
		return nil, lines
	}
	h := make(http.Header, n)
	values := make([]string, 0, n)
	for range n {
		var line string
		line, lines, _ = strings.Cut(lines, "\n")
		if line == emptyName {
			line = ""
		}
		colon := nameLength(line)
		name := unescape(line[:colon])
		if colon == len(line) {
			h[name] = nil
			continue
		}
		values = append(values, unescape(strings.TrimPrefix(line[colon+1:], " ")))
		h[name] = values[len(values)-1-len(h[name]) : len(values) : len(values)]
	}
	return h, lines
}

// nameLength returns the index of the first colon that is not escaped, or the length of the line.
func nameLength(line string) int {
	for i := 0; i < len(line); i++ {
		switch line[i] {
		case ':':
			return i
		case '\\':
			i++
		}
	}
	return len(line)
}
