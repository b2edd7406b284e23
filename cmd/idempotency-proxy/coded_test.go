package main_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// The proxy does not decode bodies. With each -fingerprint, a body with a content coding is forwarded unchanged, and the
// fingerprint is that of the encoded bytes.
func TestCodedBodies(t *testing.T) {
	t.Parallel()
	gzipped := func(text string) string {
		var coded bytes.Buffer
		w := gzip.NewWriter(&coded)
		_, err := io.WriteString(w, text)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		return coded.String()
	}
	echo := func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusCreated)
		_, _ = io.Copy(w, r.Body)
	}
	const part = "--x\r\nContent-Disposition: form-data; name=amount\r\n\r\n1\r\n--x--\r\n"
	for name, row := range map[string]struct{ mediaType, body string }{
		"raw":       {"application/json", `{"amount":1}`},
		"json":      {"application/json", `{"amount":1}`},
		"multipart": {"multipart/form-data; boundary=x", part},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			upstream := startService(t, echo)
			p := startProxy(t, upstream.URL, append(userHeaderFlags, "-store", "memory:", "-fingerprint", name)...)
			send := func(body string) answer {
				return p.post("/", body, withUser("alice"), withKey("k"), withField("Content-Type", row.mediaType),
					withField("Content-Encoding", "gzip"))
			}
			body := gzipped(row.body)
			first := send(body)
			require.Equal(t, http.StatusCreated, first.status, first)
			require.Equal(t, body, first.body)
			require.Equal(t, "gzip", upstream.lastRequest(t).Header.Get("Content-Encoding"))
			require.True(t, send(body).replayed)
			require.Equal(t, "key-reused", send(gzipped(row.body+" ")).problemCode())
			require.Equal(t, 1, upstream.requestCount())
		})
	}
}
