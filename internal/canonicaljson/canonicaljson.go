// Package canonicaljson returns the same text for two JSON texts with the same meaning. The canonical form follows
// RFC 8785, with three exceptions: every digit of a number counts, a negative zero differs from zero, and an object
// with two names that differ only in case keeps the order of its members.
package canonicaljson

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// Form returns the canonical form of body. Form returns an error in these cases: body is not JSON, an object has the
// same name twice, the nesting is deeper than 100, or a number with a fraction or an exponent is out of the range of
// 64-bit floats.
func Form(body []byte) ([]byte, error) {
	if err := checkDepth(body); err != nil {
		return nil, err
	}
	value := jsontext.Value(bytes.Clone(body))
	err := value.Canonicalize(jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false))
	if err != nil {
		return nil, err
	}
	if hasLookAlikes(value) {
		value = jsontext.Value(bytes.Clone(body))
		err = value.Canonicalize(jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false),
			jsontext.ReorderRawObjects(false))
		if err != nil {
			return nil, err
		}
	}
	return canonicalNumbers(value)
}

// hasLookAlikes reports whether an object in value has two names that differ only in case. The meaning of such an
// object depends on the order of its members: encoding/json reads both names into one field, and the last value wins.
// Value must be in canonical form. After foldRune, the two names are equal, and jsontext refuses the object because
// of the duplicate name.
func hasLookAlikes(value jsontext.Value) bool {
	return !jsontext.Value(bytes.Map(foldRune, value)).IsValid()
}

// foldRune returns the same rune for all runes that [bytes.EqualFold] and encoding/json treat as equal. ASCII letters
// become lower case, so the words, escapes and numbers of JSON stay valid.
func foldRune(r rune) rune {
	if r < utf8.RuneSelf {
		return unicode.ToLower(r)
	}
	smallest := r
	for other := unicode.SimpleFold(r); other != r; other = unicode.SimpleFold(other) {
		smallest = min(smallest, other)
	}
	if smallest < utf8.RuneSelf { // the Kelvin sign, and the long s
		return unicode.ToLower(smallest)
	}
	return smallest
}

// maxDepth bounds the nesting of arrays and objects.
const maxDepth = 100

// checkDepth refuses deeply nested JSON, which would take too long to canonicalise. Malformed JSON may pass.
func checkDepth(body []byte) error {
	depth, quoted := 0, false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == ']' || c == '}':
			depth--
		case c == '[' || c == '{':
			if depth++; depth > maxDepth {
				return fmt.Errorf("nested more than %d deep", maxDepth)
			}
		}
	}
	return nil
}

// canonicalNumbers returns well-formed JSON with all of its numbers in canonical form.
func canonicalNumbers(value []byte) (all []byte, err error) {
	copied, quoted := 0, false
	for i := 0; i < len(value); i++ {
		switch c := value[i]; {
		case c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '-' || '0' <= c && c <= '9':
			rest := value[i:]
			number := rest[:len(rest)-len(bytes.TrimLeft(rest, "+-.0123456789eE"))]
			all, err = appendNumeral(append(all, value[copied:i]...), string(number))
			if err != nil {
				return nil, err
			}
			copied = i + len(number)
			i = copied - 1
		}
	}
	return append(all, value[copied:]...), nil
}

// appendNumeral appends the canonical form of a number: its digits without zeros at either end, and a power of ten as
// factor. A number with a fraction or an exponent is refused if it is out of the range of 64-bit floats.
func appendNumeral(b []byte, number string) ([]byte, error) {
	mantissa, exponent := number, "0"
	if i := strings.IndexAny(number, "eE"); i >= 0 {
		mantissa, exponent = number[:i], number[i+1:]
	}
	unsigned := strings.TrimPrefix(mantissa, "-")
	whole, fraction, _ := strings.Cut(unsigned, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	b = append(b, mantissa[:len(mantissa)-len(unsigned)]...)
	if digits == "" {
		return append(b, '0'), nil
	}
	power, err := strconv.Atoi(exponent)
	if err != nil || strings.ContainsAny(number, ".eE") && !isFloat(number) {
		return nil, errors.New("a number is out of the range of 64-bit floats")
	}
	significant := strings.TrimRight(digits, "0")
	power += len(digits) - len(significant) - len(fraction)
	return strconv.AppendInt(append(append(b, significant...), 'e'), int64(power), 10), nil
}

// isFloat reports whether a 64-bit float can hold the non-zero number without overflow, and without becoming zero.
func isFloat(number string) bool {
	f, err := strconv.ParseFloat(number, 64)
	return err == nil && f != 0
}
