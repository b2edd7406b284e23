package idempotency_test

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"mime"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
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

// Outer middleware that reads the body leaves nothing that tells one request from another. To guess would answer a
// payment of 900 with that of 100.
func TestBodyThatSomebodyElseHasRead(t *testing.T) {
	t.Parallel()
	form := url.Values{"csrf": {"ok"}, "amount": {"900"}}.Encode()
	multipart := "--x\r\nContent-Disposition: form-data; name=\"amount\"\r\n\r\n900\r\n--x--\r\n"
	for name, test := range map[string]struct {
		media, body string
		read        func(*http.Request)
		consumed    bool
	}{
		"form": {"application/x-www-form-urlencoded", form, func(r *http.Request) { r.PostFormValue("csrf") }, true},
		"form of unknown length": {"application/x-www-form-urlencoded", form, func(r *http.Request) {
			r.ContentLength = -1
			r.PostFormValue("csrf")
		}, true},
		"multipart form": {"multipart/form-data; boundary=x", multipart, func(r *http.Request) {
			r.ContentLength = -1
			r.PostFormValue("csrf")
		}, true},
		"multipart form of files only": {"multipart/form-data; boundary=x",
			strings.Replace(multipart, `"amount"`, `"amount"; filename="amount"`, 1), func(r *http.Request) {
				r.ContentLength = -1
				r.PostFormValue("csrf")
			}, true},
		"whole body": {"text/plain", "900", func(r *http.Request) { _, _ = io.ReadAll(r.Body) }, true},
		"whole body, put back": {"text/plain", "900", func(r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(strings.NewReader(string(body)))
		}, false},
		"no form, but asked for": {"application/json", "900", func(r *http.Request) { r.PostFormValue("csrf") }, false},
		"query, and no body":     {"", "", func(r *http.Request) { r.FormValue("csrf") }, false},
		"nothing":                {"text/plain", "900", func(*http.Request) {}, false},
	} {
		svc := testservice.Setup{Outer: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				test.read(r)
				next.ServeHTTP(w, r)
			})
		}}.Serve(t, testservice.Echo)
		got := svc.Post("k", test.body, testservice.WithHeader("Content-Type", test.media))
		if !test.consumed {
			require.Equal(t, http.StatusCreated, got.Status, name)
			require.Equal(t, test.body, got.Body, name)
			continue
		}
		testservice.RequireProblem(t, got, http.StatusInternalServerError, "body-consumed")
		require.ErrorIs(t, svc.Journal.Last(t).Err, idempotency.ErrBodyConsumed)
		require.Zero(t, svc.Runs.Load())
	}
}

// What a request announces costs its sender nothing, so it must not cost the server memory.
func TestAnnouncedBodyTakesNoMemory(t *testing.T) {
	const requests, announced = 64, 1 << 20
	reading := make(chan struct{}, requests)
	svc := testservice.Setup{}.Guard(t, testservice.Echo)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var group sync.WaitGroup
	end := make(chan struct{})
	for range requests {
		r := httptest.NewRequest(http.MethodPost, "/payments", &slowBody{reading, end})
		r.ContentLength = announced
		r.Header.Set("Idempotency-Key", "k")
		group.Go(func() { svc.Handler.ServeHTTP(httptest.NewRecorder(), r) })
	}
	for range requests {
		<-reading
	}
	runtime.ReadMemStats(&after)
	close(end)
	group.Wait()
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(requests*announced/8))
}

// slowBody has one byte, and says that it waits for more.
type slowBody struct {
	reading chan<- struct{}
	end     <-chan struct{}
}

func (b *slowBody) Read(p []byte) (int, error) {
	if b.reading != nil {
		b.reading <- struct{}{}
		b.reading = nil
		return copy(p, "x"), nil
	}
	<-b.end
	return 0, io.ErrUnexpectedEOF
}

func TestBodyThatArrivesInPieces(t *testing.T) {
	t.Parallel()
	body := strings.Repeat("0123456789abcdef", 50_000)
	for _, length := range []int64{int64(len(body)), -1} {
		svc := testservice.Setup{}.Guard(t, testservice.Echo)
		r := httptest.NewRequest(http.MethodPost, "/payments", io.MultiReader(
			strings.NewReader(body[:1]), strings.NewReader(body[1:40_000]), strings.NewReader(body[40_000:])))
		r.ContentLength = length
		r.Header.Set("Idempotency-Key", "k")
		w := httptest.NewRecorder()
		svc.Handler.ServeHTTP(w, r)
		require.Equal(t, body, w.Body.String())
	}
}

// Whatever bodies are in memory, their buffers have no more bytes than the budget: also if a buffer has served a larger body
// before, and if hardly anything of a body has arrived.
func TestBudgetOfBodies(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		announced int64 // -1: nothing
		size      int   // of what arrives before the client falls silent
		fit       int   // as many are in memory together
	}{
		"announced":             {100, 1, 520},
		"not announced":         {-1, 1, 520},
		"a full buffer":         {512, 512, 520},
		"more than that":        {-1, 513, 260},
		"large, not announced":  {-1, 40_000, 4},
		"large":                 {50_000, 40_000, 4},
		"large, hardly arrived": {200_000, 1, 8},
		"the largest":           {256 << 10, 256 << 10, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			const largest, budget = 256 << 10, 260 << 10 // so that some have room only at first
			svc := testservice.Setup{Opts: idempotency.Options{MaxBody: largest, MaxBodies: budget}}.Guard(t, testservice.Echo)
			end := make(chan struct{})
			var group sync.WaitGroup
			send := func(announced int64, size int) *silentBody {
				body := &silentBody{text: strings.Repeat("x", size), end: end}
				group.Go(func() {
					r := httptest.NewRequest(http.MethodPost, "/payments", body)
					r.ContentLength = announced
					r.Header.Set("Idempotency-Key", rand.Text())
					w := httptest.NewRecorder()
					svc.Handler.ServeHTTP(w, r)
					body.status = w.Code
				})
				synctest.Wait()
				return body
			}
			for range 3 { // there are buffers that have served large bodies
				send(-1, largest)
				close(end)
				group.Wait()
				end = make(chan struct{})
			}
			var held []*silentBody
			capacity := 0
			for len(held) <= test.fit {
				body := send(test.announced, test.size)
				if body.status != 0 {
					require.Equal(t, http.StatusServiceUnavailable, body.status, name)
					break
				}
				held = append(held, body)
				capacity += body.capacity
			}
			close(end)
			group.Wait()
			require.Len(t, held, test.fit, name)
			require.LessOrEqual(t, capacity, budget, name)
			require.Zero(t, svc.Middleware.UsersCounted(), name)
		})
	}
}

// silentBody is the body of a client that sends text, and then nothing before end is closed.
type silentBody struct {
	text     string
	read     int
	end      <-chan struct{}
	capacity int // of the buffer that it is read into
	status   int // of the answer
}

func (b *silentBody) Read(p []byte) (int, error) {
	if b.read < len(b.text) || b.read == 0 || cap(p) > 1 { // else it is the byte behind a full buffer
		b.capacity = b.read + cap(p)
	}
	if b.read == len(b.text) {
		<-b.end
		return 0, io.EOF
	}
	n := copy(p, b.text[b.read:])
	b.read += n
	return n, nil
}

// The buffers of huge bodies serve no other request, so they need not have a power of two.
func TestHugeBodyHasABufferOfItsSize(t *testing.T) {
	t.Parallel()
	const size = 3_000_000
	end := make(chan struct{})
	close(end)
	body := &silentBody{text: strings.Repeat("x", size), end: end}
	r := httptest.NewRequest(http.MethodPost, "/payments", body)
	r.ContentLength = size
	r.Header.Set("Idempotency-Key", "k")
	testservice.Setup{Opts: idempotency.Options{MaxBody: 2 * size}}.Guard(t, testservice.Echo).Handler.ServeHTTP(httptest.NewRecorder(), r)
	require.Equal(t, size, body.capacity)
}

func TestWhateverEndsARequestGivesItsBodyBack(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{Opts: idempotency.Options{MaxBody: 512, MaxBodies: 512}}.Guard(t, testservice.Echo)
	for range 5 {
		require.Equal(t, http.StatusCreated, svc.Call("k", strings.Repeat("x", 512)).Status)
		testservice.RequireProblem(t, svc.Call("l", strings.Repeat("x", 513)), http.StatusRequestEntityTooLarge, "body-too-large")
		testservice.RequireProblem(t, svc.Call("l", "", func(r *http.Request) {
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(strings.Repeat("x", 513))), -1
		}), http.StatusRequestEntityTooLarge, "body-too-large")
		testservice.RequireProblem(t, svc.Call("k", strings.Repeat("y", 512)), http.StatusConflict, "key-reused")
		testservice.RequireProblem(t, svc.Call("m", "", func(r *http.Request) {
			r.Body, r.ContentLength = io.NopCloser(io.MultiReader(strings.NewReader("xxx"), failingReader{})), -1
		}), http.StatusBadRequest, "body-invalid")
		require.Zero(t, svc.Middleware.UsersCounted())
	}
}

func TestBudgetHasRoomForOneBody(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ maxBody, least int64 }{{1, 512}, {512, 512}, {513, 1024}, {1 << 20, 1 << 20}, {3_000_000, 3_000_000}} {
		_, err := idempotency.New(testservice.NewSpyStore(), idempotency.SingleUser,
			idempotency.Options{MaxBody: test.maxBody, MaxBodies: test.least - 1})
		require.ErrorContains(t, err, "MaxBodies")
		opts := idempotency.Options{MaxBody: test.maxBody, MaxBodies: test.least}
		for _, announced := range []int64{-1, test.maxBody} {
			svc := testservice.Setup{Opts: opts}.Guard(t, func(http.ResponseWriter, *http.Request) {})
			got := svc.Call("k", strings.Repeat("x", int(test.maxBody)), func(r *http.Request) { r.ContentLength = announced })
			require.Equal(t, http.StatusOK, got.Status, "%+v: %s", test, got.Body)
		}
	}
}

// A client that reads its answer slowly holds no room for the bodies of others: its own has left the budget by then.
func TestBodyLeavesTheBudgetBeforeTheAnswerGoesOut(t *testing.T) {
	t.Parallel()
	const size = 512
	body, other := strings.Repeat("x", size), strings.Repeat("y", size)
	for name, test := range map[string]struct {
		key, body string // of the request whose answer is read slowly
		status    int
	}{
		"first answer":                 {"first", body, http.StatusCreated},
		"answer that no retry gets":    {"busy", body, http.StatusServiceUnavailable},
		"replay":                       {"known", body, http.StatusCreated},
		"replay that is not allowed":   {"denied", body, http.StatusForbidden},
		"key of another request":       {"known", other, http.StatusConflict},
		"body that cannot be received": {"torn", "", http.StatusBadRequest},
	} {
		synctest.Test(t, func(t *testing.T) {
			opts := idempotency.Options{MaxBody: size, MaxBodies: size}
			opts.Replay = func(r *http.Request, _ *idempotency.Response) error {
				got, err := io.ReadAll(r.Body)
				assert.NoError(t, err)
				assert.Equal(t, body, string(got))
				if r.Header.Get("Idempotency-Key") == "denied" {
					return &idempotency.Error{Status: http.StatusForbidden}
				}
				return nil
			}
			svc := testservice.Setup{Opts: opts}.Guard(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Idempotency-Key") == "busy" {
					w.WriteHeader(http.StatusServiceUnavailable)
				}
				testservice.Echo(w, r)
			})
			svc.Call("known", body)
			svc.Call("denied", body)
			w := &slowClient{ResponseRecorder: httptest.NewRecorder(), reads: make(chan struct{})}
			done := make(chan struct{})
			go func() {
				defer close(done)
				r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(test.body))
				r.Header.Set("Idempotency-Key", test.key)
				if test.body == "" {
					r.Body, r.ContentLength = io.NopCloser(io.MultiReader(strings.NewReader("x"), failingReader{})), -1
				}
				svc.Handler.ServeHTTP(w, r)
			}()
			synctest.Wait()
			meanwhile := svc.Call("other", other)
			close(w.reads)
			<-done
			require.Equal(t, test.status, w.Code, name)
			require.Equal(t, http.StatusCreated, meanwhile.Status, "%s: %s", name, meanwhile.Body)
			require.Zero(t, svc.Middleware.UsersCounted(), name)
		})
	}
}

// slowClient is a client that takes nothing of the body of its answer before it reads.
type slowClient struct {
	*httptest.ResponseRecorder
	reads chan struct{}
}

func (c *slowClient) Write(p []byte) (int, error) {
	<-c.reads
	return c.ResponseRecorder.Write(p)
}

// lateBody is a body whose last byte does not come before end is closed.
func lateBody(size int, end <-chan struct{}) testservice.Edit {
	return func(r *http.Request) {
		r.ContentLength = int64(size)
		r.Body = io.NopCloser(io.MultiReader(strings.NewReader(strings.Repeat("x", size-1)), &slowBody{end: end}))
	}
}

// Whoever sends bodies slowly uses up a share of the budget, not all of it.
func TestBodiesOfOneUserLeaveRoomForOthers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		user               idempotency.UserFunc
		maxBody, maxBodies int64
		held               int // small bodies, in buffers of 512 bytes, that one user may have in memory
	}{
		"a half":                     {byUser, 512, 2048, 2},
		"a body if that is more":     {byUser, 1024, 1536, 2},
		"everything if there is one": {idempotency.SingleUser, 512, 2048, 4},
	} {
		synctest.Test(t, func(t *testing.T) {
			opts := idempotency.Options{MaxBody: test.maxBody, MaxBodies: test.maxBodies}
			svc := testservice.Setup{User: test.user, Opts: opts}.Guard(t, testservice.Echo)
			for range 2 { // what was taken is given back
				end := make(chan struct{})
				var group sync.WaitGroup
				for i := range test.held {
					group.Go(func() {
						got := svc.Call(testservice.NumberedKey(i).ID, "", asMallory, lateBody(100, end))
						assert.Equal(t, http.StatusBadRequest, got.Status, name)
					})
				}
				synctest.Wait()
				late := svc.Call("too-many", strings.Repeat("x", 99), asMallory)
				testservice.RequireProblem(t, late, http.StatusServiceUnavailable, "overloaded")
				if test.held < 4 {
					require.Equal(t, http.StatusCreated, svc.Call(rand.Text(), strings.Repeat("x", 99), asAlice).Status, name)
				}
				close(end)
				group.Wait()
				require.Zero(t, svc.Middleware.UsersCounted(), name)
			}
		})
	}
}

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// Files of a form are removed also when the handler panics and outer middleware recovers.
func TestFilesOfFormsAreRemovedAfterAPanic(t *testing.T) {
	t.Parallel()
	file := make(chan string, 1)
	svc := testservice.Setup{Outer: recovering}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseMultipartForm(1); err != nil {
			panic(err)
		}
		f, err := r.MultipartForm.File["upload"][0].Open()
		if err != nil {
			panic(err)
		}
		file <- f.(*os.File).Name()
		_ = f.Close()
		panic("boom")
	})
	body := "--x\r\nContent-Disposition: form-data; name=\"upload\"; filename=\"a\"\r\n\r\n" +
		strings.Repeat("x", 100) + "\r\n--x--\r\n"
	svc.Post("k", body, testservice.WithHeader("Content-Type", "multipart/form-data; boundary=x"))
	name := <-file
	require.Eventually(t, func() bool {
		_, err := os.Stat(name)
		return os.IsNotExist(err)
	}, 5*time.Second, time.Millisecond)
}

// recovering is middleware that answers 500 for a handler that panics.
func recovering(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if recover() != nil {
				w.WriteHeader(http.StatusInternalServerError)
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// withHeaders adds the lines of h, whose names are in canonical form.
func withHeaders(h http.Header) testservice.Edit {
	return func(r *http.Request) { maps.Copy(r.Header, h) }
}

// constant is a FingerprintFunc that tells no request from another.
func constant(*http.Request, []byte) (idempotency.Fingerprint, error) {
	return idempotency.Fingerprint{1}, nil
}

// A field that selects what a request does is a part of its fingerprint, whoever computes the rest.
func TestOptionFingerprintHeaders(t *testing.T) {
	t.Parallel()
	account := func(lines ...string) http.Header { return http.Header{"Stripe-Account": lines} }
	field := func(name string, lines ...string) http.Header { return http.Header{name: lines} }
	const override = "X-Http-Method-Override"
	long := strings.Repeat("a", 1000)
	rows := []struct {
		name          string
		first, second http.Header
		same          bool
	}{
		{"no such field", nil, nil, true},
		{"same account", account("a"), account("a"), true},
		{"other account", account("a"), account("b"), false},
		{"account added", nil, account("a"), false},
		{"account dropped", account("a"), nil, false},
		{"account in capitals", account("a"), account("A"), false},
		{"empty and none", nil, account(""), false},
		{"long, same", account(long), account(long), true},
		{"long, other end", account(long + "a"), account(long + "b"), false},
		{"two lines, same", account("a", "b"), account("a", "b"), true},
		{"another line", account("a"), account("a", "b"), false},
		{"other second line", account("a", "b"), account("a", "c"), false},
		{"lines in another order", account("a", "b"), account("b", "a"), false},
		{"lines joined", account("a", "b"), account("a, b"), false},
		{"bytes moved from line to line", account("ab", "c"), account("a", "bc"), false},
		{"value moved from field to field", account("a"), field("X-Tenant", "a"), false},
		{"other field of the option", field("X-Tenant", "a"), field("X-Tenant", "b"), false},

		{"same coding", field("Content-Encoding", "own"), field("Content-Encoding", "own"), true},
		{"other coding", field("Content-Encoding", "own"), field("Content-Encoding", "gzip"), false},
		{"coding dropped", field("Content-Encoding", "own"), nil, false},
		{"same override", field(override, "PUT"), field(override, "PUT"), true},
		{"other override", field(override, "PUT"), field(override, "DELETE"), false},
		{"override added", nil, field(override, "DELETE"), false},
		{"override of another name", nil, field("X-Http-Method", "DELETE"), false},
		{"override of a third name", nil, field("X-Method-Override", "DELETE"), false},
		{"field that selects nothing", field("X-Other", "a"), field("X-Other", "b"), true},
	}
	for name, function := range map[string]struct {
		f idempotency.FingerprintFunc
		c content
	}{
		"default":   {nil, content{"", "text/plain", "b"}},
		"raw":       {idempotency.FingerprintRaw, content{"", "text/plain", "b"}},
		"JSON":      {idempotency.FingerprintJSON, content{"", js, `{"a":1}`}},
		"multipart": {idempotency.FingerprintMultipart, form("x", "1")},
		"own":       {constant, content{"", "text/plain", "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			svc := testservice.Setup{Opts: idempotency.Options{
				Fingerprint: function.f, FingerprintHeaders: []string{"stripe-account", "X-TENANT", "Stripe-Account"},
			}}.Serve(t, testservice.Echo)
			media := testservice.WithHeader("Content-Type", function.c.media)
			for i, row := range rows {
				key := fmt.Sprint("k", i)
				first := svc.Post(key, function.c.body, media, withHeaders(row.first))
				require.Equal(t, http.StatusCreated, first.Status, row.name)
				second := svc.Post(key, function.c.body, media, withHeaders(row.second))
				if row.same {
					testservice.RequireReplay(t, first, second)
				} else {
					require.Equal(t, http.StatusConflict, second.Status, row.name)
					testservice.RequireProblem(t, second, http.StatusConflict, "key-reused")
				}
				require.EqualValues(t, i+1, svc.Runs.Load(), row.name)
			}
		})
	}
}

func TestFieldsThatSelectByDefault(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{}.Serve(t, testservice.Echo)
	first := svc.Post("k", "b", testservice.WithHeader("Stripe-Account", "a"))
	testservice.RequireReplay(t, first, svc.Post("k", "b", testservice.WithHeader("Stripe-Account", "b")))
	coded := testservice.WithHeader("Content-Encoding", "own")
	testservice.RequireProblem(t, svc.Post("k", "b", coded), http.StatusConflict, "key-reused")
	testservice.RequireReplay(t, svc.Post("l", "b", coded), svc.Post("l", "b", coded))
	testservice.RequireProblem(t, svc.Post("l", "c", coded), http.StatusConflict, "key-reused")
}

func TestOptionFingerprintHeadersTakesWhatAHeaderCanHave(t *testing.T) {
	t.Parallel()
	keys := []string{"Idempotency-Key", "X-Key"}
	for name, fault := range map[string]string{
		"":                  "is not a field name",
		"X Tenant":          "is not a field name",
		"X-Tenant:":         "is not a field name",
		"idempotency-key":   "has the key",
		"x-key":             "has the key",
		"host":              "net/http",
		"Transfer-Encoding": "net/http",
		"trailer":           "net/http",
	} {
		opts := idempotency.Options{Headers: keys, FingerprintHeaders: []string{"X-Tenant", name}}
		_, err := idempotency.New(testservice.NewSpyStore(), idempotency.SingleUser, opts)
		require.ErrorContains(t, err, "FingerprintHeaders", name)
		require.ErrorContains(t, err, fault, name)
	}
}

// The method that counts is the one that a request has when it arrives, wherever it has it from.
func TestMethodOverriddenByOuterMiddleware(t *testing.T) {
	t.Parallel()
	overriding := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if method := r.Header.Get("X-Http-Method-Override"); method != "" {
				r.Method = method
			}
			next.ServeHTTP(w, r)
		})
	}
	remove := testservice.WithHeader("X-Http-Method-Override", http.MethodDelete)
	for name, row := range map[string]struct {
		methods []string
		guarded bool
	}{
		"guarded":     {[]string{http.MethodPost, http.MethodDelete}, true},
		"not guarded": {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			svc := testservice.Setup{Outer: overriding, Opts: idempotency.Options{Methods: row.methods}}.Serve(t,
				func(w http.ResponseWriter, r *http.Request) { w.Header().Set("X-Method", r.Method) })
			created, removed := svc.Post("k", "b"), svc.Post("k", "b", remove)
			require.Equal(t, http.MethodPost, created.Header.Get("X-Method"))
			require.Equal(t, http.MethodDelete, removed.Header.Get("X-Method"), "another method is another endpoint")
			require.EqualValues(t, 2, svc.Runs.Load())

			testservice.RequireReplay(t, created, svc.Post("k", "b"))
			again := svc.Post("k", "b", remove)
			if !row.guarded {
				require.Equal(t, removed, again)
				require.EqualValues(t, 3, svc.Runs.Load())
				require.EqualValues(t, 2, svc.Store.Begins.Load(), "of the POST")
				return
			}
			testservice.RequireReplay(t, removed, again)
			require.EqualValues(t, 2, svc.Runs.Load())
			require.Equal(t, "DELETE /payments", svc.Journal.Last(t).Key.Endpoint)
		})
	}
}

// Requests that were sent to another release of this package are compared with what it has stored.
func TestFingerprintsWithFieldsAreFrozen(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		header http.Header
		want   string
	}{
		"none": {nil, idempotency.Fingerprint{1}.String()},
		"three": {http.Header{"X-Tenant": {"a", "b"}, "Content-Encoding": {"gzip"}, "Account": {"c"}},
			"af41f5f9a89da37cc9f46bac4918fe204497199b8ca93cb9ef1a9929a88d8c08"},
	} {
		svc := testservice.Setup{Opts: idempotency.Options{
			Fingerprint: constant, FingerprintHeaders: []string{"X-Tenant", "Account"},
		}}.Guard(t, testservice.Echo)
		svc.Call("k", "b", withHeaders(row.header))
		rec, _, err := svc.Store.Begin(t.Context(), svc.Journal.Last(t).Key, idempotency.ClaimRequest{Lease: time.Second})
		require.NoError(t, err)
		require.Equal(t, row.want, rec.Fingerprint.String(), name)
	}
}

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
