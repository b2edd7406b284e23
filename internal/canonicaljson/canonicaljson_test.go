package canonicaljson_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/internal/canonicaljson"
)

func TestForm(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, a, b string
		same       bool
	}{
		{"white space and order", `{"a":1,"b":[true,null]}`, " {\"b\" : [ true,\n null ], \"a\":1 }\n", true},
		{"spelling of strings", `"é/"`, `"\u00e9\/"`, true},
		{"spelling of fractions", `1.50`, `15e-1`, true},
		{"big integers", `9007199254740993`, `9007199254740992`, false},
		{"bigger integers", `[123456789012345678901234567890]`, `[123456789012345678901234567891]`, false},
		{"order of elements", `[1,2]`, `[2,1]`, false},
		{"largest float", `1.7976931348623157e308`, `17976931348623157e292`, true},
		{"rounded to the largest float", `1.7976931348623158e308`, `1.7976931348623157e308`, false},
		{"largest floats of both signs", `[-1.7976931348623157e308]`, `[1.7976931348623157e308]`, false},
		{"largest float in a string", `["1.7976931348623157e+308","1e400",1e3]`, `["1.7976931348623157e+308","1e400", 1000.0]`, true},
		{"smallest float", `5e-324`, `4.9E-324`, false},
		{"amounts that are one float", `12345678901234567.01`, `12345678901234567.02`, false},
		{"more digits than a float has", `0.1`, `0.10000000000000000001`, false},
		{"integer and fraction that are one float", `9007199254740992`, `9007199254740993.0`, false},
		{"integers as fractions", `[100,-1,0,12e21]`, `[1.00E+2,-10e-1,0.0,12000000000000000000000]`, true},
		{"zeros", `[0,0.0,0e9]`, `[0.00,0,0E-999]`, true},
		{"negative zeros", `[-0,-0.0,-0e9]`, `[-0.00,-0,-0E-999]`, true},
		{"sign of an integer zero", `-0`, `0`, false},
		{"sign of a zero with a fraction", `{"a":-0.0}`, `{"a":0.0}`, false},
		{"place of a negative zero", `{"a":-0,"b":0}`, `{"a":0,"b":-0}`, false},
		{"number of negative zeros", `[-0,-0.0]`, `[-0,0.0]`, false},
		{"negative zero and less", `[-0]`, `[-1]`, false},
		{"order of members with negative zeros", `{"a":-0,"b":0}`, `{"b":0, "a":-0.0}`, true},
		{"zeros that begin another number", `[-0.5,-0.05e1,"-0"]`, `[-0.50,-0.5,"-0"]`, true},
		{"negative zero in a string", `"\"-0"`, `"\"0"`, false},
		{"larger integers", "1" + strings.Repeat("0", 400), "2" + strings.Repeat("0", 400), false},
		{"larger integer beside the largest float", "[1.7976931348623157e308,1" + strings.Repeat("0", 400) + "]",
			"[17976931348623157e292, 1" + strings.Repeat("0", 400) + "]", true},
		{"numbers in strings", `"1e400"`, `"1e500"`, false},
		{"string and number", `1`, `"1"`, false},
		{"null and nothing", `{"a":null}`, `{}`, false},
		{"order of names that differ in case only", `{"a":1,"A":2}`, `{"A":2,"a":1}`, false},
		{"of long ones, within", `[{"to":{"amount":1,"AMOUNT":2}}]`, `[{"to":{"AMOUNT":2,"amount":1}}]`, false},
		{"of other alphabets", `{"é":1,"É":2}`, `{"É":2,"é":1}`, false},
		{"of a letter and the Kelvin sign", `{"k":1,"\u212a":2}`, `{"\u212a":2,"k":1}`, false},
		{"of three sigmas", `{"σ":1,"ς":2}`, `{"ς":2,"σ":1}`, false},
		{"of escaped letters", `{"\u0061":1,"A":2}`, `{"A":2,"a":1}`, false},
		{"the same order", `{"a":1, "A":2.0}`, `{"a":1e0,"A":2}`, true},
		{"of other names beside them", `{"a":1,"A":2,"b":3}`, `{"b":3,"a":1,"A":2}`, false},
		{"in two objects", `{"x":{"a":1},"y":{"A":2}}`, `{"y":{"A":2},"x":{"a":1}}`, true},
		{"of texts that differ in case only", `{"x":"a","y":"A"}`, `{"y":"A","x":"a"}`, true},
		{"names with escapes", `{"\n":1,"\\n":2,"\u001f":3}`, `{"\u001F":3,"\\n":2,"\n":1}`, true},
	} {
		a, err := canonicaljson.Form([]byte(row.a))
		require.NoError(t, err, row.name)
		b, err := canonicaljson.Form([]byte(row.b))
		require.NoError(t, err, row.name)
		require.Equal(t, row.same, bytes.Equal(a, b), row.name)
		require.NotEmpty(t, a)
	}
}

func TestTextWithoutAForm(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"name twice":          `{"a":1,"a":2}`,
		"name twice, escaped": `{"a":1,"\u0061":2}`,
		"name twice, nested":  `[{"a":1,"a":1}]`,
		"no JSON":             `{`,
		"two values":          `1 2`,
		"nothing":             "",
		"white space":         ` `,
		"not UTF-8":           "\"\xff\"",
		"too large":           `[0,1e400]`,
		"too large, negative": `{"a":{"b":-1E+309}}`,
		"too large, long":     "1" + strings.Repeat("0", 400) + ".0",
		"too large, barely":   `1.7976931348623159e308`,
		"too large, later":    `["1e1",1.7976931348623157e308,1e309]`,
		"too small":           `1e-400`,
		"too small, negative": `{"a":[0,-1E-500]}`,
		"too small, barely":   `2e-324`,
		"too small, long":     "0." + strings.Repeat("0", 400) + "1",
		"too small, later":    `["0",0.0,-0e-999,"\"",1e-999]`,
	} {
		_, err := canonicaljson.Form([]byte(text))
		require.Error(t, err, name)
	}
}

func TestNestedTooDeep(t *testing.T) {
	t.Parallel()
	nested := func(open, inner, end string, depth int) string {
		return strings.Repeat(open, depth) + inner + strings.Repeat(end, depth)
	}
	for name, row := range map[string]struct {
		text     string
		accepted bool
	}{
		"980 KB of brackets":     {nested("[", "", "]", 490_000), false},
		"980 KB, never closed":   {nested("[", "", "", 980_000), false},
		"arrays at the limit":    {nested("[", "", "]", 100), true},
		"arrays beyond it":       {nested("[", "", "]", 101), false},
		"objects at the limit":   {nested(`{"a":`, "1", "}", 100), true},
		"objects beyond it":      {nested(`{"a":`, "1", "}", 101), false},
		"mixed, at the limit":    {nested(`[{"a":`, "1", "}]", 50), true},
		"mixed, beyond it":       {nested(`[{"a":`, "[]", "}]", 50), false},
		"many, beside another":   {"[" + strings.Repeat("[[]],", 1000) + "0]", true},
		"brackets in a string":   {`["` + nested("[{", "", "", 1000) + `"]`, true},
		"brackets in a name":     {`{"` + nested("[{", "", "", 1000) + `":1}`, true},
		"behind an escape":       {`["\"` + nested("[", "", "", 1000) + `"]`, true},
		"behind two escapes":     {`["\\",` + nested("[", "", "]", 100) + `]`, false},
		"closed within a string": {nested(`["]",`, "0", "]", 101), false},
	} {
		_, err := canonicaljson.Form([]byte(row.text))
		if row.accepted {
			require.NoError(t, err, name)
		} else {
			require.ErrorContains(t, err, "nested more than 100 deep", name)
		}
	}
}

// The form keeps what it was given: the caller goes on to read it.
func TestFormChangesNoText(t *testing.T) {
	t.Parallel()
	text := []byte(`{ "b": -0, "a": 1.50 }`)
	before := bytes.Clone(text)
	_, err := canonicaljson.Form(text)
	require.NoError(t, err)
	require.Equal(t, before, text)
}

// FuzzForm compares two texts in another way than the package does, with encoding/json: they are refused, equal
// and different for it as for the package. So is the first one in other spellings.
func FuzzForm(f *testing.F) {
	for _, seed := range []string{
		`{"b":[1,2.50,"é"],"a":null}`, `9007199254740993`, `{"a":1,"a":2}`, `-0`, `1e400`, `"\ud800"`, ``, ` `, `[[1.5e308]]`,
		`[1.7976931348623157e308,"1.7976931348623157e+308"]`, `{"":{"\u0000":[]},"\ud83d\ude00":true}`, "\"\xff\"",
		strings.Repeat("[", 101) + strings.Repeat("]", 101), `{"é":1,"e":{"b":0,"a":1e-7}}`, `[1E21,-0.0,0.1e1,1]`, `"\u2028</"`,
		`{"b":1,"a":1,"A":{"b":1,"a":2}}`, `[{"\u212a":1},{"k":1,"K":2}]`, `{"É":1,"e":0,"é":2}`,
	} {
		f.Add(seed, `{"a":null,"b":[1,2.5,"\u00e9"]}`)
		f.Add(`[1]`, seed)
		f.Add(seed, seed+" ")
	}
	f.Add("0", "-0 ")
	f.Fuzz(func(t *testing.T, a, b string) {
		wantA, errA := canonicalJSON(a)
		wantB, errB := canonicalJSON(b)
		if errA == errUndecided || errB == errUndecided {
			return
		}
		x, err := canonicaljson.Form([]byte(a))
		require.Equal(t, errA == nil, err == nil, "%q: %v, %v", a, errA, err)
		y, err := canonicaljson.Form([]byte(b))
		require.Equal(t, errB == nil, err == nil, "%q: %v, %v", b, errB, err)
		if errA == nil && errB == nil {
			require.Equal(t, wantA == wantB, bytes.Equal(x, y), "%q, %q", a, b)
		}
		if errA != nil {
			return
		}
		var indented bytes.Buffer
		require.NoError(t, json.Indent(&indented, []byte(a), "\t", "  "))
		for _, same := range []string{indented.String(), wantA} {
			z, err := canonicaljson.Form([]byte(same))
			require.NoError(t, err)
			require.Equal(t, x, z, "%q, %q", a, same)
		}
	})
}

var (
	errUndecided = errors.New("encoding/json does not tell")
	errRefused   = errors.New("to be refused")
)

// canonicalJSON returns equal text for texts that are to have one form.
func canonicalJSON(text string) (string, error) {
	if !json.Valid([]byte(text)) || !utf8.ValidString(text) {
		return "", errRefused
	}
	var b strings.Builder
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	m := new(model)
	err := m.canonicalValue(d, &b, 0)
	if err == nil && m.ordered {
		b.Reset()
		d = json.NewDecoder(strings.NewReader(text))
		d.UseNumber()
		err = m.canonicalValue(d, &b, 0)
	}
	if err == nil && strings.Contains(b.String(), "\uFFFD") { // what encoding/json makes of half a surrogate pair
		err = errUndecided
		if !strings.Contains(text, "\uFFFD") && !strings.Contains(strings.ToLower(text), `\ufffd`) {
			err = errRefused
		}
	}
	return b.String(), err
}

// model keeps the order of members if ordered is set. It sets ordered when it finds two names that differ in case only.
type model struct{ ordered bool }

func (m *model) canonicalValue(d *json.Decoder, b *strings.Builder, depth int) error {
	token, _ := d.Token() // the text is valid
	switch token := token.(type) {
	case json.Delim:
		if depth++; depth > 100 {
			return errRefused
		}
		b.WriteRune(rune(token))
		if token == '{' {
			return m.canonicalObject(d, b, depth)
		}
		for i := 0; d.More(); i++ {
			b.WriteString(map[bool]string{true: ","}[i > 0])
			if err := m.canonicalValue(d, b, depth); err != nil {
				return err
			}
		}
		end, _ := d.Token()
		b.WriteRune(rune(end.(json.Delim)))
	case json.Number:
		text, err := canonicalNumber(token.String())
		b.WriteString(text)
		return err
	default:
		text, _ := json.Marshal(token)
		b.Write(text)
	}
	return nil
}

func (m *model) canonicalObject(d *json.Decoder, b *strings.Builder, depth int) error {
	members, names, keepOrder := map[string]string{}, []string(nil), m.ordered
	for d.More() {
		name, _ := d.Token()
		var value strings.Builder
		if err := m.canonicalValue(d, &value, depth); err != nil {
			return err
		}
		if _, twice := members[name.(string)]; twice {
			return errRefused // also two halves of surrogate pairs, which are refused in any case
		}
		isOther := func(other string) bool { return strings.EqualFold(name.(string), other) }
		m.ordered = m.ordered || slices.ContainsFunc(names, isOther)
		members[name.(string)] = value.String()
		names = append(names, name.(string))
	}
	_, _ = d.Token()
	if !keepOrder {
		slices.Sort(names)
	}
	for i, name := range names {
		b.WriteString(map[bool]string{true: ","}[i > 0])
		text, _ := json.Marshal(name)
		b.Write(text)
		b.WriteString(":" + members[name])
	}
	b.WriteByte('}')
	return nil
}

// canonicalNumber writes all digits of a number out. One with a fraction or an exponent must be in the range of 64-bit floats.
func canonicalNumber(text string) (string, error) {
	if digitsOf(text) == "" {
		return map[bool]string{true: "-0", false: "0"}[text[0] == '-'], nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if strings.ContainsAny(text, ".eE") && (err != nil || f == 0) {
		return "", errRefused
	}
	exact, _ := new(big.Rat).SetString(text)
	digits, _ := exact.FloatPrec()
	return exact.FloatString(digits), nil
}

// digitsOf returns the digits of a number before its exponent, other than 0.
func digitsOf(number string) string {
	mantissa, _, _ := strings.Cut(strings.ToLower(number), "e")
	return strings.Trim(mantissa, "-.0")
}

// FuzzFormMeaning compares two texts that are equal but for two parts, such as numbers. If they have one
// form, they say the same to who reads numbers as floats, and to who takes them by their digits.
func FuzzFormMeaning(f *testing.F) {
	for _, pair := range [][2]string{
		{`1e-400`, `1e-500`}, {`1e-400`, `0`}, {`-0`, `0`}, {`-0.0`, `-0`}, {`0e-9`, `0.0`}, {`1e400`, `1e500`}, {`1.0`, `1.00`},
		{`1E2`, `100`}, {`9007199254740993`, `9007199254740992`}, {`0.1`, `0.10000000000000000001`}, {`-0,0`, `0,-0`},
		{`9007199254740992`, `9007199254740993.0`}, {`12345678901234567.01`, `12345678901234567.02`}, {`10e-1`, `1`},
		{`"\u00e9"`, `"é"`}, {`{"a":-0,"b":0}`, `{"b":-0,"a":0}`}, {`{"a":1,"b":2}`, `{"b":2,"a":1}`}, {`"1"`, `1`}, {`null`, `[]`},
		{`{"a":1,"A":2}`, `{"A":2,"a":1}`}, {`{"K":1,"\u212a":2}`, `{"\u212a":2,"K":1}`},
	} {
		f.Add(`[#]`, pair[0], pair[1])
		f.Add(`{"a":[#],"b":-1}`, pair[1], pair[0])
	}
	f.Fuzz(func(t *testing.T, shape, x, y string) {
		a, b := strings.ReplaceAll(shape, "#", x), strings.ReplaceAll(shape, "#", y)
		p, err := canonicaljson.Form([]byte(a))
		q, fault := canonicaljson.Form([]byte(b))
		if err != nil || fault != nil || !bytes.Equal(p, q) {
			return
		}
		require.True(t, sameValue(decoded(t, a), decoded(t, b)), "%q, %q", a, b)
		require.Equal(t, fields(t, a), fields(t, b), "%q, %q", a, b)
		var v, w any
		if json.Unmarshal([]byte(a), &v) == nil { // else it has an integer that no float can be
			require.NoError(t, json.Unmarshal([]byte(b), &w))
			require.Equal(t, fmt.Sprintf("%#v", v), fmt.Sprintf("%#v", w), "%q, %q", a, b) // which tells the zeros apart
		}
	})
}

// fields returns what encoding/json reads into fields of a struct, also within arrays and objects.
func fields(t *testing.T, text string) any {
	type object struct {
		A, K any // whose names are read in upper and in lower case
		B    struct{ A, B any }
	}
	var list []object
	var one object
	if json.Unmarshal([]byte(text), &list) == nil {
		return list
	}
	_ = json.Unmarshal([]byte(text), &one)
	return one
}

// decoded returns the value of JSON, with its numbers as text.
func decoded(t *testing.T, text string) (v any) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	require.NoError(t, d.Decode(&v))
	return v
}

// sameValue reports whether two values are the same, with all digits of their numbers, and the signs of zeros.
func sameValue(v, w any) bool {
	switch v := v.(type) {
	case map[string]any:
		w, ok := w.(map[string]any)
		return ok && maps.EqualFunc(v, w, sameValue)
	case []any:
		w, ok := w.([]any)
		return ok && slices.EqualFunc(v, w, sameValue)
	case json.Number:
		w, ok := w.(json.Number)
		if !ok {
			return false
		}
		a, err := canonicalNumber(v.String())
		b, fault := canonicalNumber(w.String())
		return err == nil && fault == nil && a == b
	default:
		return v == w
	}
}
