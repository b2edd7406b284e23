package recordline

import (
	"bytes"
	"strconv"
	"strings"
)

// Words of the first line of a stored response.
const (
	ResponseMagic   = "response/1 "
	ResponseOmitted = "omitted"
)

// Response is what the first line of a stored response says. The sizes are those of the parts behind it.
type Response struct {
	OK                            bool
	CRC                           []byte
	Status, Header, Trailer, Body int64
	Omitted                       bool
	Note                          string
}

// ParseResponse returns the first line of data, and what follows it.
func ParseResponse(data []byte) (r Response, rest []byte) {
	first, rest, whole := bytes.Cut(data, []byte("\n"))
	line := Reader{Rest: first, OK: whole && bytes.HasPrefix(data, []byte(ResponseMagic))}
	line.OK = line.OK && !bytes.HasSuffix(first, []byte(" "))
	line.Next("")
	r.CRC = line.Next("crc=")
	r.Status, r.Header, r.Trailer = line.Number(""), line.Number("header="), line.Number("trailer=")
	size := line.Next("body=")
	if r.Omitted = string(size) == ResponseOmitted; !r.Omitted {
		var digits [20]byte
		r.Body = line.Parse(size)
		line.OK = line.OK && string(size) == string(strconv.AppendInt(digits[:0], r.Body, 10))
	}
	note, noted := bytes.CutPrefix(line.Rest, []byte("note="))
	r.Note = string(note)
	r.OK = line.OK && noted == (r.Note != "") && IsNote(r.Note)
	return r, rest
}

// IsNote reports whether a note is one that an operation takes.
func IsNote(note string) bool {
	return len(note) <= 255 && strings.TrimSpace(note) == note &&
		!strings.ContainsFunc(note, func(c rune) bool { return c < ' ' || c > '~' })
}
