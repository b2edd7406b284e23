// Package recordline reads and writes the first lines of records: the head of a record in Redis, and the first line
// of a stored response.
package recordline

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"math"
	"strconv"
	"strings"
)

// Reader reads the words of a line in which single spaces separate the words. OK becomes false at the first word with
// a wrong form, and stays false.
type Reader struct {
	Rest []byte
	OK   bool
}

// Next returns the next word without its prefix. A word without the prefix, or with nothing after the prefix, sets OK
// to false.
func (l *Reader) Next(prefix string) []byte {
	word, rest, _ := bytes.Cut(l.Rest, []byte(" "))
	value := word[min(len(prefix), len(word)):]
	l.Rest, l.OK = rest, l.OK && len(value) > 0 && string(word[:len(prefix)]) == prefix
	return value
}

// Number reads a non-negative number after prefix.
func (l *Reader) Number(prefix string) int64 { return l.Parse(l.Next(prefix)) }

// Parse returns the non-negative number in digits.
func (l *Reader) Parse(digits []byte) int64 {
	n, err := strconv.ParseInt(string(digits), 10, 64) // an int has only 32 bits on some platforms
	l.OK = l.OK && err == nil && n >= 0
	return n
}

// readDigits reads a number of at most maxDigits digits, without a sign.
func (l *Reader) readDigits(prefix string, maxDigits int) int64 {
	word := l.Next(prefix)
	n, err := strconv.ParseUint(string(word), 10, 63) // refuses a sign, unlike ParseInt
	l.OK = l.OK && err == nil && len(word) <= maxDigits
	return int64(n)
}

// readReason reads the reason of a Release: lower-case letters and hyphens.
func (l *Reader) readReason() string {
	word := l.Next("ended=")
	l.OK = l.OK && len(bytes.Trim(word, "abcdefghijklmnopqrstuvwxyz-")) == 0
	return string(word)
}

// readSized reads a word of exactly size characters.
func (l *Reader) readSized(prefix string, size int) []byte {
	word := l.Next(prefix)
	l.OK = l.OK && len(word) == size
	return word
}

// These words are part of the first line of a stored response.
const (
	ResponseMagic   = "response/1 "
	ResponseOmitted = "omitted"
)

// Response is the content of the first line of a stored response. Header, Trailer and Body are the sizes of the parts
// after the line.
type Response struct {
	OK                            bool
	CRC                           []byte
	Status, Header, Trailer, Body int64
	Omitted                       bool
	Note                          string
}

// ParseResponse parses the first line of data, and returns the data after the line as rest. OK is false if the line
// is malformed.
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

// IsNote reports whether an operation may have this note: at most 255 visible ASCII characters, with spaces only
// between them.
func IsNote(note string) bool {
	return len(note) <= 255 && strings.TrimSpace(note) == note &&
		!strings.ContainsFunc(note, func(c rune) bool { return c < ' ' || c > '~' })
}

// These are the states of a record in Redis. The scripts write the same words.
const (
	Running  = "running"
	Released = "released"
	Done     = "done"
)

// These are the sizes of the other words of a head in characters. The sizes of numbers are limits; all other sizes
// are exact. The claim script has the same limits. With 13 digits, times reach the year 2286, and durations in
// milliseconds do not overflow a time.Duration.
const (
	tokenSize   = 32
	attemptSize = 10
	timeSize    = 13
)

const (
	headMagic     = "idempotency/1"
	runningPrefix = headMagic + " " + Running + " token="
	upperCase     = "ABCDEFGHIJKLMNOPQRSTUVWXYZ" // a head has only lower-case letters
)

// These are the errors of [Parse], and of a caller who knows the user.
var (
	ErrHead      = errors.New("the head of the record in Redis is malformed")
	ErrOperation = errors.New("the record in Redis belongs to another operation")
	ErrUser      = errors.New("the record in Redis has the digest of another user")
)

// Head is the content of the first line of a record in Redis; record.lua shows its form. Times are in milliseconds.
type Head struct {
	Line        []byte // the whole line, with its newline
	State       string
	Token       []byte
	Lease       int64 // the duration of the lease when the claim was granted
	TTL         int64 // the TTL of the record when the claim was granted
	Attempt     int
	User        [16]byte // the digest of the user
	Fingerprint [32]byte
	Created     int64
	Ended       string // the reason of a Release

	AppendedNumber int64  // the number that the claim script appends to a record, or zero
	Response       []byte // the stored form of the response, if State is Done
}

// Parse parses value, the record of operation. The result shares the memory of value.
func Parse(value []byte, operation string) (Head, error) {
	line, rest, whole := bytes.Cut(value, []byte("\n"))
	words := Reader{line, whole && !bytes.ContainsAny(line, upperCase) && !bytes.HasSuffix(line, []byte(" "))}
	first := words.Next("")
	h := Head{State: parseState(words.Next("")), Token: words.readSized("token=", tokenSize)}
	h.Lease, h.TTL = words.readDigits("lease=", timeSize), words.readDigits("ttl=", timeSize)
	attempt := words.readDigits("attempt=", attemptSize)
	ownOperation := words.Next("operation=")
	user := words.readSized("user=", hex.EncodedLen(len(h.User)))
	fingerprint := words.readSized("fingerprint=", hex.EncodedLen(len(h.Fingerprint)))
	h.Created = words.readDigits("created=", timeSize)
	if len(words.Rest) > 0 {
		h.Ended = words.readReason()
	}
	isFree := h.State == Released && bytes.Contains(line, []byte(" attempt=0 "))
	if string(first) != headMagic || !words.OK || len(words.Rest) > 0 || attempt < 1 && !isFree || attempt > math.MaxInt32 {
		return Head{}, ErrHead
	}
	if _, err := hex.Decode(h.User[:], user); err != nil {
		return Head{}, ErrHead
	}
	if _, err := hex.Decode(h.Fingerprint[:], fingerprint); err != nil {
		return Head{}, ErrHead
	}
	if string(ownOperation) != operation {
		return Head{}, ErrOperation
	}
	h.Line, h.Attempt = value[:len(line)+1], int(attempt)
	return h.parseRest(rest)
}

// parseRest adds the data after the line to the head.
func (h Head) parseRest(rest []byte) (Head, error) {
	var err error
	switch {
	case h.State == Done:
		h.Response = rest
	case len(rest) > 0:
		h.AppendedNumber, err = strconv.ParseInt(string(rest), 10, 64)
	}
	if err != nil {
		return Head{}, ErrHead
	}
	return h, nil
}

// IsFree reports whether the key of the record was freed by a Release with a ttl of zero. Such a record only keeps the
// token of the freed claim.
func (h Head) IsFree() bool { return h.Attempt == 0 }

// parseState returns the state with the given name, or the empty string for an unknown name.
func parseState(name []byte) string {
	for _, state := range []string{Done, Running, Released} {
		if string(name) == state {
			return state
		}
	}
	return ""
}

// FitsSize reports whether the head is complete and a record of size bytes can have this head: only the record of a
// completed operation continues after the head.
func (h Head) FitsSize(size int64) bool {
	if h.State == Done {
		return true
	}
	var token [tokenSize / 2]byte
	_, err := hex.Decode(token[:], h.Token) // the scripts accept only hexadecimal tokens
	return h.State != "" && size <= int64(len(h.Line)) && err == nil
}

// LeaseLeft returns the rest of the lease of a record that expires in expiry milliseconds. The TTL and the lease
// begin at the same time, so the same part of both has passed (see record.lua).
func (h Head) LeaseLeft(expiry int64) int64 { return max(0, h.Lease-(h.TTL-expiry)) }

// Origin returns the part of the head that is the same in the records of all attempts at an operation.
func (h Head) Origin() string {
	origin, _, _ := bytes.Cut(h.Line[bytes.Index(h.Line, []byte(" operation=")):len(h.Line)-len("\n")], []byte(" ended="))
	return string(origin)
}

// AppendRunning appends the record of the first attempt at a new operation to b. The record has a random token, and the
// lease, TTL, user, fingerprint and time of creation of h.
func AppendRunning(b []byte, operation string, h *Head) []byte {
	b = AppendToken(append(b, runningPrefix...))
	b = strconv.AppendInt(append(b, " lease="...), h.Lease, 10)
	b = strconv.AppendInt(append(b, " ttl="...), h.TTL, 10)
	b = append(append(b, " attempt=1 operation="...), operation...)
	b = hex.AppendEncode(append(b, " user="...), h.User[:])
	b = hex.AppendEncode(append(b, " fingerprint="...), h.Fingerprint[:])
	b = strconv.AppendInt(append(b, " created="...), h.Created, 10)
	return append(b, '\n')
}

// AppendToken appends a random token to b.
func AppendToken(b []byte) []byte {
	var token [tokenSize / 2]byte
	rand.Read(token[:]) // never fails
	return hex.AppendEncode(b, token[:])
}

// TokenOf returns the token in a running record that AppendRunning or the claim script has made.
func TokenOf(record []byte) []byte { return record[len(runningPrefix):][:tokenSize] }

// AppendDone appends the head of a completed record to b, made from the running record. The caller appends the stored
// form of the response.
func AppendDone(b, record []byte) []byte {
	b = append(b, headMagic+" "+Done...)
	return append(b, record[len(headMagic+" "+Running):]...)
}

// IsOpen reports whether a record is running or released. Only the claim script can decide whether an open record may be
// claimed, because the script sees the expiry of the record.
func IsOpen(record []byte) bool {
	return bytes.HasPrefix(record, []byte(headMagic+" "+Running+" ")) ||
		bytes.HasPrefix(record, []byte(headMagic+" "+Released+" "))
}

// ParseSteps parses the checkpoints in the reply of checkpoints.lua. Each checkpoint has a line with the sizes of its
// name and its data, and then the name and the data.
func ParseSteps(list string) (all map[string][]byte, ok bool) {
	all = make(map[string][]byte)
	for list != "" {
		line, rest, _ := strings.Cut(list, "\n")
		sizes := Reader{[]byte(line), true}
		name, data := sizes.Number(""), sizes.Number("")
		if !sizes.OK || name > int64(len(rest)) || data > int64(len(rest))-name {
			return nil, false
		}
		all[rest[:name]] = []byte(rest[name : name+data])
		list = rest[name+data:]
	}
	return all, true
}
