package idempotency

import "net/http"

// WithSelectors returns the fingerprint of a request with header h.
func (fp Fingerprint) WithSelectors(h http.Header, names []string) Fingerprint {
	return fp.withSelectors(h, selectors(names))
}

// FindKey returns the key in the fields of h with one of the names.
func FindKey(h http.Header, names ...string) (string, error) { return findKey(h, names) }
