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

// Fingerprint is a digest of the content of a request. A different fingerprint shows that a client has reused a key
// for a different request.
type Fingerprint [sha256.Size]byte

// String returns f in hexadecimal.
func (f Fingerprint) String() string { return hex.EncodeToString(f[:]) }

// FingerprintFunc computes the fingerprint of a request. Body is the whole body. The function must not modify body,
// or keep body after returning. An error refuses the request with 400 body-invalid, or, if the error is or wraps
// an [*Error], with that Error. Several goroutines call the function at the same time.
//
// The function may omit the method, the path and the user, which are parts of the [Key]. It may also omit the fields
// in Options.FingerprintHeaders, Content-Encoding, and the fields that override the method, because the [Middleware]
// adds these fields to every fingerprint. It must omit fields that change from one attempt to the next, such as trace
// headers.
type FingerprintFunc func(r *http.Request, body []byte) (Fingerprint, error)

// FingerprintRaw is the default FingerprintFunc: a SHA-256 of query, media type and body, as sent. FingerprintRaw
// ignores all other fields of the header. It also ignores the parameters of the media type, except for a multipart
// body, whose parameters are necessary to read the body.
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

// appendPart appends part to b, the data for a digest. The length precedes the part, so that two different lists of
// parts never produce the same data.
func appendPart(b []byte, part string) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(len(part)))
	return append(b, part...)
}

// mediaType returns the media type of the request in lower case, without parameters. A client may write the charset
// differently in a retry, and still send the same request.
func mediaType(r *http.Request) string {
	values := r.Header["Content-Type"]
	if len(values) == 0 {
		return ""
	}
	media, _, _ := strings.Cut(values[0], ";")
	return strings.ToLower(strings.TrimSpace(media))
}

// alwaysSelectors are the request fields that change the meaning of a request in every service: the coding of the
// body, and the fields by which frameworks let a POST replace another method. The names are in canonical form.
var alwaysSelectors = []string{"Content-Encoding", "X-Http-Method", "X-Http-Method-Override", "X-Method-Override"}

// mergeSelectors returns names and alwaysSelectors in canonical form, sorted and without duplicates.
func mergeSelectors(names []string) []string {
	all := slices.Clone(alwaysSelectors)
	for _, name := range names {
		all = append(all, http.CanonicalHeaderKey(name))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// withSelectors returns the fingerprint of a request with header h. The result is fp if h has none of the fields in
// names. Otherwise the result is a digest of fp and of every line of these fields, as sent. An absent field does not
// change the result, so adding a name to names keeps the fingerprints of requests without this field. Two lines give
// another result than one line that joins them with a comma, because a handler that reads only the first line treats
// the two requests differently.
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

// readBody reads the whole body of a request into a buffer, and takes the capacity of the buffer from the budget,
// also after an error. A body of more than limit bytes is refused, without reading if the request announces its size.
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

// isBodyConsumed reports whether other code has read the body of r before the middleware: the request announces a
// body or has a parsed form, but bytesRead is zero. Such a request looks the same as any other request with its key.
func isBodyConsumed(r *http.Request, bytesRead int) bool {
	return bytesRead == 0 && (r.ContentLength > 0 || len(r.PostForm) > 0 || r.MultipartForm != nil)
}
