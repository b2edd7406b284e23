package idempotency

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

// Fingerprint is a digest of what a request asks for. It detects a key reused for a different request.
type Fingerprint [sha256.Size]byte

// String returns f in hexadecimal.
func (f Fingerprint) String() string { return hex.EncodeToString(f[:]) }

// parse sets f to what s is the String of, and reports whether it is one.
func (f *Fingerprint) parse(s string) bool {
	var digits [2 * len(f)]byte // on the stack, as a conversion of s would not be
	copy(digits[:], s)
	_, err := hex.Decode(f[:], digits[:])
	return err == nil && len(s) == len(digits)
}

// FingerprintFunc computes the fingerprint of a request. Body is the whole body; the function must not keep or change
// it. An error is answered with 400, body-invalid. Many goroutines call the function at once.
//
// It may leave out method, path and user, which are a part of the [Key]. It must leave out fields that change from one
// attempt to the next, such as trace headers.
type FingerprintFunc func(r *http.Request, body []byte) (Fingerprint, error)

// FingerprintRaw is the default: the SHA-256 of query, media type (without parameters) and body, as sent.
func FingerprintRaw(r *http.Request, body []byte) (Fingerprint, error) {
	h := newHasher(r)
	defer h.free()
	h.part(body)
	return h.sum(), nil
}

// FingerprintJSON takes two JSON bodies for the same if they differ in white space, in the order of members or in how
// strings and fractions are written: it hashes the canonical form of RFC 8785, except that integers keep every digit
// instead of being rounded to 53 bits. Numbers with a fraction or an exponent are compared as 64-bit floats: amounts
// that need more belong in integers or strings.
//
// It returns an error for an object with the same name twice, since its meaning depends on who reads it; for a number
// that is too large for a 64-bit float, such as 1e400; and for arrays and objects that are nested more than 100 deep,
// since the time to sort them grows with their depth. Empty bodies, and those of other media types, are hashed as
// [FingerprintRaw] does.
func FingerprintJSON(r *http.Request, body []byte) (Fingerprint, error) {
	media := mediaType(r)
	if len(body) == 0 || media != "application/json" && !strings.HasSuffix(media, "+json") {
		return FingerprintRaw(r, body)
	}
	if err := checkJSON(body); err != nil {
		return Fingerprint{}, fmt.Errorf("body as JSON: %w", err)
	}
	value := jsontext.Value(bytes.Clone(body))
	if err := value.Canonicalize(jsontext.CanonicalizeRawInts(false)); err != nil {
		return Fingerprint{}, fmt.Errorf("body as JSON: %w", err)
	}
	return FingerprintRaw(r, value)
}

// maxJSONDepth bounds how deep arrays and objects are nested.
const maxJSONDepth = 100

// checkJSON refuses JSON that takes too long to canonicalise, and numbers that would all become the largest float. It
// may pass what is not well-formed.
func checkJSON(body []byte) error {
	depth := 0
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case c == '[' || c == '{':
			if depth++; depth > maxJSONDepth {
				return fmt.Errorf("nested more than %d deep", maxJSONDepth)
			}
		case c == ']' || c == '}':
			depth--
		case c == '"':
			i += stringLength(body[i:]) - 1
		case c == '-' || '0' <= c && c <= '9':
			n := numberLength(body[i:])
			if overflows(body[i : i+n]) {
				return errors.New("a number is too large for a 64-bit float")
			}
			i += n - 1
		}
	}
	return nil
}

// stringLength returns the length of the string that b begins with, quotes included.
func stringLength(b []byte) int {
	for i := 1; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(b)
}

// numberLength returns the length of the number that b begins with.
func numberLength(b []byte) int {
	return len(b) - len(bytes.TrimLeft(b, "+-.0123456789Ee"))
}

// overflows reports whether number is written as a float, and is too large for one of 64 bits.
func overflows(number []byte) bool {
	if !bytes.ContainsAny(number, ".Ee") {
		return false
	}
	_, err := strconv.ParseFloat(string(number), 64)
	return errors.Is(err, strconv.ErrRange)
}

// FingerprintMultipart takes two multipart bodies for the same if they differ in their boundary only, which clients
// choose anew each time they build the form. Bodies of other media types are hashed as [FingerprintRaw] does.
func FingerprintMultipart(r *http.Request, body []byte) (Fingerprint, error) {
	if !strings.HasPrefix(mediaType(r), "multipart/") {
		return FingerprintRaw(r, body)
	}
	_, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return Fingerprint{}, fmt.Errorf("media type: %w", err)
	}
	h := newHasher(r)
	defer h.free()
	parts := multipart.NewReader(bytes.NewReader(body), params["boundary"])
	for {
		part, err := parts.NextRawPart()
		if err == io.EOF {
			return h.sum(), nil
		}
		if err != nil {
			return Fingerprint{}, fmt.Errorf("body as multipart: %w", err)
		}
		if err := h.multipart(part); err != nil {
			return Fingerprint{}, fmt.Errorf("body as multipart: %w", err)
		}
	}
}

// hasher is a SHA-256 over parts that each carry their length, so that no byte can move from one to the next. Small
// parts are gathered, for most requests are hashed in one piece then.
type hasher struct {
	hash     hash.Hash
	gathered []byte
	begun    bool // the hash has been written to
}

// gatherLimit bounds what is gathered before it is hashed.
const gatherLimit = 2048

var hashers = sync.Pool{New: func() any { return &hasher{hash: sha256.New()} }}

func newHasher(r *http.Request) *hasher {
	h := hashers.Get().(*hasher)
	h.gathered, h.begun = h.gathered[:0], false
	h.text(r.URL.RawQuery)
	h.text(mediaType(r))
	return h
}

func (h *hasher) free() { hashers.Put(h) }

func (h *hasher) part(b []byte) { hashPart(h, b) }
func (h *hasher) text(s string) { hashPart(h, s) }

func hashPart[T []byte | string](h *hasher, part T) {
	h.gathered = binary.BigEndian.AppendUint64(h.gathered, uint64(len(part)))
	if len(h.gathered)+len(part) <= gatherLimit {
		h.gathered = append(h.gathered, part...)
		return
	}
	h.flush()
	h.hash.Write([]byte(part))
}

// flush hashes what was gathered.
func (h *hasher) flush() {
	if !h.begun {
		h.hash.Reset()
		h.begun = true
	}
	h.hash.Write(h.gathered)
	h.gathered = h.gathered[:0]
}

func (h *hasher) sum() Fingerprint {
	if !h.begun {
		return sha256.Sum256(h.gathered)
	}
	h.flush()
	h.gathered = h.hash.Sum(h.gathered)
	return Fingerprint(h.gathered)
}

func (h *hasher) multipart(part *multipart.Part) error {
	names := make([]string, 0, len(part.Header))
	for name := range part.Header {
		names = append(names, name)
	}
	slices.Sort(names)
	h.text("part")
	for _, name := range names {
		for _, value := range part.Header[name] {
			h.text(name)
			h.text(value)
		}
	}
	content, err := io.ReadAll(part)
	if err != nil {
		return err
	}
	h.text("content")
	h.part(content)
	return nil
}

// mediaType returns the type and subtype in lower case, without the parameters: a charset or boundary that a client
// writes differently the second time does not make another request.
func mediaType(r *http.Request) string {
	values := r.Header["Content-Type"]
	if len(values) == 0 {
		return ""
	}
	media, _, _ := strings.Cut(values[0], ";")
	return strings.ToLower(strings.TrimSpace(media))
}
