package idempotency_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"mime"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// fingerprintOf returns the fingerprint of a request with any bytes in its query.
func fingerprintOf(t testing.TB, f idempotency.FingerprintFunc, parts [3]string) idempotency.Fingerprint {
	t.Helper()
	r := &http.Request{URL: &url.URL{RawQuery: parts[0]}, Header: http.Header{"Content-Type": {parts[1]}}}
	fp, err := f(r, []byte(parts[2]))
	require.NoError(t, err)
	return fp
}

// FuzzFingerprint looks for two requests with one fingerprint. Requests that are nearly the same are the likeliest: those
// whose query, media type and body are cut out of one text at other places, and likewise the fields that select.
func FuzzFingerprint(f *testing.F) {
	f.Add("amount=1 application/json {}", uint16(8), uint16(25), uint16(8), uint16(26), uint16(3), byte(0))
	f.Add("\x00\x00\x00\x00\x00\x00\x00\x01aa", uint16(1), uint16(2), uint16(0), uint16(2), uint16(3), byte(1))
	f.Add("a,b;c", uint16(1), uint16(2), uint16(1), uint16(3), uint16(0), byte(32))
	f.Fuzz(func(t *testing.T, text string, i, j, k, l, at uint16, flip byte) {
		other := []byte(text)
		if len(other) > 0 {
			other[int(at)%len(other)] ^= flip
		}
		a, b := carve(text, i, j), carve(string(other), k, l)
		x, y := fingerprintOf(t, idempotency.FingerprintRaw, a), fingerprintOf(t, idempotency.FingerprintRaw, b)
		same := a[0] == b[0] && mediaOf(a[1]) == mediaOf(b[1]) && a[2] == b[2]
		require.Equal(t, same, x == y, "%q, %q", a, b)
		const zeros = "\x00\x00\x00\x00\x00\x00\x00"
		x = fingerprintOf(t, idempotency.FingerprintRaw, [3]string{a[0], zeros + "\x00", a[2]})
		y = fingerprintOf(t, idempotency.FingerprintRaw, [3]string{a[0] + zeros + "\x08", "", a[2]})
		require.NotEqual(t, x, y, "%q: the length of the media type is taken for the end of the query", a)

		for _, h := range [][2]http.Header{
			{{"X-Tenant": {a[0], a[1]}, "X-Account": {a[2]}}, {"X-Tenant": {b[0], b[1]}, "X-Account": {b[2]}}},
			{{"X-Tenant": {a[0], a[1]}, "X-Account": {a[2]}}, {"X-Tenant": {b[0]}, "X-Account": {b[1], b[2]}}},
			{{"X-Tenant": {a[0] + a[1]}}, {"X-Tenant": {b[0], b[1]}}},
			{{"X-Tenant": {a[0]}}, {"X-Account": {b[0]}}},
			{{"X-Account": {a[0], "X-Tenant", a[1]}}, {"X-Account": {b[0]}, "X-Tenant": {b[1]}}},
			{{}, {"Content-Encoding": {b[0]}}},
			{{"X-Tenant": {a[0]}, "X-Other": {a[1]}}, {"X-Tenant": {b[0]}, "X-Other": {b[1]}}},
		} {
			names := []string{"x-tenant", "X-Account"}
			p, q := idempotency.Fingerprint{}.WithSelectors(h[0], names), idempotency.Fingerprint{}.WithSelectors(h[1], names)
			delete(h[0], "X-Other")
			delete(h[1], "X-Other")
			require.Equal(t, fmt.Sprintf("%q", h[0]) == fmt.Sprintf("%q", h[1]), p == q, "%q", h)
		}
	})
}

// mediaOf returns what of a Content-Type tells requests apart.
func mediaOf(contentType string) string {
	media, _, _ := strings.Cut(contentType, ";")
	media = strings.ToLower(strings.TrimSpace(media))
	if strings.HasPrefix(media, "multipart/") {
		return contentType
	}
	return media
}

// FuzzFingerprintMultipart builds two forms out of parts and of what is around them, with boundaries of their own.
func FuzzFingerprintMultipart(f *testing.F) {
	f.Add("name=a 1\r\n--x--", uint16(4), uint16(7), uint16(4), uint16(8), byte(2), "x")
	f.Add("aaaa", uint16(1), uint16(2), uint16(2), uint16(3), byte(0), "a b")
	f.Add("abc", uint16(1), uint16(2), uint16(1), uint16(2), byte(3), "second")
	f.Add("-first-second", uint16(1), uint16(2), uint16(1), uint16(2), byte(0), "second")
	for around := range byte(16) {
		f.Add("a\r\nb", uint16(1), uint16(3), uint16(1), uint16(3), around<<4, "second")
	}
	f.Fuzz(func(t *testing.T, text string, i, j, k, l uint16, kind byte, boundary string) {
		x, y := carve(text, i, j), carve(text, k, l)
		shape := func(parts [3]string, kind byte) []string { // the content of each part
			return [][]string{parts[:], parts[1:], {parts[0] + parts[1], parts[2]}, {parts[0] + seam + parts[1], parts[2]}}[kind%4]
		}
		one, other := shape(x, kind), shape(y, kind/4)
		a, ok := multipartOf(one, "first", kind>>4&3, "around "+x[0])
		b, okay := multipartOf(other, boundary, kind>>6, "around "+y[0])
		if !ok || !okay {
			return // no boundary can be like this
		}
		p, err := a.fingerprint(idempotency.FingerprintMultipart)
		if err != nil {
			require.Contains(t, text, "--first") // as a part of its content
			return
		}
		q, err := b.fingerprint(idempotency.FingerprintMultipart)
		if err != nil {
			require.Contains(t, text, "--"+boundary)
			return
		}
		same := slices.Equal(one, other) && kind>>4&3 == kind>>6 && (kind>>6 == 0 || x[0] == y[0])
		require.Equal(t, same, p == q, "%q, %q", a, b)
	})
}

// seam is what stands between two parts in what is hashed. It is no seam where a client sends it.
const seam = "\x00\x00\x00\x00\x00\x00\x00\x27Content-Disposition: form-data; name=n\n"

// multipartOf builds a form, with text in one of the places around its parts.
func multipartOf(parts []string, boundary string, place byte, text string) (content, bool) {
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	if form.SetBoundary(boundary) != nil {
		return content{}, false
	}
	media := form.FormDataContentType()
	switch place {
	case 1:
		body.WriteString(text + "\r\n")
	case 2:
		media = mime.FormatMediaType("multipart/form-data", map[string]string{"boundary": boundary, "start": text})
	}
	for _, part := range parts {
		w, _ := form.CreatePart(textproto.MIMEHeader{"Content-Disposition": {"form-data; name=n"}})
		_, _ = io.WriteString(w, part)
	}
	err := form.Close()
	if place == 3 {
		body.WriteString(text)
	}
	return content{"", media, body.String()}, err == nil
}

// FuzzFingerprintJSON compares two bodies in another way than the package does, with encoding/json: they are refused, equal
// and different for it as for the package. So is the first one in other spellings.
func FuzzFingerprintJSON(f *testing.F) {
	for _, seed := range []string{
		`{"b":[1,2.50,"é"],"a":null}`, `9007199254740993`, `{"a":1,"a":2}`, `-0`, `1e400`, `"\ud800"`, ``, ` `, `[[1.5e308]]`,
		`[1.7976931348623157e308,"1.7976931348623157e+308"]`, `{"":{"\u0000":[]},"\ud83d\ude00":true}`, "\"\xff\"",
		strings.Repeat("[", 101) + strings.Repeat("]", 101), `{"é":1,"e":{"b":0,"a":1e-7}}`, `[1E21,-0.0,0.1e1,1]`, `"\u2028</"`,
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
		x, err := content{"", js, a}.fingerprint(idempotency.FingerprintJSON)
		require.Equal(t, errA == nil, err == nil, "%q: %v, %v", a, errA, err)
		y, err := content{"", js, b}.fingerprint(idempotency.FingerprintJSON)
		require.Equal(t, errB == nil, err == nil, "%q: %v, %v", b, errB, err)
		if errA == nil && errB == nil {
			require.Equal(t, wantA == wantB, x == y, "%q, %q", a, b)
		}
		if errA != nil || a == "" {
			return
		}
		var indented bytes.Buffer
		require.NoError(t, json.Indent(&indented, []byte(a), "\t", "  "))
		for _, same := range []string{indented.String(), wantA} {
			z, err := content{"", js, same}.fingerprint(idempotency.FingerprintJSON)
			require.NoError(t, err)
			require.Equal(t, x, z, "%q, %q", a, same)
		}
	})
}

var (
	errUndecided = errors.New("encoding/json does not tell")
	errRefused   = errors.New("to be refused")
)

// canonicalJSON returns equal text for bodies that are to have equal fingerprints.
func canonicalJSON(body string) (string, error) {
	if body == "" {
		return "", nil // a request without a body
	}
	if !json.Valid([]byte(body)) || !utf8.ValidString(body) {
		return "", errRefused
	}
	var b strings.Builder
	d := json.NewDecoder(strings.NewReader(body))
	d.UseNumber()
	err := canonicalValue(d, &b, 0)
	if err == nil && strings.Contains(b.String(), "\uFFFD") { // what encoding/json makes of half a surrogate pair
		err = errUndecided
		if !strings.Contains(body, "\uFFFD") && !strings.Contains(strings.ToLower(body), `\ufffd`) {
			err = errRefused
		}
	}
	return b.String(), err
}

func canonicalValue(d *json.Decoder, b *strings.Builder, depth int) error {
	token, _ := d.Token() // the text is valid
	switch token := token.(type) {
	case json.Delim:
		if depth++; depth > 100 {
			return errRefused
		}
		b.WriteRune(rune(token))
		if token == '{' {
			return canonicalObject(d, b, depth)
		}
		for i := 0; d.More(); i++ {
			b.WriteString(map[bool]string{true: ","}[i > 0])
			if err := canonicalValue(d, b, depth); err != nil {
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

func canonicalObject(d *json.Decoder, b *strings.Builder, depth int) error {
	members := map[string]string{}
	for d.More() {
		name, _ := d.Token()
		var value strings.Builder
		if err := canonicalValue(d, &value, depth); err != nil {
			return err
		}
		if _, twice := members[name.(string)]; twice {
			return errRefused // also two halves of surrogate pairs, which are refused in any case
		}
		members[name.(string)] = value.String()
	}
	_, _ = d.Token()
	names := make([]string, 0, len(members))
	for name := range members {
		names = append(names, name)
	}
	slices.Sort(names)
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

// FuzzFingerprintJSONMeaning compares two bodies that are equal but for two parts, such as numbers. If they have one
// fingerprint, they say the same to who reads numbers as floats, and to who takes them by their digits.
func FuzzFingerprintJSONMeaning(f *testing.F) {
	for _, pair := range [][2]string{
		{`1e-400`, `1e-500`}, {`1e-400`, `0`}, {`-0`, `0`}, {`-0.0`, `-0`}, {`0e-9`, `0.0`}, {`1e400`, `1e500`}, {`1.0`, `1.00`},
		{`1E2`, `100`}, {`9007199254740993`, `9007199254740992`}, {`0.1`, `0.10000000000000000001`}, {`-0,0`, `0,-0`},
		{`9007199254740992`, `9007199254740993.0`}, {`12345678901234567.01`, `12345678901234567.02`}, {`10e-1`, `1`},
		{`"\u00e9"`, `"é"`}, {`{"a":-0,"b":0}`, `{"b":-0,"a":0}`}, {`{"a":1,"b":2}`, `{"b":2,"a":1}`}, {`"1"`, `1`}, {`null`, `[]`},
	} {
		f.Add(`[#]`, pair[0], pair[1])
		f.Add(`{"a":[#],"b":-1}`, pair[1], pair[0])
	}
	f.Fuzz(func(t *testing.T, shape, x, y string) {
		a, b := strings.ReplaceAll(shape, "#", x), strings.ReplaceAll(shape, "#", y)
		p, err := content{"", js, a}.fingerprint(idempotency.FingerprintJSON)
		q, fault := content{"", js, b}.fingerprint(idempotency.FingerprintJSON)
		if err != nil || fault != nil || p != q || a == "" || b == "" {
			return
		}
		require.True(t, sameValue(decoded(t, a), decoded(t, b)), "%q, %q", a, b)
		var v, w any
		if json.Unmarshal([]byte(a), &v) == nil { // else it has an integer that no float can be
			require.NoError(t, json.Unmarshal([]byte(b), &w))
			require.Equal(t, fmt.Sprintf("%#v", v), fmt.Sprintf("%#v", w), "%q, %q", a, b) // which tells the zeros apart
		}
	})
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
