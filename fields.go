package idempotency

import (
	"fmt"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
)

// Fields are fields of a header, or changes to one, as text that is stored and compared as it is:
//
//	Content-Type: application/json
//	Link: </a>
//	Link: </b>
//	X-Suppressed
//
// Each value has a line of its own, which ends with a newline. A field without a value has a line with its name: it
// deletes the field of outer middleware, or keeps net/http from adding one. The lines are sorted by name; the values of
// a name keep their order. Visible ASCII characters and spaces stand for themselves. Other bytes, the backslash, and a
// colon in a name are written as \xHH. [NewFields] makes Fields, [ParseFields] reads what was stored.
type Fields string

// field is a field on its way into Fields.
type field struct {
	name   string
	values []string
}

// NewFields returns the fields of h, except one without a name, which no header can have.
func NewFields(h http.Header) Fields {
	var space [16]field
	list := space[:0]
	for name, values := range h {
		list = append(list, field{name, values})
	}
	return newFields(list)
}

// newFields returns the fields of list, which it sorts.
func newFields(list []field) Fields {
	slices.SortFunc(list, func(a, b field) int { return strings.Compare(a.name, b.name) })
	size := 0
	for _, f := range list {
		size += (len(f.name) + len(": \n")) * max(1, len(f.values))
		for _, v := range f.values {
			size += len(v)
		}
	}
	var b strings.Builder
	b.Grow(size)
	for _, f := range list {
		f.write(&b)
	}
	return Fields(b.String())
}

func (f field) write(b *strings.Builder) {
	if f.name == "" {
		return
	}
	for _, value := range f.values {
		escape(b, f.name, true)
		b.WriteString(": ")
		escape(b, value, false)
		b.WriteByte('\n')
	}
	if len(f.values) == 0 {
		escape(b, f.name, true)
		b.WriteByte('\n')
	}
}

// plain says which bytes stand for themselves, at least in a value.
var plain = func() (p [256]bool) {
	for c := ' '; c <= '~'; c++ {
		p[c] = c != '\\'
	}
	return p
}()

// escape writes s as it stands in a line.
func escape(b *strings.Builder, s string, isName bool) {
	const digits = "0123456789abcdef"
	clean := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if plain[c] && (c != ':' || !isName) {
			continue
		}
		b.WriteString(s[clean:i])
		b.WriteString(`\x`)
		b.WriteByte(digits[c>>4])
		b.WriteByte(digits[c&15])
		clean = i + 1
	}
	b.WriteString(s[clean:])
}

// unescape is total: what is no escape stands for itself.
func unescape(s string) string {
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if c, ok := unescapeByte(s[i:]); ok {
			b = append(b, c)
			i += len(`\xHH`) - 1
		} else {
			b = append(b, s[i])
		}
	}
	return string(b)
}

func unescapeByte(s string) (c byte, ok bool) {
	if len(s) < len(`\xHH`) || s[0] != '\\' || s[1] != 'x' {
		return 0, false
	}
	high, low := hexDigit(s[2]), hexDigit(s[3])
	return high<<4 | low, high < 16 && low < 16
}

// hexDigit returns the value of c, or 16.
func hexDigit(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	default:
		return 16
	}
}

// ParseFields returns text as fields, if it can be what Fields are stored as. The error wraps [ErrRecordInvalid].
func ParseFields(text string) (Fields, error) {
	for i := 0; i < len(text); i++ {
		if c := text[i]; c != '\n' && (c < ' ' || c > '~') {
			return "", fmt.Errorf("%w: byte %#x in the header", ErrRecordInvalid, c)
		}
	}
	if text != "" && !strings.HasSuffix(text, "\n") || strings.HasPrefix(text, "\n") || strings.Contains(text, "\n\n") {
		return "", fmt.Errorf("%w: lines of the header", ErrRecordInvalid)
	}
	return Fields(text), nil
}

// Header returns the fields as a header of its own; nil if there are none.
func (f Fields) Header() http.Header {
	if f == "" {
		return nil
	}
	h := make(http.Header, f.lines())
	f.set(h, f.noValues())
	return h
}

// Get returns the first value of a field, whose name may be written in any case, or the empty string.
func (f Fields) Get(name string) string {
	for rest := f; rest != ""; {
		var field, value string
		field, value, _, rest = rest.next()
		if strings.EqualFold(field, name) {
			return value
		}
	}
	return ""
}

// lines returns the number of lines.
func (f Fields) lines() int { return strings.Count(string(f), "\n") }

// noValues returns an empty slice with room for the values of all lines.
func (f Fields) noValues() []string { return make([]string, 0, f.lines()) }

// next returns the first line, whether it has a value, and the other lines.
func (f Fields) next() (name, value string, ok bool, rest Fields) {
	line, others, _ := strings.Cut(string(f), "\n")
	name, value, ok = strings.Cut(line, ":")
	value = strings.TrimPrefix(value, " ")
	if strings.IndexByte(line, '\\') >= 0 {
		name, value = unescape(name), unescape(value)
	}
	return name, value, ok, Fields(others)
}

// set sets the fields in h. Their values are appended to values, which it returns: slices of it that cannot grow into
// one another.
func (f Fields) set(h http.Header, values []string) []string {
	last, first := "", 0
	for rest := f; rest != ""; {
		var name, value string
		var ok bool
		name, value, ok, rest = rest.next()
		if !ok {
			h[name] = nil
			continue
		}
		if name != last {
			last, first = name, len(values)
		}
		values = append(values, value)
		h[name] = values[first:len(values):len(values)]
	}
	return values
}

// prefixed returns the fields that have http.TrailerPrefix.
func (f Fields) prefixed() Fields {
	const prefix = `Trailer\x3a` // as it is escaped
	start := strings.Index("\n"+string(f), "\n"+prefix)
	if start < 0 {
		return ""
	}
	end := start // the lines are in the order of the names
	for strings.HasPrefix(string(f[end:]), prefix) {
		end += strings.IndexByte(string(f[end:]), '\n') + 1
	}
	return f[start:end]
}

// with returns the fields with that one in place of what they have under its name.
func (f Fields) with(name string, values []string) Fields {
	h := f.Header()
	if h == nil {
		h = make(http.Header)
	}
	h[name] = values
	return NewFields(h)
}

// unstoredFields tells the fields of an answer that only its first client gets: those that belong to one connection or
// one moment (RFC 9110, sections 6.6.1 and 7.6.1), and those in Options.OmitHeaders, by their canonical names.
type unstoredFields map[string]bool

func newUnstoredFields(omit []string) unstoredFields {
	u := make(unstoredFields, len(omit))
	for _, name := range omit {
		u[textproto.CanonicalMIMEHeaderKey(name)] = true
	}
	return u
}

// has reports whether the field is left out of the record. A field without a value is kept: all that it says is that
// net/http shall not add the field by itself. connection is the field of that name beside it.
func (u unstoredFields) has(name string, values, connection []string) bool {
	if len(values) == 0 {
		return false
	}
	name = textproto.CanonicalMIMEHeaderKey(strings.TrimPrefix(name, http.TrailerPrefix))
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Connection", "Te", "Transfer-Encoding", "Upgrade", "Date":
		return true
	}
	return len(u) > 0 && u[name] || len(connection) > 0 && listed(connection, name)
}

// listed reports whether one of the comma-separated lists in lines has the name.
func listed(lines []string, name string) bool {
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
func (u unstoredFields) difference(before, after http.Header) (diff Fields, unstored http.Header) {
	var space [16]field
	list := space[:0]
	connection := after["Connection"]
	for name, values := range after {
		old, existed := before[name]
		switch {
		case existed && slices.Equal(old, values):
		case u.has(name, values, connection):
			if unstored == nil {
				unstored = make(http.Header)
			}
			unstored[name] = slices.Clone(values)
		default:
			list = append(list, field{name, values})
		}
	}
	for name := range before {
		if _, kept := after[name]; !kept {
			list = append(list, field{name, nil})
		}
	}
	return newFields(list), unstored
}

// strip returns f without the fields that only the first client gets.
func (u unstoredFields) strip(f Fields) Fields {
	if f == "" {
		return ""
	}
	diff, _ := u.difference(nil, f.Header())
	return diff
}

// replayMarker is the field that tells a replay from a first answer.
const replayMarker = "Idempotent-Replayed"
