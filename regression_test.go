package idempotency_test

import (
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// What goes wrong with idempotency keys elsewhere, and is not shown to go right by another test of this package.

// byAccount takes the name of the caller from a header, as if authentication had put it there.
func byAccount(r *http.Request) (string, error) { return r.Header.Get("X-Account"), nil }

func TestKeyOfAnotherUserIsNotReplayed(t *testing.T) {
	t.Parallel()
	svc := setup{user: byAccount}.serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "secret of "+r.Header.Get("X-Account"))
	})
	for _, account := range []string{"alice", "mallory"} {
		got := svc.post("k", "b", withHeader("X-Account", account))
		require.False(t, got.replayed())
		require.Equal(t, "secret of "+account, got.body)
	}
}

func TestDelimiterInUserOrKeyDoesNotMixKeys(t *testing.T) {
	t.Parallel()
	svc := setup{user: byAccount}.serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get("X-Account"))
	})
	for _, delimiter := range []string{":", "/", "|", "-"} {
		require.Equal(t, "acme", svc.post("eu"+delimiter+"k", "b", withHeader("X-Account", "acme")).body)
		require.Equal(t, "acme"+delimiter+"eu", svc.post("k", "b", withHeader("X-Account", "acme"+delimiter+"eu")).body)
	}
}

func TestKeyOfAnotherEndpointIsNotReplayed(t *testing.T) {
	t.Parallel()
	svc := setup{}.serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Method+" "+r.URL.EscapedPath())
	})
	for _, target := range []string{"/pay", "/refund", "/pay/", "/pay%2F", "/PAY"} {
		for _, method := range []string{"POST", "PATCH"} {
			require.Equal(t, method+" "+target, svc.send(target, "k", "b", withMethod(method)).body)
		}
	}
}

func TestQueryIsPartOfTheFingerprint(t *testing.T) {
	t.Parallel()
	svc := setup{}.serve(t, echo)
	require.Equal(t, http.StatusCreated, svc.send("/pay?amount=1", "k", "").status)
	requireProblem(t, svc.send("/pay?amount=100", "k", ""), http.StatusConflict, "key-reused")
}

func TestEmptyBodyHasAFingerprintToo(t *testing.T) {
	t.Parallel()
	svc := setup{}.serve(t, echo)
	require.Equal(t, http.StatusCreated, svc.post("k", "").status)
	requireProblem(t, svc.post("k", "b"), http.StatusConflict, "key-reused")
	require.Equal(t, http.StatusCreated, svc.post("l", "b").status)
	requireProblem(t, svc.post("l", ""), http.StatusConflict, "key-reused")
}

func TestPlainTextAnswerIsStored(t *testing.T) {
	t.Parallel()
	svc := setup{}.serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, "ok")
	})
	requireReplay(t, svc.post("k", "b"), svc.post("k", "b"))
}

func TestFreshCredentialsGetAFreshAnswer(t *testing.T) {
	t.Parallel()
	svc := setup{}.serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "fresh" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	})
	require.Equal(t, http.StatusUnauthorized, svc.post("k", "b", withHeader("Authorization", "stale")).status)
	require.Equal(t, http.StatusOK, svc.post("k", "b", withHeader("Authorization", "fresh")).status)
}

func TestRepeatedTransientErrorLeavesNothingPending(t *testing.T) {
	t.Parallel()
	svc := setup{}.serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	for range 5 {
		require.Equal(t, http.StatusInternalServerError, svc.post("k", "b").status)
	}
	require.EqualValues(t, 5, svc.runs.Load())
}

// Headers that change from one attempt of a client to the next are no other request.
func TestRetryWithOtherTraceHeadersIsReplayed(t *testing.T) {
	t.Parallel()
	svc := setup{}.serve(t, echo)
	attempt := func(n string) answer {
		return svc.post("k", "b", withHeader("Traceparent", n), withHeader("X-Retry-Count", n), withHeader("User-Agent", n))
	}
	requireReplay(t, attempt("0"), attempt("1"))
}

// An empty body has to be told from one that was not kept.
func TestEmptyAnswerIsReplayed(t *testing.T) {
	t.Parallel()
	svc := setup{opts: idempotency.Options{MaxResponse: 1}}.serve(t, func(http.ResponseWriter, *http.Request) {})
	requireReplay(t, svc.post("k", "b"), svc.post("k", "b"))
}

// A handler that copies from a network connection or a file must not find a way around the recorder.
func TestLargeFileIsRecordedWhole(t *testing.T) {
	t.Parallel()
	content := strings.Repeat("0123456789abcdef", 10_000)
	svc := setup{}.serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		n, err := io.Copy(w, io.LimitReader(strings.NewReader(content+"rest"), int64(len(content))))
		assert.NoError(t, err)
		assert.EqualValues(t, len(content), n)
	})
	first := svc.post("k", "b")
	require.Equal(t, http.StatusCreated, first.status)
	require.Equal(t, content, first.body)
	requireReplay(t, first, svc.post("k", "b"))
}

// The answer of one middleware may be what a second one, further out, records.
func TestNestedMiddlewaresReplayTheSameAnswer(t *testing.T) {
	t.Parallel()
	outer, err := idempotency.New(newSpyStore(), idempotency.SingleUser, idempotency.Options{})
	require.NoError(t, err)
	svc := setup{outer: outer.Handler}.serve(t, echo)
	requireReplay(t, svc.post("k", "b"), svc.post("k", "b"))
	require.EqualValues(t, 1, svc.runs.Load())
	require.EqualValues(t, 1, svc.store.begins.Load())
}

// The files of a form are removed when the request has ended, as by the server without a middleware.
func TestFilesOfFormsAreRemoved(t *testing.T) {
	t.Parallel()
	var file string
	svc := setup{}.serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.ParseMultipartForm(1) == nil {
			f, err := r.MultipartForm.File["upload"][0].Open()
			if err == nil {
				file = f.(*os.File).Name()
				_ = f.Close()
			}
		}
	})
	body := "--x\r\nContent-Disposition: form-data; name=\"upload\"; filename=\"a\"\r\n\r\n" +
		strings.Repeat("x", 100) + "\r\n--x--\r\n"
	answer := svc.post("k", body, withHeader("Content-Type", "multipart/form-data; boundary=x"))
	require.Equal(t, http.StatusOK, answer.status)
	require.NotEmpty(t, file)
	require.Eventually(t, func() bool {
		_, err := os.Stat(file)
		return errors.Is(err, fs.ErrNotExist)
	}, 5*time.Second, time.Millisecond)
}

// Calls without an operation share no key to pass on: another system would take them for one.
func TestDownstreamKeysWithoutAnOperation(t *testing.T) {
	t.Parallel()
	none, ok := idempotency.FromContext(t.Context())
	require.False(t, ok)
	require.NotEqual(t, none.DownstreamKey("charge"), none.DownstreamKey("charge"))
	one := idempotency.Operation{ID: uuid.New()}
	require.Equal(t, one.DownstreamKey("charge"), one.DownstreamKey("charge"))
	require.NotEqual(t, one.DownstreamKey("charge"), one.DownstreamKey("mail"))
}
