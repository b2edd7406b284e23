// Package adaptertest has tests that the adapters of web frameworks share. Each adapter provides functions that mount
// its framework.
package adaptertest

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/upload"
)

// Guard is the parameter of adapters: a middleware of package idempotency or upload.
type Guard interface {
	Handler(next http.Handler) http.Handler
}

// NewGuard returns a guard with a new memory store.
func NewGuard(t *testing.T, user idempotency.UserFunc, opts idempotency.Options) Guard {
	t.Helper()
	opts.Logger = slog.New(slog.DiscardHandler)
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), user, opts)
	require.NoError(t, err)
	return idem
}

// Answer is the answer that a client receives. Header is without Date and Idempotent-Replayed.
type Answer struct {
	Status   int
	Header   http.Header
	Trailer  http.Header
	Body     string
	Replayed bool
}

// Serve starts a service, and returns a function that sends requests to the service. An empty key means a request
// without a key.
func Serve(t *testing.T, service http.Handler) func(path, key, body string) Answer {
	t.Helper()
	s := httptest.NewServer(service)
	t.Cleanup(s.Close)
	return func(path, key, body string) Answer {
		return sendRequest(t, s, path, key, body, nil)
	}
}

func sendRequest(t *testing.T, s *httptest.Server, path, key, body string, header http.Header) Answer {
	t.Helper()
	r, err := http.NewRequest(http.MethodPost, s.URL+path, strings.NewReader(body))
	require.NoError(t, err)
	if header != nil {
		r.Header = header
	}
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	resp, err := s.Client().Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	replayed := resp.Header.Get("Idempotent-Replayed") == "true"
	resp.Header.Del("Date")
	resp.Header.Del("Idempotent-Replayed")
	return Answer{resp.StatusCode, resp.Header, resp.Trailer, string(b), replayed}
}

// RequireReplay checks that a is a replay of first.
func RequireReplay(t *testing.T, first, a Answer) {
	t.Helper()
	require.True(t, a.Replayed, a)
	a.Replayed = false
	require.Equal(t, first, a)
}

// CheckMounting checks that a service answers a retry of POST /v1/p with a replay, and runs the handler once. The
// handler must call run, and answer with status 201 and the text "charged".
func CheckMounting(t *testing.T, service func(guard Guard, run func()) http.Handler) {
	t.Helper()
	runs := 0
	send := Serve(t, service(NewGuard(t, idempotency.SingleUser, idempotency.Options{}), func() { runs++ }))
	first := send("/v1/p", "k", "")
	require.Equal(t, "charged", first.Body)
	RequireReplay(t, first, send("/v1/p", "k", ""))
	require.Equal(t, 1, runs)
}

// CheckForm checks that the request of the server still refers to the files of a form, because the server removes
// these files. The service answers with status 201 and the name of the file in the field f.
func CheckForm(t *testing.T, service http.Handler) {
	t.Helper()
	for _, key := range []string{"", "k"} {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(
			"--b\r\nContent-Disposition: form-data; name=\"f\"; filename=\"g\"\r\n\r\nfile\r\n--b--\r\n"))
		r.Header.Set("Content-Type", "multipart/form-data; boundary=b")
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
		w := httptest.NewRecorder()
		service.ServeHTTP(w, r)
		require.Equal(t, http.StatusCreated, w.Code)
		require.Equal(t, "g", w.Body.String())
		require.NotNil(t, r.MultipartForm)
	}
}

// CheckClaimLost checks that the loss of a claim is answered with a refusal, and that the answer has nothing else.
// The handler of the service waits for the end of its context.
func CheckClaimLost(t *testing.T, service func(guard Guard) http.Handler) {
	t.Helper()
	store := &FaultyStore{
		Store: idempotency.NewMemoryStore(idempotency.MemoryOptions{}), ExtendErr: idempotency.ErrClaimLost,
	}
	idem, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{
		Lease: time.Second, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	got := Serve(t, service(idem))("/", "k", "")
	require.Equal(t, http.StatusConflict, got.Status, got.Body)
	require.Equal(t, "application/problem+json", got.Header.Get("Content-Type"))
	require.True(t, strings.HasSuffix(got.Body, "}") && strings.Count(got.Body, "{") == 1, got.Body)
}

// CheckStatus checks that clients learn the state of their own keys. The function user reads the field User from the context
// of the framework. The service guards POST /payments, which answers "charged" with 201, and answers questions at GET /status.
func CheckStatus(t *testing.T, user idempotency.UserFunc, service func(idem *idempotency.Middleware) http.Handler) {
	t.Helper()
	s := httptest.NewServer(service(NewGuard(t, user, idempotency.Options{}).(*idempotency.Middleware)))
	t.Cleanup(s.Close)
	send := func(method, path, user string) string {
		r, err := http.NewRequest(method, s.URL+path, nil)
		require.NoError(t, err)
		r.Header = http.Header{"Idempotency-Key": {"k"}, "User": {user}}
		resp, err := s.Client().Do(r)
		require.NoError(t, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return fmt.Sprint(resp.StatusCode, " ", string(body))
	}
	const question = "/status?method=POST&path=%2Fpayments"
	require.Equal(t, "201 charged", send(http.MethodPost, "/payments", "alice"))
	require.Regexp(t, `^200 \{"state":"done","instance":"urn:uuid:[^"]+","status":201`, send(http.MethodGet, question, "alice"))
	require.Regexp(t, `^200 \{"state":"never-seen"`, send(http.MethodGet, question, "bob"))
	require.Regexp(t, `^401 .*#user-unknown"`, send(http.MethodGet, question, ""))
}

// serveUploads starts a service for uploads, and returns a function that uploads body with the digest of digestOf. An
// empty key means a request without a key.
func serveUploads(t *testing.T, service func(guard Guard) http.Handler) func(key, digestOf, body string) Answer {
	t.Helper()
	idem, err := upload.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser,
		idempotency.Options{MaxBody: 1024, Abandoned: idempotency.Refuse, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	s := httptest.NewServer(service(idem))
	t.Cleanup(s.Close)
	return func(key, digestOf, body string) Answer {
		sum := sha256.Sum256([]byte(digestOf))
		a := sendRequest(t, s, "/scans", key, body,
			http.Header{"Content-Digest": {"sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"}})
		a.Header = nil
		return a
	}
}

// CheckUpload checks that an adapter verifies bodies with the middleware of package upload: no answer to a wrong body
// is sent or stored. The function service mounts a handler as POST /scans, and must call run before the handler. The
// handlers differ in whether they read the body, and in how they treat the error of the read.
func CheckUpload[H any](t *testing.T, handlers map[string]H, service func(guard Guard, handler H, run func()) http.Handler) {
	t.Helper()
	large := strings.Repeat("a page of the scan\n", 1<<12) // more than MaxBody
	for name, handler := range handlers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var runs atomic.Int64
			send := serveUploads(t, func(guard Guard) http.Handler {
				return service(guard, handler, func() { runs.Add(1) })
			})
			for range 2 {
				got := send("1", large, large[1:])
				require.Equal(t, http.StatusBadRequest, got.Status, got)
				require.False(t, got.Replayed)
				require.Regexp(t, `^\{[^{]*#digest-mismatching-values[^{]*\}\s*$`, got.Body, "one answer, which is the refusal")
			}
			first := send("1", large, large)
			require.Less(t, first.Status, 300, first)
			require.False(t, first.Replayed)
			require.EqualValues(t, 3, runs.Load())
			RequireReplay(t, first, send("1", large, "")) // a retry may omit the body
			require.EqualValues(t, 3, runs.Load())
		})
	}
}

// CheckUploadWithoutKey checks that a request without a key reaches the handler unchanged even if its digest is
// wrong, and that outer middleware can still answer for the handler. The handler returns the error `read "BODY" of
// LENGTH`, which outer middleware answers with status 418.
func CheckUploadWithoutKey(t *testing.T, service func(guard Guard) http.Handler) {
	t.Helper()
	require.Equal(t, Answer{Status: http.StatusTeapot, Body: `read "a scan" of 6`},
		serveUploads(t, service)("", "another scan", "a scan"))
}
