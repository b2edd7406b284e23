package keyfrom_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/fingerprint"
	"github.com/idempotency-go/idempotency/fingerprint/keyfrom"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

const filePart = "Content-Disposition: form-data; name=\"scan\"; filename=\"é; key=.png\"\r\nContent-Type: image/png\r\n\r\na page"

// A key is found in its place, and the handler gets the whole request, with the key in the header.
func TestKeyIsFound(t *testing.T) {
	t.Parallel()
	svc := newService(t, setup{}).serve(t, false)
	for name, row := range map[string]struct {
		sent message
		key  string // empty: none, so the request passes
	}{
		"JSON":                     {message{"", js, `{"amount":1,"key":"k-1"}`}, "k-1"},
		"JSON, escaped":            {message{"", js, ` { "\u006bey" : "\u006b-1" }`}, "k-1"},
		"JSON, structured suffix":  {message{"", "application/merge-patch+json; charset=utf-8", `{"key":"k-1"}`}, "k-1"},
		"JSON, characters":         {message{"", js, `{"key":"a,b;\"c\"\\d"}`}, `a,b;"c"\d`},
		"JSON, quotes of its own":  {message{"", js, `{"key":"\"k-1\""}`}, `"k-1"`},
		"JSON, null":               {message{"", js, `{"key":null}`}, ""},
		"JSON, missing":            {message{"", js, `{"amount":1,"in":{"key":"k-1"}}`}, ""},
		"JSON, no object":          {message{"", js, `["key"]`}, ""},
		"JSON, a string":           {message{"", js, `"key"`}, ""},
		"JSON, nothing":            {message{"", js, ""}, ""},
		"no JSON":                  {message{"", "text/plain", `{"key":"k-1"}`}, ""},
		"query":                    {message{"a=%20&key=k%2D1&b", "", ""}, "k-1"},
		"query, with a body":       {message{"key=k-1", "text/plain", "some text"}, "k-1"},
		"query and body":           {message{"key=k-1", js, `{"key":"k-1"}`}, "k-1"},
		"form":                     {message{"", encoded, "amount=1&key=k%2D1"}, "k-1"},
		"form without the field":   {message{"", encoded, "amount=1"}, ""},
		"form with files":          {formOf("amount=1", filePart, "key=k-1"), "k-1"},
		"form with files, without": {formOf("amount=1", filePart), ""},
		"form with an encoding that is none": {
			formOf("Content-Disposition: form-data; name=key\r\nContent-Transfer-Encoding: 8BIT\r\n\r\nk-1"), "k-1"},
		"empty form with files": {message{"", boundary, ""}, ""},
	} {
		got := decode(t, row.sent.sendTo(svc, "", as(name)))
		require.Equal(t, row.key, got.Key, name)
		require.Equal(t, row.sent.body, got.Body, name)
		require.Equal(t, row.sent.query, got.Query, name)
		if !strings.ContainsAny(row.key, `",;\`) {
			require.Equal(t, row.key, got.Header, name)
		}
		if row.key != "" {
			id, err := idempotency.ParseKey([]string{got.Header})
			require.NoError(t, err, name)
			require.Equal(t, row.key, id, name)
		}
	}
}

// A repetition gets the stored answer, wherever its key is, and a request with other content is refused.
func TestRepetitions(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		first, other message
		same         []message
		withHeader   message // the same request with the key in the header
	}{
		"JSON": {
			message{"", js, `{"amount":1,"key":"k"}`}, message{"", js, `{"amount":2,"key":"k"}`},
			[]message{{"", js, `{"amount":1,"key":"k"}`}, {"", js, "{\"key\":\"\\u006b\",\n\"amount\":1.0}"}},
			message{"", js, `{"amount":1}`},
		},
		"query": {
			message{"a=1&key=k", "text/plain", "b"}, message{"a=2&key=k", "text/plain", "b"},
			[]message{{"key=k&a=1", "text/plain", "b"}, {"a=1&%6bey=%6b", "text/plain", "b"}},
			message{"a=1", "text/plain", "b"},
		},
		"query with JSON": {
			message{"a=1&key=k", js, `{"amount":1}`}, message{"a=2&key=k", js, `{"amount":1}`},
			[]message{{"key=k&a=1", js, `{"amount":1,"key":"k"}`}, {"a=1", js, `{"amount":1,"key":"k"}`}},
			message{"a=1", js, `{"amount":1}`},
		},
		"form": {
			message{"", encoded, "amount=1&key=k"}, message{"", encoded, "amount=2&key=k"},
			[]message{{"", encoded, "key=k&amount=%31"}}, message{"", encoded, "amount=1"},
		},
		"form with files": {
			formOf("amount=1", "key=k", filePart), formOf("amount=2", "key=k", filePart),
			[]message{formOf("key=k", "amount=1", filePart), {"", "multipart/form-data; boundary=yz",
				strings.ReplaceAll(formOf("amount=1", "key=k", filePart).body, "--x", "--yz")}},
			formOf("amount=1", filePart),
		},
	} {
		for _, http2 := range []bool{false, true} {
			svc := newService(t, setup{opts: idempotency.Options{Required: true}}).serve(t, http2)
			first := row.first.sendTo(svc, "")
			require.Equal(t, "k", decode(t, first).Key, name)
			for _, same := range row.same {
				testservice.RequireReplay(t, first, same.sendTo(svc, ""))
			}
			testservice.RequireReplay(t, first, row.withHeader.sendTo(svc, "k"))
			testservice.RequireReplay(t, first, row.first.sendTo(svc, `"k"`))
			testservice.RequireProblem(t, row.other.sendTo(svc, ""), http.StatusConflict, "key-reused")
			require.Equal(t, "k", decode(t, row.first.sendTo(svc, "", as("bob"))).Key, "another user")
			testservice.RequireProblem(t, row.withHeader.sendTo(svc, ""), http.StatusBadRequest, "key-missing")
			require.EqualValues(t, 2, svc.Runs.Load(), name)
		}
	}
}

// A key in the body is refused as the same key in the header is: with the same answer, to the byte.
func TestMalformedKeysAreRefusedAsInTheHeader(t *testing.T) {
	t.Parallel()
	validate := func(id string) error {
		if id == "odd" {
			return errors.New("it is odd")
		}
		return nil
	}
	svc := newService(t, setup{opts: idempotency.Options{ValidateKey: validate}})
	for _, key := range []string{"", "a b", "a\nb", "\x00", "é", strings.Repeat("x", 256), "odd"} {
		text, err := json.Marshal(key)
		require.NoError(t, err)
		want := message{}.sendTo(svc, "", testservice.WithHeader("Idempotency-Key", key))
		testservice.RequireProblem(t, want, http.StatusBadRequest, "key-invalid")
		for _, sent := range []message{
			{"", js, `{"key":` + string(text) + `}`}, {"key=" + url.QueryEscape(key), "", ""},
			{"", encoded, "key=" + url.QueryEscape(key)}, formOf("Content-Disposition: form-data; name=key\r\n\r\n" + key),
		} {
			require.Equal(t, want, sent.sendTo(svc, ""), "%q", sent)
			require.ErrorIs(t, svc.Journal.Last(t).Err, idempotency.ErrKeyInvalid)
		}
	}
	require.Zero(t, svc.Runs.Load())
}

// Whatever two readers could read differently is refused, with a reason.
func TestAmbiguousRequestsAreRefused(t *testing.T) {
	t.Parallel()
	sources := []keyfrom.Source{keyfrom.JSON("/key", "/meta/key"), keyfrom.Query("key"), keyfrom.Form("key")}
	svc := newService(t, setup{sources: sources}).serve(t, false)
	key, body := "key-invalid", "body-invalid"
	for name, row := range map[string]struct {
		header, code, reason string
		sent                 message
	}{
		"header and JSON":  {"h", key, "the header and /key have different keys", message{"", js, `{"key":"k"}`}},
		"header and query": {"h", key, `the header and the query parameter "key" have different keys`, message{"key=k", "", ""}},
		"header and form":  {"h", key, `the header and the form field "key" have different keys`, message{"", encoded, "key=k"}},
		"header and files": {"h", key, `the header and the form field "key" have different keys`, formOf("key=k")},
		"query and JSON":   {"", key, `the query parameter "key" and /key have different keys`, message{"key=q", js, `{"key":"k"}`}},
		"two members":      {"", key, "/key and /meta/key have different keys", message{"", js, `{"key":"k","meta":{"key":"m"}}`}},
		"number":           {"", key, "the value at /key is no string", message{"", js, `{"key":1}`}},
		"object":           {"", key, "the value at /key is no string", message{"", js, `{"key":{"key":"k"}}`}},
		"case of a member": {"", key, `the name "Key" differs from "key" in case only`, message{"", js, `{"key":"k","Key":"m"}`}},
		"only other case":  {"", key, "in case only", message{"", js, `{"KEY":"k"}`}},
		"Kelvin sign":      {"", key, "in case only", message{"", js, `{"` + "\u212a" + `ey":"k"}`}},
		"case within":      {"", key, `"Meta" differs from "meta"`, message{"", js, `{"Meta":{"key":"k"}}`}},
		"member twice":     {"", body, "duplicate", message{"", js, `{"key":"k","key":"m"}`}},
		"twice, escaped":   {"", body, "duplicate", message{"", js, `{"key":"k","\u006bey":"m"}`}},
		"twice elsewhere":  {"", body, "duplicate", message{"", js, `{"a":1,"a":2}`}},
		"two documents":    {"", body, "", message{"", js, `{"key":"k"}{"key":"m"}`}},
		"cut off":          {"", body, "", message{"", js, `{"key":"k"`}},
		"deep":             {"", body, "nested more than 100 deep", message{"", js, strings.Repeat("[", 200)}},
		"query twice":      {"", key, `the query parameter "key" was sent 2 times`, message{"key=k&key=k", "", ""}},
		"case in query":    {"", key, "in case only", message{"Key=k", "", ""}},
		"semicolon":        {"", key, "the query is malformed", message{"a=1;key=k", "", ""}},
		"percent in query": {"", key, "the query is malformed", message{"key=k&a=%zz", "", ""}},
		"field twice":      {"", key, "was sent 2 times", message{"", encoded, "key=k&key=k"}},
		"case of a field":  {"", key, "in case only", message{"", encoded, "kEy=k"}},
		"semicolon, form":  {"", body, "semicolon", message{"", encoded, "a=1;key=k"}},
		"percent in form":  {"", body, "escape", message{"", encoded, "key=%zz"}},
		"part twice":       {"", key, "was sent 2 times", formOf("key=k", "key=m")},
		"case of a part":   {"", key, "in case only", formOf("Key=k")},
		"file":             {"", key, "is a file", formOf("Content-Disposition: form-data; name=key; filename=a\r\n\r\nk")},
		"encoded part": {"", key, "has an encoding",
			formOf("Content-Disposition: form-data; name=key\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n=6b")},
		"two dispositions": {"", body, "2 fields Content-Disposition",
			formOf("Content-Disposition: form-data; name=a\r\nContent-Disposition: form-data; name=key\r\n\r\nk")},
		"no disposition":        {"", body, "0 fields Content-Disposition", formOf("A: b\r\n\r\nk")},
		"malformed disposition": {"", body, "malformed", formOf("Content-Disposition: form-data; name=a; name=key\r\n\r\nk")},
		"other disposition":     {"", body, "malformed", formOf("Content-Disposition: attachment; name=key\r\n\r\nk")},
		"form not ended":        {"", body, "", message{"", boundary, "--x\r\nContent-Disposition: form-data; name=key\r\n\r\nk"}},
		"part in the epilogue":  {"", body, "", message{"", boundary, formOf("a=1").body + formOf("key=k").body}},
		"no boundary":           {"", body, "", message{"", "multipart/form-data", formOf("key=k").body}},
	} {
		got := row.sent.sendTo(svc, row.header)
		problem := testservice.RequireProblem(t, got, http.StatusBadRequest, row.code)
		require.ErrorContains(t, svc.Journal.Last(t).Err, row.reason, name)
		if row.code == key {
			require.Contains(t, problem.Detail, row.reason, name)
		}
		require.Equal(t, idempotency.OutcomeRejected, svc.Journal.Last(t).Outcome)
	}
	require.Zero(t, svc.Runs.Load())
}

// A service behind grpc-gateway reads a field of AIP-155 under two names.
func TestSpellingsOfAMember(t *testing.T) {
	t.Parallel()
	svc := newService(t, setup{sources: []keyfrom.Source{keyfrom.JSON("/request_id", "/requestId")}})
	first := message{"", js, `{"request_id":"r-1","amount":1}`}.sendTo(svc, "")
	require.Equal(t, "r-1", decode(t, first).Key)
	for _, body := range []string{`{"requestId":"r-1","amount":1}`, `{"requestId":"r-1","request_id":"r-1","amount":1}`} {
		testservice.RequireReplay(t, first, message{"", js, body}.sendTo(svc, ""))
	}
	require.EqualValues(t, 1, svc.Runs.Load())
}

// A function finds the key in a format of its own.
func TestKeyByFunction(t *testing.T) {
	t.Parallel()
	teapot := &idempotency.Error{Status: http.StatusTeapot, Title: "Teapot"}
	find := func(_ *http.Request, body []byte) (string, error) {
		switch key, _, found := strings.Cut(string(body), "|"); {
		case key == "bad":
			return "", errors.New("this body is bad")
		case key == "own":
			return "", fmt.Errorf("own: %w", teapot)
		case found:
			return key, nil
		}
		return "", nil
	}
	svc := newService(t, setup{sources: []keyfrom.Source{keyfrom.Body(find)}}).serve(t, false)
	first := message{"", "text/x-pipe", "k|1"}.sendTo(svc, "")
	require.Equal(t, shown{Key: "k", Operation: decode(t, first).Operation, Downstream: decode(t, first).Downstream,
		Header: "k", Body: "k|1"}, decode(t, first))
	testservice.RequireReplay(t, first, message{"", "text/x-pipe", "k|1"}.sendTo(svc, ""))
	require.Empty(t, decode(t, message{"", "text/x-pipe", "1"}.sendTo(svc, "")).Key)
	testservice.RequireProblem(t, message{"", "", "h|1"}.sendTo(svc, "k"), http.StatusBadRequest, "key-invalid")
	testservice.RequireProblem(t, message{"", "", "bad"}.sendTo(svc, ""), http.StatusBadRequest, "body-invalid")
	require.Equal(t, http.StatusTeapot, message{"", "", "own"}.sendTo(svc, "").Status)
	coded := testservice.WithHeader("Content-Encoding", "pipe")
	require.Equal(t, "c", decode(t, message{"", "", "c|1"}.sendTo(svc, "", coded)).Key, "a function may decode")
}

// A test of routes finds the guard, whatever its sources.
func TestGuardedFindsTheMiddleware(t *testing.T) {
	t.Parallel()
	svc := newService(t, setup{})
	request := httptest.NewRequest("POST", "/payments", nil)
	idempotencytest.Guarded(t, svc.Handler, idempotencytest.GuardedOptions{}, request)
	require.Zero(t, svc.Runs.Load())
}

// Methods outside of Options.Methods pass untouched, and a keyed GET works as any other method.
func TestMethods(t *testing.T) {
	t.Parallel()
	var passed io.Reader
	svc := newService(t, setup{handler: func(_ http.ResponseWriter, r *http.Request) { passed = r.Body }})
	body := io.NopCloser(strings.NewReader(`{"key":`))
	put := httptest.NewRequest("PUT", "/payments?key=%zz", body)
	put.Header.Set("Content-Type", js)
	svc.Handler.ServeHTTP(httptest.NewRecorder(), put)
	require.Equal(t, io.Reader(body), passed, "the body of a PUT")

	svc = newService(t, setup{opts: idempotency.Options{Methods: []string{"GET"}, Required: true}}).serve(t, false)
	get := testservice.WithMethod("GET")
	first := message{"key=k&a=1", "", ""}.sendTo(svc, "", get)
	require.Equal(t, "k", decode(t, first).Key)
	testservice.RequireReplay(t, first, message{"a=1&key=k", "", ""}.sendTo(svc, "", get))
	testservice.RequireProblem(t, message{"a=1", "", ""}.sendTo(svc, "", get), http.StatusBadRequest, "key-missing")
}

// A request without a key passes as it is: not as a copy, by which adapters of frameworks would take it for a guarded one.
func TestUnguardedRequestPassesItself(t *testing.T) {
	t.Parallel()
	var passed *http.Request
	svc := newService(t, setup{handler: func(_ http.ResponseWriter, r *http.Request) {
		passed = r
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		assert.Equal(t, `{"amount":1}`, string(body))
	}})
	r := post("/payments", js, []byte(`{"amount":1}`))
	svc.Handler.ServeHTTP(httptest.NewRecorder(), r)
	require.Same(t, r, passed)
}

// The names of the header are those of the options.
func TestHeaders(t *testing.T) {
	t.Parallel()
	svc := newService(t, setup{opts: idempotency.Options{Headers: []string{"x-key", "X-Other"}}})
	sent := message{"", js, `{"key":"k"}`}
	first := sent.sendTo(svc, "ignored")
	require.Equal(t, "k", decode(t, first).Key)
	testservice.RequireReplay(t, first, sent.sendTo(svc, "", testservice.WithHeader("X-Other", "k")))
	two := []testservice.Edit{testservice.WithHeader("X-Other", "k"), testservice.WithHeader("X-Key", "other")}
	problem := testservice.RequireProblem(t, sent.sendTo(svc, "", two...), http.StatusBadRequest, "key-invalid")
	require.Contains(t, problem.Detail, "X-Key and X-Other have different keys", "the words of the middleware")
}

// A content coding hides the key, so the request is refused rather than passed unprotected.
func TestCompressedBodies(t *testing.T) {
	t.Parallel()
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, _ = w.Write([]byte(`{"key":"k"}`))
	require.NoError(t, w.Close())
	coded := testservice.WithHeader("Content-Encoding", "gzip")
	unpack := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := gzip.NewReader(r.Body)
			assert.NoError(t, err)
			r.Body, r.ContentLength = body, -1
			r.Header.Del("Content-Encoding")
			next.ServeHTTP(w, r)
		})
	}
	sent := message{"", js, packed.String()}
	svc := newService(t, setup{}).serve(t, false)
	refused := sent.sendTo(svc, "", coded)
	testservice.RequireProblem(t, refused, http.StatusUnsupportedMediaType, "body-invalid")
	require.Equal(t, "identity", refused.Header.Get("Accept-Encoding"))
	require.Equal(t, "h", decode(t, sent.sendTo(svc, "h", coded)).Key)
	require.Equal(t, "q", decode(t, message{"key=q", js, packed.String()}.sendTo(svc, "", coded)).Key)
	identity := testservice.WithHeader("Content-Encoding", "identity")
	require.Equal(t, "k", decode(t, message{"", js, `{"key":"k"}`}.sendTo(svc, "", identity)).Key)

	svc = newService(t, setup{outer: unpack}).serve(t, false)
	require.Equal(t, shown{Key: "k", Header: "k", Body: `{"key":"k"}`}, withoutIDs(decode(t, sent.sendTo(svc, "", coded))))
}

func withoutIDs(s shown) shown {
	s.Operation, s.Downstream = "", ""
	return s
}

// A body in chunks, with trailers and a digest, reaches the handler as it was sent.
func TestBodyIsHandedOn(t *testing.T) {
	t.Parallel()
	body := `{"key":"k","text":"` + strings.Repeat("é", 100<<10) + `"}`
	sum := sha256.Sum256([]byte(body))
	digest := "sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
	for _, sent := range []string{body, strings.Replace(body, "key", "other", 1)} {
		for _, http2 := range []bool{false, true} {
			svc := newService(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
				got, err := io.ReadAll(r.Body)
				assert.NoError(t, err)
				assert.Equal(t, sent, string(got))
				assert.EqualValues(t, -1, r.ContentLength)
				assert.Equal(t, digest, r.Header.Get("Content-Digest"))
				assert.Equal(t, "of the body", r.Trailer.Get("End"))
				w.WriteHeader(http.StatusCreated)
			}}).serve(t, http2)
			got := message{"", js, sent}.sendTo(svc, "", func(r *http.Request) {
				r.Header.Set("Content-Digest", digest)
				r.ContentLength, r.Body = -1, io.NopCloser(io.LimitReader(r.Body, 1<<20)) // in chunks
				r.Trailer = http.Header{"End": {"of the body"}}
			})
			require.NoError(t, got.Err)
			require.Equal(t, http.StatusCreated, got.Status, got.Body)
		}
	}
}

// The handler may parse a form, and the server removes its temporary files.
func TestFilesOfFormsAreRemoved(t *testing.T) {
	t.Parallel()
	for _, sources := range [][]keyfrom.Source{nil, {keyfrom.Content(minute, fingerprint.Multipart)}} {
		files := make(chan string, 1)
		svc := newService(t, setup{sources: sources, handler: func(_ http.ResponseWriter, r *http.Request) {
			if assert.NoError(t, r.ParseMultipartForm(1)) {
				file, err := r.MultipartForm.File["scan"][0].Open()
				assert.NoError(t, err)
				defer file.Close()
				files <- file.(*os.File).Name()
			}
		}}).serve(t, false)
		sent := formOf("key=k", "Content-Disposition: form-data; name=scan; filename=a\r\n\r\n"+strings.Repeat("x", 1<<10))
		require.Equal(t, http.StatusOK, sent.sendTo(svc, "").Status)
		name := <-files
		require.Eventually(t, func() bool {
			_, err := os.Stat(name)
			return os.IsNotExist(err)
		}, patience, tick)
	}
}

// An Options.Fingerprint replaces the default, and may leave the key in.
func TestOwnFingerprint(t *testing.T) {
	t.Parallel()
	same := fingerprint.Must(fingerprint.JSONOnly("/amount"))
	svc := newService(t, setup{opts: idempotency.Options{Fingerprint: same}})
	first := message{"", js, `{"key":"k","amount":1,"at":1}`}.sendTo(svc, "")
	testservice.RequireReplay(t, first, message{"", js, `{"key":"k","amount":1,"at":2}`}.sendTo(svc, ""))
	refused := message{"", js, `{"key":"k","amount":2}`}.sendTo(svc, "")
	testservice.RequireProblem(t, refused, http.StatusConflict, "key-reused")
}

// New reports all faults of the sources.
func TestFaults(t *testing.T) {
	t.Parallel()
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	raw := idempotency.FingerprintRaw
	content := keyfrom.Content(minute, raw)
	type sources []keyfrom.Source
	type faults []string
	for name, row := range map[string]struct {
		opts    idempotency.Options
		sources sources
		want    faults
	}{
		"none":           {want: faults{"sources are missing"}},
		"empty":          {sources: sources{{}}, want: faults{"a Source is empty"}},
		"two of JSON":    {sources: sources{keyfrom.JSON("/a"), keyfrom.JSON("/b")}, want: faults{"two sources are of one kind"}},
		"two of Query":   {sources: sources{keyfrom.Query("a"), keyfrom.Query("b")}, want: faults{"two sources are of one kind"}},
		"two of Content": {sources: sources{content, content}, want: faults{"two sources are of one kind"}},
		"pointers": {sources: sources{keyfrom.JSON("key", "/a/*", "/id", "/ID")}, want: faults{
			`pointer "key" does not begin with a slash`, `pointer "/a/*" has a *`,
			`pointer "/ID" differs from another pointer in case only`}},
		"no pointer": {sources: sources{keyfrom.JSON()}, want: faults{"pointers are missing"}},
		"names":      {sources: sources{keyfrom.Query(""), keyfrom.Form("")}, want: faults{"Query has no name", "Form has no name"}},
		"functions": {sources: sources{keyfrom.Body(nil), keyfrom.Content(minute, nil)},
			want: faults{"Body has no function", "Content has no function"}},
		"window": {sources: sources{keyfrom.Content(1e9, raw)}, want: faults{"1s, is shorter than Lease 30s"}},
		"long window, GET": {
			opts: idempotency.Options{TTL: 10e9, Lease: 1e9, Methods: []string{"GET", "POST"}}, sources: sources{content},
			want: faults{"1m0s, is longer than TTL 10s", "Content with GET in Methods"},
		},
		"options": {opts: idempotency.Options{MaxBody: -1}, sources: sources{content}, want: faults{"MaxBody"}},
		"all": {
			opts: idempotency.Options{MaxBody: -1, TTL: 1e9}, sources: sources{keyfrom.JSON("key"), keyfrom.Content(1e9, nil)},
			want: faults{"MaxBody", "TTL 1s is shorter", "begin with a slash", "Content has no function", "is shorter than Lease"},
		},
	} {
		_, err := keyfrom.New(store, userFromHeader, row.opts, row.sources...)
		for _, want := range row.want {
			require.ErrorContains(t, err, want, name)
		}
	}
	_, err := keyfrom.New(store, nil, idempotency.Options{}, keyfrom.Query("key"))
	require.ErrorContains(t, err, "UserFunc is nil")
}
