package fingerprint_test

import (
	"bytes"
	"compress/gzip"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/fingerprint"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

func gzipped(t testing.TB, text string) string {
	t.Helper()
	var coded bytes.Buffer
	w := gzip.NewWriter(&coded)
	_, err := w.Write([]byte(text))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return coded.String()
}

// functions are all that look into a body, with a body that they read.
var functions = map[string]struct {
	f       idempotency.FingerprintFunc
	content content
}{
	"JSON":          {fingerprint.JSON, content{"", js, `{"a":1,"t":1}`}},
	"JSONOnly":      {fingerprint.Must(fingerprint.JSONOnly("/a")), content{"", js, `{"a":1,"t":1}`}},
	"JSONWithout":   {fingerprint.Must(fingerprint.JSONWithout("/t")), content{"", js, `{"a":1,"t":1}`}},
	"FormOnly":      {fingerprint.Must(fingerprint.FormOnly("a")), content{"", urlEncoded, `a=1&t=1`}},
	"FormWithout":   {fingerprint.Must(fingerprint.FormWithout("t")), content{"", urlEncoded, `a=1&t=1`}},
	"Multipart":     {fingerprint.Multipart, form("x", "1")},
	"Parts of JSON": {fingerprint.Must(parts(fingerprint.JSON, "/a")), content{"", js, `{"a":1,"t":1}`}},
	"Parts of a form": {fingerprint.Must(parts(fingerprint.Must(fingerprint.FormWithout("t")), "a")),
		content{"", urlEncoded, `a=1&t=1`}},
}

func parts(whole idempotency.FingerprintFunc, names ...string) (idempotency.FingerprintFunc, error) {
	p, err := fingerprint.NewParts(whole, names...)
	return p.Fingerprint, err
}

// A function cannot look into a body with a coding. So such a body counts whole: another one is another request.
func TestCodedBodiesCountWhole(t *testing.T) {
	t.Parallel()
	for name, row := range functions {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			of := func(body string, codings ...string) idempotency.Fingerprint {
				r := httptest.NewRequest(http.MethodPost, "/payments", nil)
				r.Header.Set("Content-Type", row.content.media)
				r.Header["Content-Encoding"] = codings
				fp, err := row.f(r, []byte(body))
				require.NoError(t, err, codings)
				return fp
			}
			body := gzipped(t, row.content.body)
			first := of(body, "gzip")
			require.Equal(t, first, of(body, "gzip"))
			require.NotEqual(t, first, of(gzipped(t, strings.ReplaceAll(row.content.body, "1", "2")), "gzip"))
			// A decoder is free to read these bytes as something else than a form, or JSON.
			for _, codings := range [][]string{{"br"}, {"X-Own"}, {"", "gzip"}, {"identity, gzip"}, {"identity", "br"}} {
				require.NotEqual(t, of(row.content.body, codings...), of(row.content.body+" ", codings...), codings)
			}
			for _, none := range [][]string{nil, {""}, {"identity"}, {" Identity ,"}} {
				require.Equal(t, of(row.content.body), of(row.content.body, none...), "%q", none)
			}
		})
	}
}

func TestCodedBodiesOverHTTP(t *testing.T) {
	t.Parallel()
	for name, row := range functions {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			svc := testservice.Setup{Opts: idempotency.Options{Fingerprint: row.f}}.Serve(t, testservice.Echo)
			edits := []testservice.Edit{
				testservice.WithHeader("Content-Type", row.content.media), testservice.WithHeader("Content-Encoding", "gzip"),
			}
			body := gzipped(t, row.content.body)
			first := svc.Post("1", body, edits...)
			require.Equal(t, http.StatusCreated, first.Status, first.Body)
			require.Equal(t, body, first.Body)
			testservice.RequireReplay(t, first, svc.Post("1", body, edits...))
			testservice.RequireProblem(t, svc.Post("1", body+" ", edits...), http.StatusConflict, "key-reused")
			// Content-Encoding is a part of every fingerprint.
			testservice.RequireProblem(t, svc.Post("1", body, edits[0], testservice.WithHeader("Content-Encoding", "br")),
				http.StatusConflict, "key-reused")
			require.EqualValues(t, 1, svc.Runs.Load())
		})
	}
}
