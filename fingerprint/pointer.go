package fingerprint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/canonicaljson"
)

// JSONOnly returns a function that compares only what the pointers point at in a JSON body, in the canonical form of
// [JSON]. A body that changes elsewhere is the same request: the handler must not use what is not compared.
//
// A pointer is that of RFC 6901, such as "/amount" or "/items/0/sku", with ~1 for a slash in a name, and ~0 for a tilde. Its
// part "*" stands for all elements of an array, whose number and order count as well: "/items/*/sku". In an object, "*" and
// numbers are names of members. A value that is missing differs from null. In a string, a number, a boolean or null, all that
// a pointer names further down is missing.
//
// Query and media type count. Bodies that are empty or of other media types count whole, as with JSON. A body is refused for
// the same reasons as with JSON, also if they lie elsewhere. It is also refused if a name differs in case only from the one
// that a pointer gives at its place, because encoding/json reads "Amount" into the field of "amount". If your handler tells
// the two apart, point at both.
//
// The error reports every fault of the pointers: no pointer at all, one that is malformed, one that can never match, and
// one that lies within what another one points at. The whole body (""), and the element behind the last one ("-"), are
// refused as well. Requests that were stored under other pointers are refused as reused.
func JSONOnly(pointers ...string) (idempotency.FingerprintFunc, error) {
	all, err := parsePointers(pointers)
	if err != nil {
		return nil, err
	}
	return selecting("json-only", pointers, all, all.only), nil
}

// JSONWithout returns a function that compares a JSON body without what the pointers point at, such as the time of sending.
// Pointers, errors and other bodies are as with [JSONOnly]. A member that is left out may be missing as well. If an
// element of an array is left out, the others keep their places.
func JSONWithout(pointers ...string) (idempotency.FingerprintFunc, error) {
	all, err := parsePointers(pointers)
	if err != nil {
		return nil, err
	}
	return selecting("json-without", pointers, all, func(out, value []byte) []byte {
		return without(out, value, []*selection{all})
	}), nil
}

// Must returns f. It panics if err is not nil, so that pointers in the source of a program need no check:
//
//	idempotency.Options{Fingerprint: fingerprint.Must(fingerprint.JSONOnly("/amount", "/currency"))}
func Must(f idempotency.FingerprintFunc, err error) idempotency.FingerprintFunc {
	if err != nil {
		panic(err)
	}
	return f
}

// selecting returns a function that compares what is selected of JSON in canonical form, and how that was done.
func selecting(
	kind string, pointers []string, all *selection, of func(out, value []byte) []byte,
) idempotency.FingerprintFunc {
	prefix := slices.Clip(appendNames(kind, pointers)) // so that nobody appends to it in place
	return func(r *http.Request, body []byte) (idempotency.Fingerprint, error) {
		media := readableType(r)
		if len(body) == 0 || !isJSON(media) {
			return idempotency.FingerprintRaw(r, body)
		}
		value, err := canonicaljson.Form(body)
		if err != nil {
			return idempotency.Fingerprint{}, fmt.Errorf("body as JSON: %w", err)
		}
		if err := all.checkSpelling(value); err != nil {
			return idempotency.Fingerprint{}, err
		}
		return as(r, media, of(prefix, value))
	}
}

// appendNames returns the beginning of what is hashed: how it was selected, and by which names in whatever order.
func appendNames(kind string, names []string) []byte {
	b := appendPart(nil, kind)
	for _, name := range slices.Sorted(slices.Values(names)) {
		b = appendPart(b, name)
	}
	return appendPart(b, "")
}

// selection is a tree of pointers. A leaf selects a value, and another node what its steps lead to.
type selection struct{ steps []step }

// step leads from a value to one of its members or elements, or to all of its elements.
type step struct {
	token string
	name  string // the token as a name in canonical JSON
	index int    // -1: the token is no index
	to    *selection
}

// maxDepth is how deep values are nested that [JSON] accepts.
const maxDepth = 100

func parsePointers(pointers []string) (*selection, error) {
	if len(pointers) == 0 {
		return nil, errors.New("fingerprint: no pointer")
	}
	var faults []error
	var good []string
	for _, pointer := range slices.Sorted(slices.Values(pointers)) {
		for _, other := range good {
			if strings.HasPrefix(pointer+"/", other+"/") {
				faults = append(faults, fmt.Errorf("fingerprint: pointer %q lies within %q", pointer, other))
			}
		}
		if fault := faultOf(pointer); fault != "" {
			faults = append(faults, fmt.Errorf("fingerprint: pointer %q %s", pointer, fault))
			continue
		}
		good = append(good, pointer)
	}
	root := &selection{}
	for _, pointer := range good {
		if err := root.add(strings.Split(pointer, "/")[1:]); err != nil {
			faults = append(faults, err)
		}
	}
	return root, errors.Join(faults...)
}

// faultOf says what is wrong with a pointer.
func faultOf(pointer string) string {
	tokens := strings.Split(pointer, "/")
	switch {
	case pointer == "":
		return "is the whole body"
	case tokens[0] != "":
		return "does not begin with a slash"
	case !utf8.ValidString(pointer):
		return "is not in UTF-8, as JSON is"
	case strings.Contains(strings.NewReplacer("~0", "", "~1", "").Replace(pointer), "~"):
		return "has a tilde that is neither ~0 nor ~1"
	case slices.Contains(tokens, "-"):
		return "points behind the end of an array"
	case len(tokens)-1 > maxDepth:
		return fmt.Sprintf("is more than %d deep", maxDepth)
	}
	return ""
}

// unescape turns the tokens of pointers into names.
var unescape = strings.NewReplacer("~0", "~", "~1", "/")

// add adds a pointer by its tokens.
func (s *selection) add(tokens []string) error {
	if len(tokens) == 0 {
		return nil
	}
	i := slices.IndexFunc(s.steps, func(of step) bool { return of.token == tokens[0] })
	if i < 0 {
		quoted, err := json.Marshal(unescape.Replace(tokens[0]))
		if err != nil {
			return err
		}
		name, err := canonicaljson.Form(quoted)
		if err != nil {
			return err
		}
		i = len(s.steps)
		s.steps = append(s.steps, step{tokens[0], string(name), indexOf(tokens[0]), &selection{}})
	}
	return s.steps[i].to.add(tokens[1:])
}

// indexOf returns the index of an element that a token names.
func indexOf(token string) int {
	if i, err := strconv.Atoi(token); err == nil && strconv.Itoa(i) == token {
		return i
	}
	return -1
}

// only appends what is selected of a value, or of nothing (nil). This is "!" for nothing, the value itself, or for each step
// what it leads to, between braces, with all elements of an array between parentheses. No value of JSON begins with "!" or
// a parenthesis.
func (s *selection) only(out, value []byte) []byte {
	switch {
	case s.steps == nil && value == nil:
		return append(out, '!')
	case s.steps == nil:
		return append(out, value...)
	}
	out = append(out, '{')
	for _, step := range s.steps {
		out = append(step.only(out, value), ',')
	}
	return append(out, '}')
}

func (s step) only(out, value []byte) []byte {
	all := s.token == "*" && bytes.HasPrefix(value, []byte("["))
	if all {
		out = append(out, '(')
	}
	i := -1
	for name, v := range inside(value) {
		i++
		switch {
		case all:
			out = append(s.to.only(out, v), ',')
		case name == nil && i == s.index, name != nil && string(name) == s.name:
			return s.to.only(out, v)
		}
	}
	if all {
		return append(out, ')')
	}
	return s.to.only(out, nil)
}

// without appends a value without what is selected by some trees. This is JSON, too. An element that is left out leaves
// null in its place: no other value can stand there.
func without(out, value []byte, trees []*selection) []byte {
	if len(trees) == 0 || value[0] != '{' && value[0] != '[' {
		return append(out, value...)
	}
	out = append(out, value[0])
	i, empty := -1, len(out)
	for name, v := range inside(value) {
		i++
		next, gone := stepsTo(trees, name, i)
		if gone && name != nil {
			continue
		}
		if len(out) > empty {
			out = append(out, ',')
		}
		if name != nil {
			out = append(append(out, name...), ':')
		}
		if gone {
			out = append(out, "null"...)
		} else {
			out = without(out, v, next)
		}
	}
	return append(out, value[len(value)-1])
}

// checkSpelling returns an error if value, in an object that s selects a member of, has a name that differs in case only from
// the selected one, unless that name is selected, too. To encoding/json both are one field.
func (s *selection) checkSpelling(value []byte) error {
	if name := otherSpelling(value, []*selection{s}); name != nil {
		return fmt.Errorf("body as JSON: name %s differs from a selected one in case only", name)
	}
	return nil
}

func otherSpelling(value []byte, trees []*selection) []byte {
	if len(trees) == 0 {
		return nil
	}
	i := -1
	for name, v := range inside(value) {
		i++
		next, _ := stepsTo(trees, name, i)
		if name != nil && next == nil && foldsToStep(trees, name) {
			return name
		}
		if found := otherSpelling(v, next); found != nil {
			return found
		}
	}
	return nil
}

func foldsToStep(trees []*selection, name []byte) bool {
	for _, tree := range trees {
		for _, step := range tree.steps {
			if bytes.EqualFold(name, []byte(step.name)) {
				return true
			}
		}
	}
	return false
}

// stepsTo returns what the trees select of a member or, without a name, of an element, and whether that is all of it.
func stepsTo(trees []*selection, name []byte, i int) (next []*selection, all bool) {
	for _, tree := range trees {
		for _, step := range tree.steps {
			if name != nil && string(name) == step.name || name == nil && (step.token == "*" || step.index == i) {
				next, all = append(next, step.to), all || step.to.steps == nil
			}
		}
	}
	return next, all
}

// inside goes through the members of an object with their names, through the elements of an array without, or through
// nothing. The value is JSON in canonical form, or nil.
func inside(value []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(name, v []byte) bool) {
		if value == nil || value[0] != '{' && value[0] != '[' {
			return
		}
		for rest := value[1:]; len(rest) > 1; {
			var name []byte
			if value[0] == '{' {
				n := length(rest)
				name, rest = rest[:n], rest[n+1:]
			}
			n := length(rest)
			if !yield(name, rest[:n]) {
				return
			}
			rest = rest[n+1:]
		}
	}
}

// length returns how long the value is that JSON in canonical form begins with.
func length(text []byte) int {
	depth, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '[' || c == '{':
			depth++
		case depth == 0 && (c == ',' || c == ':' || c == ']' || c == '}'):
			return i
		case c == ']' || c == '}':
			depth--
		}
	}
	return len(text)
}
