package idempotency

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Fingerprint is a digest of what a request asks for. It detects a key reused for a different request.
type Fingerprint [sha256.Size]byte

// String returns f in hexadecimal.
func (f Fingerprint) String() string { return hex.EncodeToString(f[:]) }

// parse sets f to what s is the String of, and reports whether it is one.
func (f *Fingerprint) parse(s []byte) bool {
	if len(s) != hex.EncodedLen(len(f)) {
		return false
	}
	_, err := hex.Decode(f[:], s)
	return err == nil
}

// FingerprintFunc computes the fingerprint of a request. Body is the whole body. The function must neither keep nor
// change it. An error refuses the request with 400 body-invalid. Many goroutines call the function at once.
//
// It may leave out the method, the path and the user, which are parts of the [Key]. It may also leave out the fields in
// Options.FingerprintHeaders, Content-Encoding, and the fields that override the method: the [Middleware] adds these to
// every fingerprint. It must leave out fields that change from one attempt to the next, such as trace headers.
type FingerprintFunc func(r *http.Request, body []byte) (Fingerprint, error)

// FingerprintRaw is the default: a SHA-256 of query, media type (without parameters) and body, as sent. No other field
// of the header is a part of it.
func FingerprintRaw(r *http.Request, body []byte) (Fingerprint, error) {
	var space [512]byte // on the stack, and enough for all but the longest queries
	content := sha256.Sum256(body)
	b := appendPart(space[:0], r.URL.RawQuery)
	b = appendPart(b, mediaType(r))
	b = append(b, content[:]...)
	return sha256.Sum256(b), nil
}

// appendPart appends a part of what is hashed. Its length precedes it, so that no byte can move from one part to the
// next.
func appendPart(b []byte, part string) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(len(part)))
	return append(b, part...)
}

// FingerprintJSON gives two JSON bodies the same fingerprint if they differ only in white space, in the order of
// members, or in how strings and fractions are written. It hashes the canonical form of RFC 8785, with one exception:
// integers keep every digit, and are not rounded to 53 bits. Numbers with a fraction or an exponent are compared as
// 64-bit floats. So an amount that needs more digits belongs in an integer or a string.
//
// It returns an error for
//
//   - an object with the same name twice, because its meaning depends on who reads it;
//   - a number with a fraction or an exponent beyond the largest 64-bit float, such as 1e400, because RFC 8785 has no
//     form for it;
//   - arrays and objects nested more than 100 deep, because the time to sort them grows with their depth.
//
// Empty bodies, and those of other media types, are hashed as [FingerprintRaw] does.
func FingerprintJSON(r *http.Request, body []byte) (Fingerprint, error) {
	media := mediaType(r)
	if len(body) == 0 || media != "application/json" && !strings.HasSuffix(media, "+json") {
		return FingerprintRaw(r, body)
	}
	if err := checkDepth(body); err != nil {
		return Fingerprint{}, fmt.Errorf("body as JSON: %w", err)
	}
	value := jsontext.Value(bytes.Clone(body))
	if err := value.Canonicalize(jsontext.CanonicalizeRawInts(false)); err != nil {
		return Fingerprint{}, fmt.Errorf("body as JSON: %w", err)
	}
	if err := checkRange(body, value); err != nil {
		return Fingerprint{}, fmt.Errorf("body as JSON: %w", err)
	}
	return FingerprintRaw(r, value)
}

// maxJSONDepth bounds how deep arrays and objects are nested.
const maxJSONDepth = 100

// checkDepth refuses JSON that takes too long to canonicalise. It may pass what is not well-formed.
func checkDepth(body []byte) error {
	depth, quoted := 0, false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == ']' || c == '}':
			depth--
		case c == '[' || c == '{':
			if depth++; depth > maxJSONDepth {
				return fmt.Errorf("nested more than %d deep", maxJSONDepth)
			}
		}
	}
	return nil
}

// largestFloat is the largest 64-bit float in canonical form. Numbers beyond it are canonicalised to it.
const largestFloat = "1.7976931348623157e+308"

// checkRange refuses well-formed JSON with a number beyond the largest float. It decodes the body only if the canonical
// form has that float in it, which ordinary bodies do not have.
func checkRange(body, canonical []byte) error {
	if !bytes.Contains(canonical, []byte(largestFloat)) {
		return nil
	}
	tokens := jsontext.NewDecoder(bytes.NewReader(body))
	for {
		token, err := tokens.ReadToken()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if token.Kind() == '0' && !inRange(token.String()) {
			return fmt.Errorf("the number that ends at byte %d is beyond the largest 64-bit float", tokens.InputOffset())
		}
	}
}

// inRange reports whether a number is an integer, of which every digit counts, or fits a 64-bit float.
func inRange(number string) bool {
	if !strings.ContainsAny(number, ".eE") {
		return true
	}
	_, err := strconv.ParseFloat(number, 64)
	return err == nil
}

// FingerprintMultipart gives two multipart bodies the same fingerprint if they differ in their boundary only. Clients
// choose another boundary each time they build the form. Bodies of other media types are hashed as [FingerprintRaw]
// does.
func FingerprintMultipart(r *http.Request, body []byte) (Fingerprint, error) {
	if !strings.HasPrefix(mediaType(r), "multipart/") {
		return FingerprintRaw(r, body)
	}
	_, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return Fingerprint{}, fmt.Errorf("media type: %w", err)
	}
	var form []byte
	parts := multipart.NewReader(bytes.NewReader(body), params["boundary"])
	for {
		part, err := parts.NextRawPart()
		if err == io.EOF {
			return FingerprintRaw(r, form)
		}
		if err != nil {
			return Fingerprint{}, fmt.Errorf("body as multipart: %w", err)
		}
		content, err := io.ReadAll(part)
		if err != nil {
			return Fingerprint{}, fmt.Errorf("body as multipart: %w", err)
		}
		digest := sha256.Sum256(content)
		form = appendPart(form, string(NewFields(http.Header(part.Header))))
		form = append(form, digest[:]...)
	}
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
