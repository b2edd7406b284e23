package idempotency

import (
	"crypto/sha256"
	"encoding/binary"
	"net/http"
	"slices"
)

// alwaysSelect are request fields that select what a request does, whatever the service: the coding of the body, and
// the fields by which frameworks let a POST stand for another method. The names are in canonical form.
var alwaysSelect = []string{"Content-Encoding", "X-Http-Method", "X-Http-Method-Override", "X-Method-Override"}

// selectors returns names and alwaysSelect in canonical form, sorted, each once.
func selectors(names []string) []string {
	all := slices.Clone(alwaysSelect)
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
