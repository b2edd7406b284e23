// Package fingerprint compares requests with the same key by their content. The default, idempotency.FingerprintRaw, compares
// all bytes of the body. Use this package if clients encode the body anew for each retry:
//
//	idempotency.Options{Fingerprint: fingerprint.JSON}
//
// The functions differ in how they compare the body:
//
//	JSON                     ignores white space, the order of members, and how a number or a string is written
//	JSONOnly, JSONWithout    compare only the selected values, or ignore them, such as the time of sending
//	FormOnly, FormWithout    do the same for the fields of URL-encoded forms
//	Multipart                ignores the boundary of a form with files
//	None                     ignores the request: for keys that clients use for a single request only
//	NewParts                 compares like another function, and reports which parts of a request differ
//
// All functions but None also compare the query and the media type. Method, path and user are parts of the key. The middleware
// adds Content-Encoding and the header fields of Options.FingerprintHeaders to every fingerprint.
//
// The functions do not decode a content coding such as gzip: they compare an encoded body as a whole, as sent. Middleware that
// decodes a body must also remove the field Content-Encoding. The Decompress middleware of echo leaves the field in place.
package fingerprint

import (
	"encoding/binary"
	"net/http"
	"strings"

	"github.com/idempotency-go/idempotency"
)

// None treats all requests with the same key as the same request. Use None for keys that clients never reuse, such as the
// event IDs of webhooks. With None, a key that a client reuses by mistake goes unnoticed: the client gets the answer to the
// first request, and the second request is not executed. The middleware still compares Content-Encoding and the header fields
// of Options.FingerprintHeaders.
func None(*http.Request, []byte) (idempotency.Fingerprint, error) {
	return idempotency.Fingerprint{'n', 'o', 'n', 'e'}, nil
}

// fingerprintAs returns the raw fingerprint that r would have with contentType and body in place of its own.
func fingerprintAs(r *http.Request, contentType string, body []byte) (idempotency.Fingerprint, error) {
	return idempotency.FingerprintRaw(&http.Request{URL: r.URL, Header: http.Header{"Content-Type": {contentType}}}, body)
}

// contentMediaType returns the media type of the bytes of the body. The media type is "" if the body has a content coding
// (RFC 9110, section 8.4), because Content-Type then describes the decoded content instead of the bytes.
func contentMediaType(r *http.Request) string {
	for _, line := range r.Header["Content-Encoding"] {
		for coding := range strings.SplitSeq(line, ",") {
			if coding = strings.TrimSpace(coding); coding != "" && !strings.EqualFold(coding, "identity") {
				return ""
			}
		}
	}
	return mediaType(r)
}

// mediaType returns the type and subtype of Content-Type in lower case, without parameters.
func mediaType(r *http.Request) string {
	media, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	return strings.ToLower(strings.TrimSpace(media))
}

// appendPart appends the length of part and part to b. With the length, two lists of parts have the same bytes only if all
// their parts are equal.
func appendPart(b []byte, part string) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(len(part)))
	return append(b, part...)
}
