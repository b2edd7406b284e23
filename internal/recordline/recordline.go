// Package recordline reads and writes the lines that records begin with: the head of a record in Redis, and the first line
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

// Reader reads a line of words separated by single spaces. Once a word is not as expected, OK stays false.
type Reader struct {
	Rest []byte
	OK   bool
}

// Next returns the next word without its prefix. It must have both.
func (l *Reader) Next(prefix string) []byte {
	word, rest, _ := bytes.Cut(l.Rest, []byte(" "))
	value := word[min(len(prefix), len(word)):]
	l.Rest, l.OK = rest, l.OK && len(value) > 0 && string(word[:len(prefix)]) == prefix
	return value
}

// Number reads a number that is not negative.
func (l *Reader) Number(prefix string) int64 { return l.Parse(l.Next(prefix)) }

// Parse returns the number that digits stand for.
func (l *Reader) Parse(digits []byte) int64 {
	n, err := strconv.ParseInt(string(digits), 10, 64) // a time does not fit into an int everywhere
	l.OK = l.OK && err == nil && n >= 0
	return n
}

// digits reads a number of at most so many digits.
func (l *Reader) readDigits(prefix string, most int) int64 {
	word := l.Next(prefix)
	n, err := strconv.ParseUint(string(word), 10, 63) // which takes no sign
	l.OK = l.OK && err == nil && len(word) <= most
	return int64(n)
}

// sized reads a word of exactly so many characters.
func (l *Reader) readSized(prefix string, size int) []byte {
	word := l.Next(prefix)
	l.OK = l.OK && len(word) == size
	return word
}

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

// The states of a record in Redis, as the scripts write them.
const (
	Running  = "running"
	Released = "released"
	Done     = "done"
)

// KeySize is how many characters a head has of the key of its record: record.lua says why.
const KeySize = 32

// How many characters the other words of a head have: numbers at most, all others exactly. The claim script has the same
// limits. A time of 13 digits is before the year 2286, and a duration of so many milliseconds does not overflow.
const (
	tokenSize   = 32
	attemptSize = 10
	timeSize    = 13
)

const (
	headMagic     = "idempotency/1"
	runningPrefix = headMagic + " " + Running + " token="
	upperCase     = "ABCDEFGHIJKLMNOPQRSTUVWXYZ" // which nothing in a head has
)

// Errors of [Parse].
var (
	ErrHead = errors.New("head of the record in Redis")
	ErrKey  = errors.New("record of another key in Redis")
)

// Head is what the first line of a record in Redis says; record.lua shows the form. Times are in milliseconds.
type Head struct {
	Line        []byte // with the newline
	State       string
	Token       []byte
	Lease       int64 // how long it was when it was given
	TTL         int64 // that the record was given with the lease
	Attempt     int
	Fingerprint [32]byte
	Created     int64

	AppendedNumber int64  // the number that the claim script has added, or zero
	Response       []byte // the stored form, if the record is done
}

// Parse reads the record of key. It shares the memory of value.
func Parse(value []byte, key string) (Head, error) {
	line, rest, whole := bytes.Cut(value, []byte("\n"))
	words := Reader{line, whole && !bytes.ContainsAny(line, upperCase) && !bytes.HasSuffix(line, []byte(" "))}
	first := words.Next("")
	h := Head{State: parseState(words.Next("")), Token: words.readSized("token=", tokenSize)}
	h.Lease, h.TTL = words.readDigits("lease=", timeSize), words.readDigits("ttl=", timeSize)
	attempt := words.readDigits("attempt=", attemptSize)
	own := words.Next("key=")
	fingerprint := words.readSized("fingerprint=", hex.EncodedLen(len(h.Fingerprint)))
	h.Created = words.readDigits("created=", timeSize)
	isFree := h.State == Released && bytes.Contains(line, []byte(" attempt=0 "))
	if string(first) != headMagic || !words.OK || len(words.Rest) > 0 || attempt < 1 && !isFree || attempt > math.MaxInt32 {
		return Head{}, ErrHead
	}
	if _, err := hex.Decode(h.Fingerprint[:], fingerprint); err != nil {
		return Head{}, ErrHead
	}
	if string(own) != key {
		return Head{}, ErrKey
	}
	h.Line, h.Attempt = value[:len(line)+1], int(attempt)
	return h.parseRest(rest)
}

// behind returns the head with what follows its line.
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

// IsFree reports whether the record is what is left of one whose key was freed.
func (h Head) IsFree() bool { return h.Attempt == 0 }

// stateOf returns the state of that name, or nothing.
func parseState(name []byte) string {
	for _, state := range []string{Done, Running, Released} {
		if string(name) == state {
			return state
		}
	}
	return ""
}

// Whole reports whether a record of so many bytes has the form that its head asks for.
func (h Head) FitsSize(size int64) bool {
	if h.State == Done {
		return true
	}
	var token [tokenSize / 2]byte
	_, err := hex.Decode(token[:], h.Token) // else no script takes it for a record
	return h.State != "" && size <= int64(len(h.Line)) && err == nil
}

// LeaseLeft returns the rest of the lease of a record that expires in so many milliseconds: what is gone of the TTL is gone of
// the lease, see record.lua.
func (h Head) LeaseLeft(expiry int64) int64 { return max(0, h.Lease-(h.TTL-expiry)) }

// Origin returns what the records of all attempts at one operation have in common.
func (h Head) Origin() string {
	return string(bytes.TrimSuffix(h.Line[bytes.Index(h.Line, []byte(" key=")):], []byte("\n")))
}

// AppendRunning appends the record of the first attempt at a new operation to b.
func AppendRunning(b []byte, key string, fingerprint [32]byte, lease, ttl, now int64) []byte {
	b = AppendToken(append(b, runningPrefix...))
	b = strconv.AppendInt(append(b, " lease="...), lease, 10)
	b = strconv.AppendInt(append(b, " ttl="...), ttl, 10)
	b = append(append(b, " attempt=1 key="...), key...)
	b = hex.AppendEncode(append(b, " fingerprint="...), fingerprint[:])
	b = strconv.AppendInt(append(b, " created="...), now, 10)
	return append(b, '\n')
}

// AppendToken appends a random token to b.
func AppendToken(b []byte) []byte {
	var token [tokenSize / 2]byte
	rand.Read(token[:]) // never fails
	return hex.AppendEncode(b, token[:])
}

// TokenOf returns the token in the running record of a claim.
func TokenOf(record []byte) []byte { return record[len(runningPrefix):][:tokenSize] }

// AppendDone appends the running record of a claim as one that is done to b. The stored form of the response follows.
func AppendDone(b, record []byte) []byte {
	b = append(b, headMagic+" "+Done...)
	return append(b, record[len(headMagic+" "+Running):]...)
}

// IsOpen reports whether a record is running or released, so that its expiry tells more of it.
func IsOpen(record []byte) bool {
	return bytes.HasPrefix(record, []byte(headMagic+" "+Running+" ")) || bytes.HasPrefix(record, []byte(headMagic+" "+Released+" "))
}

// ParseSteps reads what checkpoints.lua returns: each checkpoint as the sizes of name and data on a line, and both behind
// that.
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
