package idempotency

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/idempotency-go/idempotency/internal/bounds"
)

// Fingerprint is a digest of what a request asks for. It detects a key reused for a different request.
type Fingerprint [sha256.Size]byte

// String returns f in hexadecimal.
func (f Fingerprint) String() string { return hex.EncodeToString(f[:]) }

// FingerprintFunc computes the fingerprint of a request. Body is the whole body. The function must neither keep nor
// change it. An error refuses the request with 400 body-invalid. Many goroutines call the function at once.
//
// It may leave out the method, the path and the user, which are parts of the [Key]. It may also leave out the fields in
// Options.FingerprintHeaders, Content-Encoding, and the fields that override the method: the [Middleware] adds these to
// every fingerprint. It must leave out fields that change from one attempt to the next, such as trace headers.
type FingerprintFunc func(r *http.Request, body []byte) (Fingerprint, error)

// FingerprintRaw is the default: a SHA-256 of query, media type and body, as sent. No other field of the header is a part
// of it. The media type is without parameters, except that of a multipart body: its parameters say how to read it.
func FingerprintRaw(r *http.Request, body []byte) (Fingerprint, error) {
	media := mediaType(r)
	if strings.HasPrefix(media, "multipart/") {
		media = r.Header.Get("Content-Type")
	}
	var space [512]byte // on the stack, and enough for all but the longest queries
	content := sha256.Sum256(body)
	b := appendPart(space[:0], r.URL.RawQuery)
	b = appendPart(b, media)
	b = append(b, content[:]...)
	return sha256.Sum256(b), nil
}

// appendPart appends a part of what is hashed. Its length precedes it, so that no byte can move from one part to the
// next.
func appendPart(b []byte, part string) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(len(part)))
	return append(b, part...)
}

// mediaType returns the type and subtype in lower case, without the parameters: a charset that a client writes differently
// the second time does not make another request.
func mediaType(r *http.Request) string {
	values := r.Header["Content-Type"]
	if len(values) == 0 {
		return ""
	}
	media, _, _ := strings.Cut(values[0], ";")
	return strings.ToLower(strings.TrimSpace(media))
}

// alwaysSelect are request fields that select what a request does, whatever the service: the coding of the body, and
// the fields by which frameworks let a POST stand for another method. The names are in canonical form.
var alwaysSelectors = []string{"Content-Encoding", "X-Http-Method", "X-Http-Method-Override", "X-Method-Override"}

// selectors returns names and alwaysSelect in canonical form, sorted, each once.
func mergeSelectors(names []string) []string {
	all := slices.Clone(alwaysSelectors)
	for _, name := range names {
		all = append(all, http.CanonicalHeaderKey(name))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// withSelectors returns the fingerprint of a request with header h: fp itself if h has none of the fields, else a digest
// of fp and of every line of theirs, as sent. A field that the request does not have leaves no trace, so that requests
// without it keep their fingerprint when a name is added. Two lines differ from one line that joins them with a comma,
// because they differ to a handler that reads the first line only.
func (fp Fingerprint) withSelectors(h http.Header, names []string) Fingerprint {
	var space [512]byte // on the stack, and enough for all but the longest values
	b := append(space[:0], "idempotency/selectors/1"...)
	b = append(b, fp[:]...)
	bare := len(b)
	for _, name := range names {
		values := h[name]
		if len(values) == 0 {
			continue
		}
		b = appendPart(b, name)
		b = binary.BigEndian.AppendUint64(b, uint64(len(values)))
		for _, value := range values {
			b = appendPart(b, value)
		}
	}
	if len(b) == bare {
		return fp
	}
	return sha256.Sum256(b)
}

// readBody reads the whole body of a request. The capacity of the buffer is taken from the budget, also if there is an error
// besides. A body of more than limit bytes is refused, if possible before it is read.
func readBody(r *http.Request, limit int64, budget *bounds.Shares, user string) (*bounds.Buffer, error) {
	body, err := bounds.ReadBody(r, limit, budget, user)
	switch {
	case err == bounds.ErrNoRoom:
		err = ErrOverloaded
	case errors.Is(err, bounds.ErrTooLarge):
		err = fmt.Errorf("%w: %w", ErrBodyTooLarge, err)
	case err != nil:
		err = fmt.Errorf("%w: %w", ErrBodyInvalid, err)
	}
	return body, err
}

// consumed reports whether somebody else has read the body of r before, of which read bytes were left: then nothing
// tells this request from another one with its key.
func isBodyConsumed(r *http.Request, read int) bool {
	return read == 0 && (r.ContentLength > 0 || len(r.PostForm) > 0 || r.MultipartForm != nil)
}
