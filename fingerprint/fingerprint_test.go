package fingerprint_test

import (
	"bytes"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/fingerprint"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

func TestMain(m *testing.M) { testservice.Main(m) }

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
	json, multipart := fingerprint.JSON, fingerprint.Multipart
	const merge, boundaryX = "application/merge-patch+json", "multipart/form-data; boundary=x"
	for _, row := range []struct {
		name string
		f    idempotency.FingerprintFunc
		a, b content
		same bool
	}{
		{"white space and order", json, content{"", js, `{"a":1,"b":[true,null]}`},
			content{"", js + "; charset=utf-8", " {\"b\" : [ true,\n null ], \"a\":1 }\n"}, true},
		{"structured suffix", json, content{"", merge, `{"a":1}`}, content{"", merge, `{ "a":1}`}, true},
		{"amounts that are one float", json, content{"", js, `12345678901234567.01`}, content{"", js, `12345678901234567.02`}, false},
		{"sign of an integer zero", json, content{"", js, `-0`}, content{"", js, `0`}, false},
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
		"name twice":           {fingerprint.JSON, content{"", js, `{"a":1,"a":2}`}},
		"no JSON":              {fingerprint.JSON, content{"", js, `{`}},
		"too large":            {fingerprint.JSON, content{"", js, `[0,1e400]`}},
		"boundary in a part":   {fingerprint.Multipart, form("x", "1--x")},
		"boundary in a line":   {fingerprint.Multipart, form("x", "1\r\n--xy")},
		"boundary in preamble": {fingerprint.Multipart, around("1--x\r\n", form("x", "1"), "")},
		"boundary in epilogue": {fingerprint.Multipart, around("", form("x", "1"), form("x", "1").body)},
		"no boundary":          {fingerprint.Multipart, content{"", "multipart/form-data", form("x", "1").body}},
		"other boundary":       {fingerprint.Multipart, content{"", form("y").media, form("x", "1").body}},
		"form not ended":       {fingerprint.Multipart, content{"", form("x").media, "--x\r\n\r\n1"}},
		"malformed media type": {fingerprint.Multipart, content{"", "multipart/form-data; boundary", "--x"}},
	} {
		_, err := row.c.fingerprint(row.f)
		require.Error(t, err, name)
	}
	_, err := content{"", js, ""}.fingerprint(fingerprint.JSON)
	require.NoError(t, err, "a request without a body")
}

func TestJSONNestedTooDeep(t *testing.T) {
	t.Parallel()
	brackets := func(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }
	for name, row := range map[string]struct {
		body     string
		accepted bool
	}{
		"980 KB of brackets":  {brackets(490_000), false},
		"arrays at the limit": {brackets(100), true},
		"arrays beyond it":    {brackets(101), false},
	} {
		svc := testservice.Setup{Opts: idempotency.Options{Fingerprint: fingerprint.JSON}}.Guard(t, testservice.Echo)
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
		{"bcd84985a8ca3a5d57bbe672fd0cf9e8252ec396eca66f8cde73d0207a0c5d6a",
			fingerprint.JSON, content{"q=1", js, `{"b": 1e1, "a": 9007199254740993}`}},
		{"7e8c5f2a9a7f39d6b56b932731c4490ca028d2f94330129d1b0e0e8b5b500d85",
			fingerprint.Multipart, form("x", "1", "2")},
	} {
		got, err := row.c.fingerprint(row.f)
		require.NoError(t, err)
		require.Equal(t, row.want, got.String())
	}
}

// carve cuts text into three parts.
func carve(text string, first, second uint16) [3]string {
	i, j := int(first)%(len(text)+1), int(second)%(len(text)+1)
	return [3]string{text[:min(i, j)], text[min(i, j):max(i, j)], text[max(i, j):]}
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
		p, err := a.fingerprint(fingerprint.Multipart)
		if err != nil {
			require.Contains(t, text, "--first") // as a part of its content
			return
		}
		q, err := b.fingerprint(fingerprint.Multipart)
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
