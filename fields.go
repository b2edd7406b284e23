package idempotency

import (
	"encoding/hex"
	"fmt"
	"net/http"
	"net/textproto"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Fields are the fields of a header, or changes to a header, as text. Stores keep and compare the text:
//
//	Content-Type: application/json
//	Link: </a>
//	Link: </b>
//	X-Suppressed
//
// Each line has one value and ends with a newline. The line of a field without a value has only the name: the handler
// has deleted this field of outer middleware, or prevents net/http from adding the field. The lines are sorted by
// name. The values of a field keep their order. Visible ASCII characters and spaces stand for themselves. Other
// bytes, backslashes, and colons in a name are written as \xHH. [NewFields] makes Fields from a header, and
// [ParseFields] checks stored text.
type Fields string

// headerField is a field of a header before encodeFields encodes the field.
type headerField struct {
	name   string
	values []string
}

// NewFields returns the fields of h. A field without a name is left out, because no header can have such a field.
func NewFields(h http.Header) Fields {
	var space [16]headerField
	list := space[:0]
	for name, values := range h {
		list = append(list, headerField{name, values})
	}
	return encodeFields(list)
}

// encodeFields encodes the fields in list, and sorts list.
func encodeFields(list []headerField) Fields {
	slices.SortFunc(list, func(a, b headerField) int { return strings.Compare(a.name, b.name) })
	var space [512]byte // on the stack, and enough for most headers
	b := space[:0]
	for _, f := range list {
		b = f.appendLines(b)
	}
	return Fields(b)
}

// appendLines appends the lines of f to b.
func (f headerField) appendLines(b []byte) []byte {
	if f.name == "" {
		return b
	}
	for _, value := range f.values {
		b = append(appendEscaped(b, f.name, ':'), ": "...)
		b = append(appendEscaped(b, value, '\\'), '\n')
	}
	if len(f.values) == 0 {
		b = append(appendEscaped(b, f.name, ':'), '\n')
	}
	return b
}

// appendEscaped appends s with escapes to b. The byte also is escaped as well.
func appendEscaped(b []byte, s string, also byte) []byte {
	const digits = "0123456789abcdef"
	done := 0
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < ' ' || c > '~' || c == '\\' || c == also {
			b = append(append(b, s[done:i]...), '\\', 'x', digits[c>>4], digits[c&15])
			done = i + 1
		}
	}
	return append(b, s[done:]...)
}

var escapeSequence = regexp.MustCompile(`\\x[0-9a-f]{2}`)

// unescapeText replaces the escapes in s, and leaves all other text unchanged.
func unescapeText(s string) string {
	return escapeSequence.ReplaceAllStringFunc(s, func(sequence string) string {
		b, _ := hex.DecodeString(sequence[2:]) // always two digits
		return string(b)
	})
}

// ParseFields checks that text has the stored form of Fields, and returns text as Fields. The error wraps
// [ErrRecordInvalid].
func ParseFields(text string) (Fields, error) {
	for i := 0; i < len(text); i++ {
		if c := text[i]; c != '\n' && (c < ' ' || c > '~') {
			return "", fmt.Errorf("%w: the stored header has the byte %#x", ErrRecordInvalid, c)
		}
	}
	if text != "" && !strings.HasSuffix(text, "\n") || strings.HasPrefix(text, "\n") || strings.Contains(text, "\n\n") {
		return "", fmt.Errorf("%w: the stored header has an empty or unfinished line", ErrRecordInvalid)
	}
	return Fields(text), nil
}

// Header returns the fields as a new header, or nil if there are no fields.
func (f Fields) Header() http.Header {
	if f == "" {
		return nil
	}
	h := make(http.Header, f.countLines())
	f.setFields(h, f.makeValues())
	return h
}

// Get returns the first value of a field, or the empty string. The name may have any case.
func (f Fields) Get(name string) string {
	for rest := f; rest != ""; {
		var field, value string
		field, value, _, rest = rest.cutLine()
		if strings.EqualFold(field, name) {
			return value
		}
	}
	return ""
}

// countLines returns the number of lines.
func (f Fields) countLines() int { return strings.Count(string(f), "\n") }

// makeValues returns an empty slice with room for the values of all lines.
func (f Fields) makeValues() []string { return make([]string, 0, f.countLines()) }

// cutLine returns the name and the value in the first line, and the other lines as rest. The result ok is false if
// the line has no value.
func (f Fields) cutLine() (name, value string, ok bool, rest Fields) {
	line, others, _ := strings.Cut(string(f), "\n")
	name, value, ok = strings.Cut(line, ":")
	value = strings.TrimPrefix(value, " ")
	if strings.IndexByte(line, '\\') >= 0 {
		name, value = unescapeText(name), unescapeText(value)
	}
	return name, value, ok, Fields(others)
}

// setFields sets the fields in h. The values of all fields share the array of values, which setFields returns with
// the new values. Each slice in h has the capacity of its length, so an append to a field of h does not overwrite
// another field.
func (f Fields) setFields(h http.Header, values []string) []string {
	lastName, firstValue := "", 0
	for rest := f; rest != ""; {
		var name, value string
		var ok bool
		name, value, ok, rest = rest.cutLine()
		if !ok {
			h[name] = nil
			continue
		}
		if name != lastName {
			lastName, firstValue = name, len(values)
		}
		values = append(values, value)
		h[name] = values[firstValue:len(values):len(values)]
	}
	return values
}

// prefixedTrailers returns the fields whose names begin with http.TrailerPrefix.
func (f Fields) prefixedTrailers() Fields {
	const prefix = `Trailer\x3a` // the escaped form of http.TrailerPrefix
	start := strings.Index("\n"+string(f), "\n"+prefix)
	if start < 0 {
		return ""
	}
	end := start // the lines are sorted by name, so those with the prefix are adjacent
	for strings.HasPrefix(string(f[end:]), prefix) {
		end += strings.IndexByte(string(f[end:]), '\n') + 1
	}
	return f[start:end]
}

// withField returns the fields with values as the only values of name.
func (f Fields) withField(name string, values []string) Fields {
	h := f.Header()
	if h == nil {
		h = make(http.Header)
	}
	h[name] = values
	return NewFields(h)
}

// unstoredFields are the canonical names in Options.OmitHeaders. Its methods find the fields of an answer that only
// the first client gets: the fields in OmitHeaders, and those that belong to one connection or one moment (RFC 9110,
// sections 6.6.1 and 7.6.1).
type unstoredFields map[string]bool

func newUnstoredFields(omit []string) unstoredFields {
	u := make(unstoredFields, len(omit))
	for _, name := range omit {
		u[textproto.CanonicalMIMEHeaderKey(name)] = true
	}
	return u
}

// isUnstored reports whether the record leaves out a field. A field without a value is kept, because such a field
// only prevents net/http from adding the field. Listed are the fields that the Connection field in the same header
// names.
func (u unstoredFields) isUnstored(name, canonical string, values []string, listed map[string]bool) bool {
	return len(values) > 0 && (isConnectionField(name, canonical) || u[canonical] || listed[canonical])
}

// canonicalFieldName returns the canonical name of a field in a header or a trailer.
func canonicalFieldName(name string) string {
	return textproto.CanonicalMIMEHeaderKey(strings.TrimPrefix(name, http.TrailerPrefix))
}

// isConnectionField reports whether a field belongs to one connection or one moment. A Content-Length in an unusual
// spelling counts as well, because net/http would send its own Content-Length beside it.
func isConnectionField(name, canonical string) bool {
	switch canonical {
	case "Connection", "Keep-Alive", "Proxy-Connection", "Te", "Transfer-Encoding", "Upgrade", "Date":
		return true
	case "Content-Length":
		return name != canonical
	}
	return false
}

// parseConnectionList returns the canonical names in the comma-separated lists of a Connection field.
func parseConnectionList(connection []string) map[string]bool {
	var listed map[string]bool
	for _, line := range connection {
		for token := range strings.SplitSeq(line, ",") {
			if listed == nil {
				listed = make(map[string]bool)
			}
			listed[textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(token))] = true
		}
	}
	return listed
}

// diffHeaders returns the changes that turn before into after. In diff, a field that was added or changed has its
// values, and a deleted field has no values. Fields that only the first client gets are in unstored instead. The
// field replayMarker is in neither, because only this package may set it.
func (u unstoredFields) diffHeaders(before, after http.Header) (diff Fields, unstored http.Header) {
	var space [16]headerField
	list := space[:0]
	listed := parseConnectionList(after["Connection"])
	for name, values := range after {
		if old, existed := before[name]; existed && slices.Equal(old, values) {
			continue
		}
		switch canonical := canonicalFieldName(name); {
		case canonical == replayMarker:
		case u.isUnstored(name, canonical, values, listed):
			if unstored == nil {
				unstored = make(http.Header)
			}
			unstored[name] = slices.Clone(values)
		default:
			list = append(list, headerField{name, values})
		}
	}
	for name := range before {
		if _, kept := after[name]; !kept {
			list = append(list, headerField{name, nil})
		}
	}
	return encodeFields(list), unstored
}

// stripFields returns f without the fields that only the first client gets.
func (u unstoredFields) stripFields(f Fields) Fields {
	if f == "" {
		return ""
	}
	diff, _ := u.diffHeaders(nil, f.Header())
	return diff
}

// filterResponse returns the response for a replay: without the fields that the present options leave out, even if
// the options were different when the response was stored.
func (u unstoredFields) filterResponse(resp *Response) *Response {
	if !u.hasOmittedField(resp.Header) && !u.hasOmittedField(resp.Trailer) {
		return resp
	}
	filtered := *resp
	filtered.Header, filtered.Trailer = u.stripFields(resp.Header), u.stripFields(resp.Trailer)
	return &filtered
}

// hasOmittedField reports whether f has a field in Options.OmitHeaders.
func (u unstoredFields) hasOmittedField(f Fields) bool {
	for rest := f; rest != "" && len(u) > 0; {
		var name string
		name, _, _, rest = rest.cutLine()
		if u[canonicalFieldName(name)] {
			return true
		}
	}
	return false
}

// checkStorable refuses a response that could not be read again from a store. Status 0 is accepted, because work
// without HTTP has no status, and status 101 is accepted for an answer that is kept without its body.
func (resp *Response) checkStorable() error {
	if s := resp.Status; s != 0 && s != http.StatusSwitchingProtocols && (s < 200 || s > 999) {
		return fmt.Errorf("status %d", s)
	}
	for _, fields := range [...]Fields{resp.Header, resp.Trailer} {
		if _, err := ParseFields(string(fields)); err != nil {
			return err
		}
	}
	return nil
}

// checkHTTPAnswer refuses a response that no handler can have sent over HTTP, for any method of the request. Any
// other response can be stored and replayed.
func (resp *Response) checkHTTPAnswer() error {
	if err := resp.checkSendable(""); err != nil {
		return err
	}
	for _, fields := range [...]Fields{resp.Header, resp.Trailer} {
		header := fields.Header()
		if NewFields(header) != fields {
			return fmt.Errorf("idempotency: the fields %.256q do not have the form that NewFields returns", string(fields))
		}
		for name, values := range header {
			if !isToken(strings.TrimPrefix(name, http.TrailerPrefix)) || slices.ContainsFunc(values, cannotBeSent) {
				return fmt.Errorf("idempotency: field %q has a name or a value that HTTP cannot send", name)
			}
		}
	}
	if len(resp.Body) > 0 && !bodyAllowed(resp.Status) {
		return fmt.Errorf("idempotency: the response has a body, but status %d allows none", resp.Status)
	}
	return nil
}

// cannotBeSent reports whether the value has characters that no field may have, or surrounding spaces, which do not
// belong to a value (RFC 9110, section 5.5).
func cannotBeSent(value string) bool {
	return strings.Trim(value, " \t") != value ||
		strings.ContainsFunc(value, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7F })
}

// checkSendable refuses a response that this package has not stored: a response that net/http cannot send, or that a
// client could read as two responses. The method is the method of the request.
func (resp *Response) checkSendable(method string) error {
	if resp.Status < 200 || resp.Status > 999 {
		return fmt.Errorf("idempotency: status %d is not between 200 and 999", resp.Status)
	}
	for _, fields := range [...]Fields{resp.Header, resp.Trailer} {
		for rest := fields; rest != ""; {
			var name, value string
			var ok bool
			name, value, ok, rest = rest.cutLine()
			if ok && !resp.mayHaveField(name, value, method) {
				return fmt.Errorf("idempotency: field %q is not allowed in a stored response", name)
			}
		}
	}
	return nil
}

// mayHaveField reports whether a stored response may have the field.
func (resp *Response) mayHaveField(name, value, method string) bool {
	canonical := canonicalFieldName(name)
	if isConnectionField(name, canonical) || canonical == replayMarker {
		return false
	}
	if canonical != "Content-Length" || !bodyAllowed(resp.Status) || method == http.MethodHead {
		return true
	}
	n, err := strconv.ParseUint(value, 10, 63) // ParseInt would accept a sign, which clients refuse
	return err == nil && n == uint64(len(resp.Body))
}

// replayMarker is the field that distinguishes a replay from a first answer. Only this package sets replayMarker.
const replayMarker = "Idempotent-Replayed"
