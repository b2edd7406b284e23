package idempotency_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/testservice"
)

const js = "application/json"

// content is what a fingerprint is made of.
type content struct{ query, media, body string }

func (c content) fingerprint(f idempotency.FingerprintFunc) (idempotency.Fingerprint, error) {
	r := httptest.NewRequest(http.MethodPost, "/payments?"+c.query, nil)
	r.Header.Set("Content-Type", c.media)
	r.Header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	return f(r, []byte(c.body))
}

func TestFingerprints(t *testing.T) {
	t.Parallel()
	raw, json, multipart := idempotency.FingerprintRaw, idempotency.FingerprintJSON, idempotency.FingerprintMultipart
	const merge, boundaryX = "application/merge-patch+json", "multipart/form-data; boundary=x"
	for _, row := range []struct {
		name string
		f    idempotency.FingerprintFunc
		a, b content
		same bool
	}{
		{"equal", raw, content{"q=1", "text/plain", "b"}, content{"q=1", "text/plain", "b"}, true},
		{"other body", raw, content{"", "", "b"}, content{"", "", "c"}, false},
		{"other query", raw, content{"amount=1", "", ""}, content{"amount=100", "", ""}, false},
		{"other media type", raw, content{"", "text/plain", "b"}, content{"", "text/html", "b"}, false},
		{"other parameters", raw, content{"", "text/plain; charset=utf-8", "b"},
			content{"", "Text/Plain ;charset=UTF-8", "b"}, true},
		{"bytes moved from query to body", raw, content{"ab", "", "c"}, content{"a", "", "bc"}, false},
		{"bytes moved from type to body", raw, content{"", "a/b", "c"}, content{"", "a/", "bc"}, false},
		{"white space, raw", raw, content{"", js, `{"a":1}`}, content{"", js, `{"a": 1}`}, false},

		{"white space and order", json, content{"", js, `{"a":1,"b":[true,null]}`},
			content{"", js + "; charset=utf-8", " {\"b\" : [ true,\n null ], \"a\":1 }\n"}, true},
		{"structured suffix", json, content{"", merge, `{"a":1}`}, content{"", merge, `{ "a":1}`}, true},
		{"spelling of strings", json, content{"", js, `"é/"`}, content{"", js, `"\u00e9\/"`}, true},
		{"spelling of fractions", json, content{"", js, `1.50`}, content{"", js, `15e-1`}, true},
		{"big integers", json, content{"", js, `9007199254740993`}, content{"", js, `9007199254740992`}, false},
		{"bigger integers", json, content{"", js, `[123456789012345678901234567890]`},
			content{"", js, `[123456789012345678901234567891]`}, false},
		{"order of elements", json, content{"", js, `[1,2]`}, content{"", js, `[2,1]`}, false},
		{"largest float", json, content{"", js, `1.7976931348623157e308`}, content{"", js, `17976931348623157e292`}, true},
		{"rounded to the largest float", json, content{"", js, `1.7976931348623158e308`},
			content{"", js, `1.7976931348623157e308`}, false},
		{"largest floats of both signs", json, content{"", js, `[-1.7976931348623157e308]`},
			content{"", js, `[1.7976931348623157e308]`}, false},
		{"largest float in a string", json, content{"", js, `["1.7976931348623157e+308","1e400",1e3]`},
			content{"", js, `["1.7976931348623157e+308","1e400", 1000.0]`}, true},
		{"smallest float", json, content{"", js, `5e-324`}, content{"", js, `4.9E-324`}, false},
		{"amounts that are one float", json, content{"", js, `12345678901234567.01`}, content{"", js, `12345678901234567.02`}, false},
		{"more digits than a float has", json, content{"", js, `0.1`}, content{"", js, `0.10000000000000000001`}, false},
		{"integer and fraction that are one float", json, content{"", js, `9007199254740992`},
			content{"", js, `9007199254740993.0`}, false},
		{"integers as fractions", json, content{"", js, `[100,-1,0,12e21]`},
			content{"", js, `[1.00E+2,-10e-1,0.0,12000000000000000000000]`}, true},
		{"zeros", json, content{"", js, `[0,0.0,0e9]`}, content{"", js, `[0.00,0,0E-999]`}, true},
		{"negative zeros", json, content{"", js, `[-0,-0.0,-0e9]`}, content{"", js, `[-0.00,-0,-0E-999]`}, true},
		{"sign of an integer zero", json, content{"", js, `-0`}, content{"", js, `0`}, false},
		{"sign of a zero with a fraction", json, content{"", js, `{"a":-0.0}`}, content{"", js, `{"a":0.0}`}, false},
		{"place of a negative zero", json, content{"", js, `{"a":-0,"b":0}`}, content{"", js, `{"a":0,"b":-0}`}, false},
		{"number of negative zeros", json, content{"", js, `[-0,-0.0]`}, content{"", js, `[-0,0.0]`}, false},
		{"negative zero and less", json, content{"", js, `[-0]`}, content{"", js, `[-1]`}, false},
		{"order of members with negative zeros", json, content{"", js, `{"a":-0,"b":0}`}, content{"", js, `{"b":0, "a":-0.0}`}, true},
		{"zeros that begin another number", json, content{"", js, `[-0.5,-0.05e1,"-0"]`}, content{"", js, `[-0.50,-0.5,"-0"]`}, true},
		{"negative zero in a string", json, content{"", js, `"\"-0"`}, content{"", js, `"\"0"`}, false},
		{"larger integers", json, content{"", js, "1" + strings.Repeat("0", 400)},
			content{"", js, "2" + strings.Repeat("0", 400)}, false},
		{"larger integer beside the largest float", json, content{"", js, "[1.7976931348623157e308,1" + strings.Repeat("0", 400) + "]"},
			content{"", js, "[17976931348623157e292, 1" + strings.Repeat("0", 400) + "]"}, true},
		{"numbers in strings", json, content{"", js, `"1e400"`}, content{"", js, `"1e500"`}, false},
		{"string and number", json, content{"", js, `1`}, content{"", js, `"1"`}, false},
		{"null and nothing", json, content{"", js, `{"a":null}`}, content{"", js, `{}`}, false},
		{"JSON, other query", json, content{"a", "application/json", `1`}, content{"b", "application/json", `1`}, false},
		{"not JSON", json, content{"", "text/plain", `{"a":1}`}, content{"", "text/plain", `{ "a":1}`}, false},

		{"boundary", multipart, form("x", "1"), form("y", "1"), true},
		{"quoted boundary", multipart, form("x", "1"),
			content{"", `multipart/form-data; boundary="x"`, form("x", "1").body}, true},
		{"content", multipart, form("x", "1"), form("x", "2"), false},
		{"number of parts", multipart, form("x", "1"), form("x", "1", "2"), false},
		{"bytes moved from part to part", multipart, form("x", "12", "3"), form("x", "1", "23"), false},
		{"order of parts", multipart, form("x", "1", "2"), form("x", "2", "1"), false},
		{"file name", multipart,
			content{"", boundaryX, "--x\r\nContent-Disposition: form-data; filename=a\r\n\r\n1\r\n--x--"},
			content{"", boundaryX, "--x\r\nContent-Disposition: form-data; filename=b\r\n\r\n1\r\n--x--"}, false},
		{"preamble", multipart, form("x", "1"), around("preamble\r\n", form("x", "1"), ""), false},
		{"other preamble", multipart, around("1\r\n", form("x", "1"), ""), around("2\r\n", form("x", "1"), ""), false},
		{"epilogue", multipart, form("x", "1"), around("", form("x", "1"), "epilogue"), false},
		{"other epilogue", multipart, around("", form("x", "1"), "1"), around("", form("x", "1"), "2"), false},
		{"preamble, epilogue, other boundary", multipart, around("1\r\n", form("x", "1"), "2"), around("1\r\n", form("y", "1"), "2"), true},
		{"dashes moved from part to epilogue", multipart, form("x", "1--"), around("", form("x", "1"), "--"), false},
		{"start", multipart, related("a", "text/xml", ""), related("b", "text/xml", ""), false},
		{"no start", multipart, related("a", "text/xml", ""), related("", "text/xml", ""), false},
		{"type", multipart, related("a", "text/xml", ""), related("a", "text/html", ""), false},
		{"start-info", multipart, related("a", "text/xml", "1"), related("a", "text/xml", "2"), false},
		{"order of parameters", multipart, content{"", "multipart/related; start=a; type=b; boundary=x", form("x", "1").body},
			content{"", "Multipart/Related;boundary=x; Type=\"b\"; start=a", form("x", "1").body}, true},
		{"start, raw", raw, related("a", "", ""), related("b", "", ""), false},
		{"boundary, raw", raw, content{"", "multipart/mixed; boundary=x", "--x--y--"}, content{"", "multipart/mixed; boundary=y", "--x--y--"}, false},
		{"boundary in a part, not at its end", multipart, form("x", "1-x"), form("y", "1-x"), true},
		{"boundary in a part, changed with it", multipart, form("x", "1-x"), form("y", "1-y"), false},
		{"header of a part", multipart, content{"", boundaryX, "--x\r\nA: b\r\n\r\n1\r\n--x--"},
			content{"", boundaryX, "--x\r\nA: c\r\n\r\n1\r\n--x--"}, false},
		{"kind of multipart", multipart, form("x", "1"),
			content{"", "multipart/mixed; boundary=x", form("x", "1").body}, false},
		{"not multipart", multipart, content{"", "text/plain", "a"}, content{"", "text/plain", "b"}, false},
	} {
		a, err := row.a.fingerprint(row.f)
		require.NoError(t, err, row.name)
		b, err := row.b.fingerprint(row.f)
		require.NoError(t, err, row.name)
		require.Equal(t, row.same, a == b, row.name)
		require.NotZero(t, a)
	}
}

func form(boundary string, values ...string) content {
	body := ""
	for _, value := range values {
		body += "--" + boundary + "\r\nContent-Disposition: form-data; name=n\r\n\r\n" + value + "\r\n"
	}
	return content{"", "multipart/form-data; boundary=" + boundary, body + "--" + boundary + "--\r\n"}
}

// around returns a form with text before its first part and behind its last one.
func around(preamble string, form content, epilogue string) content {
	form.body = preamble + form.body + epilogue
	return form
}

// related returns a form whose media type has parameters that say how to read it.
func related(start, kind, info string) content {
	return content{"", fmt.Sprintf("multipart/related; boundary=x; start=%q; type=%q; start-info=%q", start, kind, info), form("x", "1").body}
}

func TestContentWithoutFingerprint(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		f idempotency.FingerprintFunc
		c content
	}{
		"name twice":           {idempotency.FingerprintJSON, content{"", js, `{"a":1,"a":2}`}},
		"name twice, escaped":  {idempotency.FingerprintJSON, content{"", js, `{"a":1,"\u0061":2}`}},
		"name twice, nested":   {idempotency.FingerprintJSON, content{"", js, `[{"a":1,"a":1}]`}},
		"no JSON":              {idempotency.FingerprintJSON, content{"", js, `{`}},
		"two values":           {idempotency.FingerprintJSON, content{"", js, `1 2`}},
		"white space":          {idempotency.FingerprintJSON, content{"", js, ` `}},
		"not UTF-8":            {idempotency.FingerprintJSON, content{"", js, "\"\xff\""}},
		"too large":            {idempotency.FingerprintJSON, content{"", js, `[0,1e400]`}},
		"too large, negative":  {idempotency.FingerprintJSON, content{"", js, `{"a":{"b":-1E+309}}`}},
		"too large, long":      {idempotency.FingerprintJSON, content{"", js, "1" + strings.Repeat("0", 400) + ".0"}},
		"too large, barely":    {idempotency.FingerprintJSON, content{"", js, `1.7976931348623159e308`}},
		"too large, later":     {idempotency.FingerprintJSON, content{"", js, `["1e1",1.7976931348623157e308,1e309]`}},
		"too small":            {idempotency.FingerprintJSON, content{"", js, `1e-400`}},
		"too small, negative":  {idempotency.FingerprintJSON, content{"", js, `{"a":[0,-1E-500]}`}},
		"too small, barely":    {idempotency.FingerprintJSON, content{"", js, `2e-324`}},
		"too small, long":      {idempotency.FingerprintJSON, content{"", js, "0." + strings.Repeat("0", 400) + "1"}},
		"too small, later":     {idempotency.FingerprintJSON, content{"", js, `["0",0.0,-0e-999,"\"",1e-999]`}},
		"boundary in a part":   {idempotency.FingerprintMultipart, form("x", "1--x")},
		"boundary in a line":   {idempotency.FingerprintMultipart, form("x", "1\r\n--xy")},
		"boundary in preamble": {idempotency.FingerprintMultipart, around("1--x\r\n", form("x", "1"), "")},
		"boundary in epilogue": {idempotency.FingerprintMultipart, around("", form("x", "1"), form("x", "1").body)},
		"no boundary":          {idempotency.FingerprintMultipart, content{"", "multipart/form-data", form("x", "1").body}},
		"other boundary":       {idempotency.FingerprintMultipart, content{"", form("y").media, form("x", "1").body}},
		"form not ended":       {idempotency.FingerprintMultipart, content{"", form("x").media, "--x\r\n\r\n1"}},
		"malformed media type": {idempotency.FingerprintMultipart, content{"", "multipart/form-data; boundary", "--x"}},
	} {
		_, err := row.c.fingerprint(row.f)
		require.Error(t, err, name)
	}
	_, err := content{"", js, ""}.fingerprint(idempotency.FingerprintJSON)
	require.NoError(t, err, "a request without a body")
}

func TestJSONNestedTooDeep(t *testing.T) {
	t.Parallel()
	nested := func(open, inner, end string, depth int) string {
		return strings.Repeat(open, depth) + inner + strings.Repeat(end, depth)
	}
	for name, row := range map[string]struct {
		body     string
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
		svc := testservice.Setup{Opts: idempotency.Options{Fingerprint: idempotency.FingerprintJSON}}.Guard(t, testservice.Echo)
		got := svc.Call("k", row.body, testservice.WithHeader("Content-Type", js))
		if row.accepted {
			require.Equal(t, http.StatusCreated, got.Status, "%s: %s", name, got.Body)
			continue
		}
		testservice.RequireProblem(t, got, http.StatusBadRequest, "body-invalid")
		require.ErrorContains(t, svc.Journal.Last(t).Err, "nested more than 100 deep", name)
	}
}

// A fingerprint is compared with those that other releases of this package have stored.
func TestFingerprintsAreFrozen(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		want string
		f    idempotency.FingerprintFunc
		c    content
	}{
		{"16779a4f55a369c0880d6d27ce59e9040be1843b6ced90c3950279fe4aa431ec",
			idempotency.FingerprintRaw, content{"q=1", "text/plain; charset=utf-8", "hello"}},
		{"bcd84985a8ca3a5d57bbe672fd0cf9e8252ec396eca66f8cde73d0207a0c5d6a",
			idempotency.FingerprintJSON, content{"q=1", js, `{"b": 1e1, "a": 9007199254740993}`}},
		{"7e8c5f2a9a7f39d6b56b932731c4490ca028d2f94330129d1b0e0e8b5b500d85",
			idempotency.FingerprintMultipart, form("x", "1", "2")},
	} {
		got, err := row.c.fingerprint(row.f)
		require.NoError(t, err)
		require.Equal(t, row.want, got.String())
	}
}
