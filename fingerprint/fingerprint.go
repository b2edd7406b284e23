// Package fingerprint decides when two requests with one key are the same request. The default,
// idempotency.FingerprintRaw, compares all bytes of the body. Use this package if clients write the body anew for a retry:
//
//	idempotency.Options{Fingerprint: fingerprint.JSON}
//
// These are the functions:
//
//	JSON                     members in another order, other white space, numbers written differently
//	JSONOnly, JSONWithout    some values count, or do not count, such as the time of sending
//	FormOnly, FormWithout    the same for URL-encoded forms
//	Multipart                a form with files, whose boundary is new
//	None                     nothing counts: for keys that nobody uses for two requests
//	NewParts                 one of these, which also tells which parts of a request differ
//
// But for None, all compare the query and the media type, too. Method, path and user are parts of the key. The middleware adds
// the header fields of Options.FingerprintHeaders to every fingerprint, and Content-Encoding. A body with a content coding,
// such as gzip, counts whole, as sent, because the functions do not decode it. Middleware that decodes a body must remove the
// field Content-Encoding, too. The Decompress of echo does not.
package fingerprint

import (
	"encoding/binary"
	"net/http"
	"strings"

	"github.com/idempotency-go/idempotency"
)

// None treats all requests with one key as the same. It is for keys that are never used for another request, such as the IDs
// that senders of webhooks give to their events. The price: a key that is reused by mistake is not noticed. Whoever sends
// another request with the key gets the first answer, and nothing is done. The middleware still compares the fields of
// Options.FingerprintHeaders and the others that it always does.
func None(*http.Request, []byte) (idempotency.Fingerprint, error) {
	return idempotency.Fingerprint{'n', 'o', 'n', 'e'}, nil
}

// as returns the fingerprint of a request as if it had been sent with that media type and that body.
func as(r *http.Request, media string, body []byte) (idempotency.Fingerprint, error) {
	return idempotency.FingerprintRaw(&http.Request{URL: r.URL, Header: http.Header{"Content-Type": {media}}}, body)
}

// readableType returns the media type of a body whose content can be read as it was sent. It returns "" if the body has a
// content coding (RFC 9110, section 8.4): its bytes say nothing about the content, even if they look like a form.
func readableType(r *http.Request) string {
	for _, line := range r.Header["Content-Encoding"] {
		for coding := range strings.SplitSeq(line, ",") {
			if coding = strings.TrimSpace(coding); coding != "" && !strings.EqualFold(coding, "identity") {
				return ""
			}
		}
	}
	return mediaType(r)
}

// mediaType returns the type and subtype in lower case, without the parameters.
func mediaType(r *http.Request) string {
	media, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	return strings.ToLower(strings.TrimSpace(media))
}

// appendPart appends a part of what is hashed. Its length precedes it, so that no byte can move from one part to the
// next.
func appendPart(b []byte, part string) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(len(part)))
	return append(b, part...)
}
