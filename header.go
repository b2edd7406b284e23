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
	name = strings.TrimPrefix(name, http.TrailerPrefix)
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
	values := newSlab(after)
	for name, vs := range after {
		old, existed := before[name]
		if existed && slices.Equal(old, vs) || p.has(after, name) {
			continue
		}
		diff[name] = values.copy(vs)
	}
	for name := range before {
		if _, kept := after[name]; !kept {
			diff[name] = nil
		}
	}
	return diff
}

// strip returns h without the fields that only the first client gets.
func (p passing) strip(h http.Header) http.Header {
	if len(p.pick(h)) == 0 {
		return h
	}
	return p.difference(nil, h)
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

// replayMarker is the field that tells a replay from a first answer.
const replayMarker = "Idempotent-Replayed"

// setFields sets the fields of src in dst, as copies because outer middleware may change what it finds in dst; and the
// marker if it is a replay.
func setFields(dst, src http.Header, replayed bool) {
	if len(src) == 0 && !replayed {
		return
	}
	values := newSlab(src)
	for name, vs := range src {
		dst[name] = values.copy(vs)
	}
	if replayed {
		dst[replayMarker] = values.copy([]string{"true"})
	}
}

// slab is one piece of memory for all values of a header.
type slab []string

// newSlab has room for one value in each field of h, and one more. It grows if there are more.
func newSlab(h http.Header) slab { return make(slab, 0, len(h)+1) }

// copy returns a copy of values that cannot grow into its neighbours; nil for none.
func (s *slab) copy(values []string) []string {
	if len(values) == 0 {
		return nil
	}
	*s = append(*s, values...)
	return (*s)[len(*s)-len(values) : len(*s) : len(*s)]
}
