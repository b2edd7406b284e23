package idempotency

import (
	"maps"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
)

// connectionFields belong to one connection or one moment, not to the answer (RFC 9110, sections 6.6.1 and 7.6.1).
// The first client gets them as the handler set them; they are not stored.
var connectionFields = map[string]bool{
	"Connection":        true,
	"Keep-Alive":        true,
	"Proxy-Connection":  true,
	"Te":                true,
	"Transfer-Encoding": true,
	"Upgrade":           true,
	"Date":              true,
}

// passing tells the fields of an answer that only its first client gets.
type passing map[string]bool

// newPassing returns the connection fields and those of omit, which must not rest in a store.
func newPassing(omit []string) passing {
	p := maps.Clone(passing(connectionFields))
	for _, name := range omit {
		p[textproto.CanonicalMIMEHeaderKey(name)] = true
	}
	return p
}

// has reports whether the field of h is left out of the record. A field without a value is kept: it holds nothing of
// the moment, and says that net/http shall not add the field by itself.
func (p passing) has(h http.Header, name string) bool {
	if len(h[name]) == 0 {
		return false
	}
	return p[name] || p[textproto.CanonicalMIMEHeaderKey(name)] || namedByConnection(h, name)
}

func namedByConnection(h http.Header, name string) bool {
	for _, line := range h["Connection"] {
		for token := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(token), name) {
				return true
			}
		}
	}
	return false
}

// difference returns what made after out of before, and shares no memory with either: a field that was added or
// changed has its values, a field that was deleted has nil. Fields that only the first client gets are left out.
func (p passing) difference(before, after http.Header) http.Header {
	diff := make(http.Header, len(after))
	count := 0
	for _, values := range after {
		count += len(values)
	}
	slab := make([]string, 0, count)
	for name, values := range after {
		old, existed := before[name]
		if existed && slices.Equal(old, values) || p.has(after, name) {
			continue
		}
		if len(values) == 0 {
			diff[name] = nil
			continue
		}
		slab = append(slab, values...)
		diff[name] = slab[len(slab)-len(values) : len(slab) : len(slab)]
	}
	for name := range before {
		if _, kept := after[name]; !kept {
			diff[name] = nil
		}
	}
	return diff
}

// pick returns the fields of h that only the first client gets.
func (p passing) pick(h http.Header) http.Header {
	var picked http.Header
	for name, values := range h {
		if p.has(h, name) {
			if picked == nil {
				picked = make(http.Header)
			}
			picked[name] = slices.Clone(values)
		}
	}
	return picked
}
