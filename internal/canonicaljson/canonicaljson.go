// Package canonicaljson gives two texts of JSON one form if they have one meaning. The form is that of RFC 8785, except that
// every digit of a number counts, a negative zero is not zero, and members keep their order if an object has two names that
// differ in case only.
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

// Form returns the form of body. The error says why it has none: it is not JSON, has a name twice in one object, is nested
// more than 100 deep, or has a number with a fraction or an exponent that is out of the range of 64-bit floats.
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

// hasLookAlikes reports whether an object in value has two names that differ in case only. The meaning of such an object
// depends on the order of its members: encoding/json reads both names into one field, which keeps the value of the last.
// Value is in canonical form. With all of its letters folded, value has a name twice, which jsontext refuses.
func hasLookAlikes(value jsontext.Value) bool {
	return !jsontext.Value(bytes.Map(foldRune, value)).IsValid()
}

// fold returns the same rune for runes that differ in case only, as [bytes.EqualFold] and encoding/json see them. ASCII
// becomes lower case, so that the words, escapes and numbers of JSON stay as they are.
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

// maxDepth bounds how deep arrays and objects are nested.
const maxDepth = 100

// checkDepth refuses JSON that takes too long to canonicalise. It may pass what is not well-formed.
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

// appendNumeral appends the canonical form of a number: its digits, without zeros at either end, and the power of ten that
// they are multiplied by. A number with a fraction or an exponent is refused if it is out of the range of floats.
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

// isFloat reports whether a number that is not zero is none as a 64-bit float either.
func isFloat(number string) bool {
	f, err := strconv.ParseFloat(number, 64)
	return err == nil && f != 0
}
