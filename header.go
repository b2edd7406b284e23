package idempotency

import (
	"net/http"
	"net/textproto"
	"slices"
	"strings"
)

// passing tells the fields of an answer that only its first client gets: those that belong to one connection or one
// moment (RFC 9110, sections 6.6.1 and 7.6.1), and those in Options.OmitHeaders, by their canonical names.
type passing map[string]bool

func newPassing(omit []string) passing {
	p := make(passing, len(omit))
	for _, name := range omit {
		p[textproto.CanonicalMIMEHeaderKey(name)] = true
	}
	return p
}

// has reports whether the field is left out of the record. A field without a value is kept: it holds nothing of the
// moment, and says that net/http shall not add the field by itself. connection is the field of that name beside it.
func (p passing) has(name string, values, connection []string) bool {
	if len(values) == 0 {
		return false
	}
	name = textproto.CanonicalMIMEHeaderKey(strings.TrimPrefix(name, http.TrailerPrefix))
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Connection", "Te", "Transfer-Encoding", "Upgrade", "Date":
		return true
	}
	return len(p) > 0 && p[name] || len(connection) > 0 && names(connection, name)
}

// names reports whether one of the lists in lines has the name.
func names(lines []string, name string) bool {
	for _, line := range lines {
		for token := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(token), name) {
				return true
			}
		}
	}
	return false
}

// difference returns what made after out of before: a field that was added or changed has its values, a field that was
// deleted has none. Fields that only the first client gets are apart from it.
func (p passing) difference(before, after http.Header) (diff Fields, momentary http.Header) {
	var space [16]field
	list := space[:0]
	connection := after["Connection"]
	for name, values := range after {
		old, existed := before[name]
		switch {
		case existed && slices.Equal(old, values):
		case p.has(name, values, connection):
			if momentary == nil {
				momentary = make(http.Header)
			}
			momentary[name] = slices.Clone(values)
		default:
			list = append(list, field{name, values})
		}
	}
	for name := range before {
		if _, kept := after[name]; !kept {
			list = append(list, field{name, nil})
		}
	}
	return newFields(list), momentary
}

// strip returns f without the fields that only the first client gets.
func (p passing) strip(f Fields) Fields {
	if f == "" {
		return ""
	}
	diff, _ := p.difference(nil, f.Header())
	return diff
}

// replayMarker is the field that tells a replay from a first answer.
const replayMarker = "Idempotent-Replayed"
