// Package fingerprint has functions for Options.Fingerprint that count as the same request what a client writes anew for a
// retry: JSON in another order, a form with another boundary. The default, idempotency.FingerprintRaw, compares all bytes.
//
// As in that one, the query and the media type are parts of each fingerprint, the method, the path and the user are parts of
// the key, and the middleware adds the header fields of Options.FingerprintHeaders.
package fingerprint

import (
	"encoding/binary"
	"net/http"
	"strings"

	"github.com/idempotency-go/idempotency"
)

// None tells no request from another. It is for keys that are never used for another request, such as the IDs that senders
// of webhooks give to their events. It gives up that a key reused by mistake is noticed: whoever sends another request with
// the key gets the first answer, and nothing is done. The middleware still compares the fields of
// Options.FingerprintHeaders and the others that it always does.
func None(*http.Request, []byte) (idempotency.Fingerprint, error) {
	return idempotency.Fingerprint{'n', 'o', 'n', 'e'}, nil
}

// as returns the fingerprint of a request as if it had been sent with that media type and that body.
func as(r *http.Request, media string, body []byte) (idempotency.Fingerprint, error) {
	return idempotency.FingerprintRaw(&http.Request{URL: r.URL, Header: http.Header{"Content-Type": {media}}}, body)
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
