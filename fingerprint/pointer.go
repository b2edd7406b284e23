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

// JSONOnly returns a function that compares only the values at pointers in a JSON body, in the canonical form of [JSON]. Two
// bodies that differ only in other values are the same request, so the handler must use the values at pointers only.
//
// A pointer has the syntax of RFC 6901, for example "/amount" or "/items/0/sku", with ~1 for a slash in a name, and ~0 for a
// tilde. In an array, the token "*" stands for all elements, with their number and order: "/items/*/sku". In an object, "*"
// and numbers are names of members. A missing value differs from null. A pointer into a string, a number, a boolean or null
// finds a missing value.
//
// The function also compares the query and the media type. Empty bodies and bodies of other media types are compared as by
// JSON. The function returns the errors of JSON, which may concern any value of the body. The function also returns an error
// for a name that differs in case only from the name in a pointer at the same place, because encoding/json reads "Amount" into
// the field of "amount". If the handler tells the two names apart, point at both.
//
// JSONOnly itself returns an error that reports every fault of pointers:
//
//   - pointers is empty;
//   - a pointer is malformed, or can never match;
//   - a pointer lies within another pointer;
//   - a pointer means the whole body (""), or the element after the last element of an array ("-").
//
// After a change of pointers, retries of earlier requests are refused as reused.
func JSONOnly(pointers ...string) (idempotency.FingerprintFunc, error) {
	tree, err := parsePointers(pointers)
	if err != nil {
		return nil, err
	}
	return newJSONFunc("json-only", pointers, tree, tree.appendSelected), nil
}

// JSONWithout returns a function that compares a JSON body without the values at pointers, such as the time of sending. A body
// without such a member is the same request. An array keeps the places of its other elements. Pointers, errors and other bodies
// are as with [JSONOnly].
func JSONWithout(pointers ...string) (idempotency.FingerprintFunc, error) {
	tree, err := parsePointers(pointers)
	if err != nil {
		return nil, err
	}
	return newJSONFunc("json-without", pointers, tree, func(out, value []byte) []byte {
		return appendWithout(out, value, []*pointerTree{tree})
	}), nil
}

// Must returns f, and panics if err is not nil. Must is for pointers and names that are constants of the program:
//
//	idempotency.Options{Fingerprint: fingerprint.Must(fingerprint.JSONOnly("/amount", "/currency"))}
func Must(f idempotency.FingerprintFunc, err error) idempotency.FingerprintFunc {
	if err != nil {
		panic(err)
	}
	return f
}

// newJSONFunc returns a function that compares the values that appendSelection selects of the canonical JSON. The fingerprint
// covers mode and pointers as well, so a change of either changes all fingerprints.
func newJSONFunc(
	mode string, pointers []string, tree *pointerTree, appendSelection func(out, value []byte) []byte,
) idempotency.FingerprintFunc {
	prefix := slices.Clip(appendNames(mode, pointers)) // so that each append copies the prefix
	return func(r *http.Request, body []byte) (idempotency.Fingerprint, error) {
		media := contentMediaType(r)
		if len(body) == 0 || !isJSON(media) {
			return idempotency.FingerprintRaw(r, body)
		}
		value, err := canonicaljson.Form(body)
		if err != nil {
			return idempotency.Fingerprint{}, fmt.Errorf("body as JSON: %w", err)
		}
		if err := tree.checkMemberNames(value); err != nil {
			return idempotency.Fingerprint{}, err
		}
		return fingerprintAs(r, media, appendSelection(prefix, value))
	}
}

// appendNames returns the beginning of the hashed bytes: the mode of selection and the sorted names.
func appendNames(mode string, names []string) []byte {
	b := appendPart(nil, mode)
	for _, name := range slices.Sorted(slices.Values(names)) {
		b = appendPart(b, name)
	}
	return appendPart(b, "")
}

// pointerTree is a set of pointers. A leaf selects a whole value. Any other node selects the parts of a value that its branches
// lead to.
type pointerTree struct{ branches []pointerBranch }

// pointerBranch leads from a value to a member or an element of the value, or to all elements.
type pointerBranch struct {
	token         string
	canonicalName string // the token as a name in canonical JSON
	elementIndex  int    // -1 if the token is only a name
	subtree       *pointerTree
}

// maxPointerDepth is the depth of nesting that [JSON] accepts.
const maxPointerDepth = 100

// parsePointers returns the tree of pointers, or an error with all faults of pointers.
func parsePointers(pointers []string) (*pointerTree, error) {
	if len(pointers) == 0 {
		return nil, errors.New("fingerprint: pointers are missing: give at least one, such as /amount")
	}
	var faults []error
	var validPointers []string
	for _, pointer := range slices.Sorted(slices.Values(pointers)) {
		for _, accepted := range validPointers {
			if strings.HasPrefix(pointer+"/", accepted+"/") {
				faults = append(faults, fmt.Errorf("fingerprint: pointer %q lies within %q", pointer, accepted))
			}
		}
		if fault := describeFault(pointer); fault != "" {
			faults = append(faults, fmt.Errorf("fingerprint: pointer %q %s", pointer, fault))
			continue
		}
		validPointers = append(validPointers, pointer)
	}
	root := &pointerTree{}
	for _, pointer := range validPointers {
		if err := root.addPointer(strings.Split(pointer, "/")[1:]); err != nil {
			faults = append(faults, err)
		}
	}
	return root, errors.Join(faults...)
}

// describeFault returns the predicate of an error about pointer, or "" for a valid pointer.
func describeFault(pointer string) string {
	tokens := strings.Split(pointer, "/")
	switch {
	case pointer == "":
		return "is the whole body"
	case tokens[0] != "":
		return "does not begin with a slash"
	case !utf8.ValidString(pointer):
		return "is invalid UTF-8"
	case strings.Contains(strings.NewReplacer("~0", "", "~1", "").Replace(pointer), "~"):
		return "has a tilde that is neither ~0 nor ~1"
	case slices.Contains(tokens, "-"):
		return "points behind the end of an array"
	case len(tokens)-1 > maxPointerDepth:
		return fmt.Sprintf("is more than %d deep", maxPointerDepth)
	}
	return ""
}

// tokenUnescaper turns a token of a pointer into a name (RFC 6901, section 4).
var tokenUnescaper = strings.NewReplacer("~0", "~", "~1", "/")

// addPointer adds the pointer with these tokens to the tree.
func (tree *pointerTree) addPointer(tokens []string) error {
	if len(tokens) == 0 {
		return nil
	}
	i := slices.IndexFunc(tree.branches, func(branch pointerBranch) bool { return branch.token == tokens[0] })
	if i < 0 {
		quoted, err := json.Marshal(tokenUnescaper.Replace(tokens[0]))
		if err != nil {
			return err
		}
		name, err := canonicaljson.Form(quoted)
		if err != nil {
			return err
		}
		i = len(tree.branches)
		tree.branches = append(tree.branches, pointerBranch{tokens[0], string(name), parseIndex(tokens[0]), &pointerTree{}})
	}
	return tree.branches[i].subtree.addPointer(tokens[1:])
}

// parseIndex returns the array index that token stands for, or -1 if token is only a name.
func parseIndex(token string) int {
	if i, err := strconv.Atoi(token); err == nil && strconv.Itoa(i) == token {
		return i
	}
	return -1
}

// appendSelected appends the selected parts of value to out. A nil value is a missing value. The notation is unambiguous because
// JSON values never begin with "!" or a parenthesis:
//
//   - a leaf appends the value, or "!" if the value is missing;
//   - any other node appends the selection of each branch between braces;
//   - a branch "*" of an array appends the selection of each element between parentheses.
func (tree *pointerTree) appendSelected(out, value []byte) []byte {
	switch {
	case tree.branches == nil && value == nil:
		return append(out, '!')
	case tree.branches == nil:
		return append(out, value...)
	}
	out = append(out, '{')
	for _, branch := range tree.branches {
		out = append(branch.appendBranch(out, value), ',')
	}
	return append(out, '}')
}

// appendBranch appends the selection of a single branch in value to out.
func (branch pointerBranch) appendBranch(out, value []byte) []byte {
	isArray := branch.token == "*" && bytes.HasPrefix(value, []byte("["))
	if isArray {
		out = append(out, '(')
	}
	i := -1
	for name, v := range childrenOf(value) {
		i++
		switch {
		case isArray:
			out = append(branch.subtree.appendSelected(out, v), ',')
		case name == nil && i == branch.elementIndex, name != nil && string(name) == branch.canonicalName:
			return branch.subtree.appendSelected(out, v)
		}
	}
	if isArray {
		return append(out, ')')
	}
	return branch.subtree.appendSelected(out, nil)
}

// appendWithout appends value, without the values that trees select, to out. The result is JSON. A removed element of an array
// leaves null in its place, so that the other elements keep their indices.
func appendWithout(out, value []byte, trees []*pointerTree) []byte {
	if len(trees) == 0 || value[0] != '{' && value[0] != '[' {
		return append(out, value...)
	}
	out = append(out, value[0])
	i, emptyLength := -1, len(out)
	for name, v := range childrenOf(value) {
		i++
		next, isRemoved := selectSubtrees(trees, name, i)
		if isRemoved && name != nil {
			continue
		}
		if len(out) > emptyLength {
			out = append(out, ',')
		}
		if name != nil {
			out = append(append(out, name...), ':')
		}
		if isRemoved {
			out = append(out, "null"...)
		} else {
			out = appendWithout(out, v, next)
		}
	}
	return append(out, value[len(value)-1])
}

// checkMemberNames returns an error if an object in value has a name that differs in case only from a selected name, unless the
// tree selects both. encoding/json reads both names into the same field.
func (tree *pointerTree) checkMemberNames(value []byte) error {
	if name := findFoldedName(value, []*pointerTree{tree}); name != nil {
		return fmt.Errorf("body as JSON: name %s differs from a selected one in case only", name)
	}
	return nil
}

// findFoldedName returns the first name in value that differs in case only from a selected name, or nil.
func findFoldedName(value []byte, trees []*pointerTree) []byte {
	if len(trees) == 0 {
		return nil
	}
	i := -1
	for name, v := range childrenOf(value) {
		i++
		next, _ := selectSubtrees(trees, name, i)
		if name != nil && next == nil && foldsToSelected(trees, name) {
			return name
		}
		if found := findFoldedName(v, next); found != nil {
			return found
		}
	}
	return nil
}

// foldsToSelected reports whether name equals a selected name of trees under Unicode case folding.
func foldsToSelected(trees []*pointerTree, name []byte) bool {
	for _, tree := range trees {
		for _, branch := range tree.branches {
			if bytes.EqualFold(name, []byte(branch.canonicalName)) {
				return true
			}
		}
	}
	return false
}

// selectSubtrees returns the subtrees of trees that apply to a child: to the member called name, or to element i of an array if
// name is nil. isWhole reports that a subtree selects the whole child.
func selectSubtrees(trees []*pointerTree, name []byte, i int) (next []*pointerTree, isWhole bool) {
	for _, tree := range trees {
		for _, branch := range tree.branches {
			if name != nil && string(name) == branch.canonicalName || name == nil && (branch.token == "*" || branch.elementIndex == i) {
				next, isWhole = append(next, branch.subtree), isWhole || branch.subtree.branches == nil
			}
		}
	}
	return next, isWhole
}

// childrenOf yields the members of an object with their names, or the elements of an array with nil as their name. Other values
// and nil have no children. value is canonical JSON.
func childrenOf(value []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(name, v []byte) bool) {
		if value == nil || value[0] != '{' && value[0] != '[' {
			return
		}
		for rest := value[1:]; len(rest) > 1; {
			var name []byte
			if value[0] == '{' {
				n := valueLength(rest)
				name, rest = rest[:n], rest[n+1:]
			}
			n := valueLength(rest)
			if !yield(name, rest[:n]) {
				return
			}
			rest = rest[n+1:]
		}
	}
}

// valueLength returns the length of the first value or name in text, which is canonical JSON.
func valueLength(text []byte) int {
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
