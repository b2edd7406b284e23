package fingerprint

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"slices"
	"strings"

	"github.com/idempotency-go/idempotency"
)

// Multipart gives two multipart bodies the same fingerprint if the bodies differ only in the boundary, because clients choose
// a new boundary each time they build the form. Everything that some server may read counts: the parts, the text before the
// first part and after the last part, and the other parameters of the media type, such as start of multipart/related.
//
// Multipart returns an error for a malformed body, and for a body whose parts contain the boundary, because a new boundary
// would change their content. Bodies of other media types are hashed as by [idempotency.FingerprintRaw].
func Multipart(r *http.Request, body []byte) (idempotency.Fingerprint, error) {
	if !strings.HasPrefix(contentMediaType(r), "multipart/") {
		return idempotency.FingerprintRaw(r, body)
	}
	media, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return idempotency.Fingerprint{}, fmt.Errorf("media type: %w", err)
	}
	boundary := params["boundary"]
	delete(params, "boundary")
	for _, name := range slices.Sorted(maps.Keys(params)) {
		media = string(appendPart(appendPart([]byte(media), name), params[name]))
	}
	parts, err := countParts(body, boundary)
	if err != nil {
		return idempotency.Fingerprint{}, fmt.Errorf("body as multipart: %w", err)
	}
	pieces := bytes.Split(body, []byte("--"+boundary))
	if len(pieces) != parts+2 { // the text before the first part and after the last part
		return idempotency.Fingerprint{}, errors.New("body as multipart: the boundary is also elsewhere than between the parts")
	}
	var form []byte
	for _, piece := range pieces {
		digest := sha256.Sum256(piece)
		form = append(form, digest[:]...)
	}
	return fingerprintAs(r, media, form)
}

// countParts returns the number of parts in a multipart body.
func countParts(body []byte, boundary string) (n int, err error) {
	parts := multipart.NewReader(bytes.NewReader(body), boundary)
	for ; ; n++ {
		_, err := parts.NextRawPart()
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}
