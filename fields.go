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

// Fields are the fields of a header, or changes to a header, as text. They are stored and compared as that text:
//
//	Content-Type: application/json
//	Link: </a>
//	Link: </b>
//	X-Suppressed
//
// Each value stands on one line, which ends with a newline. A field without a value stands as a line with its name
// only: it deletes the field of outer middleware, or keeps net/http from adding one. The lines are sorted by name. The
// values of a name keep their order. Visible ASCII characters and spaces stand for themselves. Other bytes, the
// backslash, and a colon in a name are written as \xHH. [NewFields] makes Fields, and [ParseFields] reads what was
// stored.
type Fields string

// field is a field on its way into Fields.
type headerField struct {
	name   string
	values []string
}

// NewFields returns the fields of h. It leaves out a field without a name, which no header can have.
func NewFields(h http.Header) Fields {
	var space [16]headerField
	list := space[:0]
	for name, values := range h {
		list = append(list, headerField{name, values})
	}
	return encodeFields(list)
}

// newFields returns the fields of list, which it sorts.
func encodeFields(list []headerField) Fields {
	slices.SortFunc(list, func(a, b headerField) int { return strings.Compare(a.name, b.name) })
	var space [512]byte // on the stack, and enough for most headers
	b := space[:0]
	for _, f := range list {
		b = f.appendLines(b)
	}
	return Fields(b)
}

// append appends the lines of f to b.
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

// appendEscaped appends s as it stands in a line. The byte also is escaped too.
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

// unescape is total: what is no escape stands for itself.
func unescapeText(s string) string {
	return escapeSequence.ReplaceAllStringFunc(s, func(sequence string) string {
		b, _ := hex.DecodeString(sequence[2:]) // always two digits
		return string(b)
	})
}

// ParseFields checks that text has the form in which Fields are stored, and returns it as Fields. The error wraps
// [ErrRecordInvalid].
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

// Header returns the fields as a new header. It is nil if there are no fields.
func (f Fields) Header() http.Header {
	if f == "" {
		return nil
	}
	h := make(http.Header, f.countLines())
	f.setFields(h, f.makeValues())
	return h
}

// Get returns the first value of a field, or the empty string. The name may be written in any case.
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

// lines returns the number of lines.
func (f Fields) countLines() int { return strings.Count(string(f), "\n") }

// noValues returns an empty slice with room for the values of all lines.
func (f Fields) makeValues() []string { return make([]string, 0, f.countLines()) }

// next returns the first line, whether it has a value, and the other lines.
func (f Fields) cutLine() (name, value string, ok bool, rest Fields) {
	line, others, _ := strings.Cut(string(f), "\n")
	name, value, ok = strings.Cut(line, ":")
	value = strings.TrimPrefix(value, " ")
	if strings.IndexByte(line, '\\') >= 0 {
		name, value = unescapeText(name), unescapeText(value)
	}
	return name, value, ok, Fields(others)
}

// set sets the fields in h. Their values are appended to values, which it returns: slices of it that cannot grow into
// one another.
func (f Fields) setFields(h http.Header, values []string) []string {
	last, first := "", 0
	for rest := f; rest != ""; {
		var name, value string
		var ok bool
		name, value, ok, rest = rest.cutLine()
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
func (f Fields) prefixedTrailers() Fields {
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
func (f Fields) withField(name string, values []string) Fields {
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
// net/http shall not add the field by itself. Listed are the fields that the Connection field beside it names.
func (u unstoredFields) isUnstored(name, canonical string, values []string, listed map[string]bool) bool {
	return len(values) > 0 && (isConnectionField(name, canonical) || u[canonical] || listed[canonical])
}

// fieldName returns the canonical name of a field of a header or a trailer.
func canonicalFieldName(name string) string {
	return textproto.CanonicalMIMEHeaderKey(strings.TrimPrefix(name, http.TrailerPrefix))
}

// ofConnection reports whether a field belongs to one connection or one moment. So does a length that is spelled in
// another way than net/http's own, which would be sent beside that.
func isConnectionField(name, canonical string) bool {
	switch canonical {
	case "Connection", "Keep-Alive", "Proxy-Connection", "Te", "Transfer-Encoding", "Upgrade", "Date":
		return true
	case "Content-Length":
		return name != canonical
	}
	return false
}

// listedIn returns the canonical names in the comma-separated lists of a Connection field.
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

// difference returns what made after out of before: a field that was added or changed has its values, a field that was
// deleted has none. Fields that only the first client gets are apart from it. The mark of a replay is nowhere: nobody but
// this package sets it.
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

// strip returns f without the fields that only the first client gets.
func (u unstoredFields) stripFields(f Fields) Fields {
	if f == "" {
		return ""
	}
	diff, _ := u.diffHeaders(nil, f.Header())
	return diff
}

// filter returns the response as it is replayed: without the fields that are not to be stored now, whatever the options
// were when it was.
func (u unstoredFields) filterResponse(resp *Response) *Response {
	if !u.hasOmittedField(resp.Header) && !u.hasOmittedField(resp.Trailer) {
		return resp
	}
	filtered := *resp
	filtered.Header, filtered.Trailer = u.stripFields(resp.Header), u.stripFields(resp.Trailer)
	return &filtered
}

// in reports whether f has a field of Options.OmitHeaders.
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

// checkStorable refuses a response that could not be read any more once it is stored. Work without HTTP has no status, and
// an answer whose body is not kept may have switched the protocol.
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

// checkAnswer refuses a response that no handler can have given over HTTP, whatever the method of its request was. Any
// other response can be stored and replayed.
func (resp *Response) checkHTTPAnswer() error {
	if err := resp.checkSendable(""); err != nil {
		return err
	}
	for _, fields := range [...]Fields{resp.Header, resp.Trailer} {
		header := fields.Header()
		if NewFields(header) != fields {
			return fmt.Errorf("idempotency: the fields %.256q are not as NewFields returns them", string(fields))
		}
		for name, values := range header {
			if !isToken(strings.TrimPrefix(name, http.TrailerPrefix)) || slices.ContainsFunc(values, cannotBeSent) {
				return fmt.Errorf("idempotency: field %q cannot be sent as it is", name)
			}
		}
	}
	if len(resp.Body) > 0 && !bodyAllowed(resp.Status) {
		return fmt.Errorf("idempotency: a body with status %d, which has none", resp.Status)
	}
	return nil
}

// cannotBeSent reports whether the value of a field has characters that no field has, or spaces around it, which do not
// belong to the value (RFC 9110, section 5.5).
func cannotBeSent(value string) bool {
	return strings.Trim(value, " \t") != value ||
		strings.ContainsFunc(value, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7F })
}

// check refuses a response that this package has not stored: one that net/http cannot send, or that would be taken for
// two responses. Method is that of the request.
func (resp *Response) checkSendable(method string) error {
	if resp.Status < 200 || resp.Status > 999 {
		return fmt.Errorf("idempotency: status %d is not one from 200 to 999", resp.Status)
	}
	for _, fields := range [...]Fields{resp.Header, resp.Trailer} {
		for rest := fields; rest != ""; {
			var name, value string
			var ok bool
			name, value, ok, rest = rest.cutLine()
			if ok && !resp.mayHaveField(name, value, method) {
				return fmt.Errorf("idempotency: field %q is not one that a response has", name)
			}
		}
	}
	return nil
}

// mayHave reports whether a field can be one of the stored response.
func (resp *Response) mayHaveField(name, value, method string) bool {
	canonical := canonicalFieldName(name)
	if isConnectionField(name, canonical) || canonical == replayMarker {
		return false
	}
	if canonical != "Content-Length" || !bodyAllowed(resp.Status) || method == http.MethodHead {
		return true
	}
	n, err := strconv.ParseUint(value, 10, 63) // digits only, unlike ParseInt: clients refuse a sign
	return err == nil && n == uint64(len(resp.Body))
}

// replayMarker is the field that tells a replay from a first answer. Only this package sets it.
const replayMarker = "Idempotent-Replayed"
