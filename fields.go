package idempotency

import (
	"fmt"
	"net/http"
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
// Each value has a line, which ends with a newline; so has a field with no value, which deletes that of outer
// middleware, or keeps net/http from adding one. The lines are in the order of the names, and the values of a name in
// their own. Visible ASCII characters and spaces stand for themselves, other bytes, the backslash, and a colon in a name
// are written as \xHH. [NewFields] makes Fields, [ParseFields] reads what was stored.
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

// escape writes s as it stands in a line.
func escape(b *strings.Builder, s string, isName bool) {
	const digits = "0123456789abcdef"
	clean := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= ' ' && c <= '~' && c != '\\' && (c != ':' || !isName) {
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
	if strings.IndexByte(s, '\\') < 0 {
		return s
	}
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
	f.set(h, f.room(0))
	return h
}

// lines returns the number of lines.
func (f Fields) lines() int { return strings.Count(string(f), "\n") }

// room returns memory for the values of all lines, and n more.
func (f Fields) room(n int) []string { return make([]string, 0, f.lines()+n) }

// next returns the first line, whether it has a value, and the other lines.
func (f Fields) next() (name, value string, ok bool, rest Fields) {
	line, others, _ := strings.Cut(string(f), "\n")
	name, value, ok = strings.Cut(line, ":")
	return unescape(name), unescape(strings.TrimPrefix(value, " ")), ok, Fields(others)
}

// set sets the fields in h. Their values are appended to room, which it returns: slices of it that cannot grow into
// one another.
func (f Fields) set(h http.Header, room []string) []string {
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
			last, first = name, len(room)
		}
		room = append(room, value)
		h[name] = room[first:len(room):len(room)]
	}
	return room
}

// describes reports whether h has these fields and no others.
func (f Fields) describes(h http.Header) bool {
	names := 0
	for rest := f; rest != ""; {
		var name, value string
		var ok bool
		name, value, ok, rest = rest.next()
		values := h[name]
		if !ok || len(values) != 1 || values[0] != value {
			return false // fields with several values are rare enough
		}
		names++
	}
	return names == len(h)
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
