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

// Multipart gives two multipart bodies the same fingerprint if they differ in their boundary only. Clients choose another
// boundary each time they build the form. All else counts, because some server may read it: text before the first part and
// behind the last one, and the other parameters of the media type, such as start of multipart/related.
//
// It returns an error for a body that is malformed, or that has its boundary also elsewhere than between its parts: there,
// another boundary would be other content. Bodies of other media types are hashed as [idempotency.FingerprintRaw] does.
func Multipart(r *http.Request, body []byte) (idempotency.Fingerprint, error) {
	if !strings.HasPrefix(readableType(r), "multipart/") {
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
	if len(pieces) != parts+2 { // what is around the parts, too
		return idempotency.Fingerprint{}, errors.New("body as multipart: the boundary is also elsewhere than between the parts")
	}
	var form []byte
	for _, piece := range pieces {
		digest := sha256.Sum256(piece)
		form = append(form, digest[:]...)
	}
	return as(r, media, form)
}

// countParts returns how many parts a multipart body has.
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
