package misuse_test

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
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// The tests of this file cover known mistakes of other implementations that no test beside the code covers.

// byAccount returns the user in the header X-Account, in the place of real authentication.
func byAccount(r *http.Request) (string, error) { return r.Header.Get("X-Account"), nil }

func TestKeyOfAnotherUserIsNotReplayed(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{User: byAccount}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "secret of "+r.Header.Get("X-Account"))
	})
	for _, account := range []string{"alice", "mallory"} {
		got := svc.Post("k", "b", testservice.WithHeader("X-Account", account))
		require.False(t, got.Replayed())
		require.Equal(t, "secret of "+account, got.Body)
	}
}

func TestDelimiterInUserOrKeyDoesNotMixKeys(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{User: byAccount}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get("X-Account"))
	})
	for _, delimiter := range []string{":", "/", "|", "-"} {
		require.Equal(t, "acme", svc.Post("eu"+delimiter+"k", "b", testservice.WithHeader("X-Account", "acme")).Body)
		require.Equal(t, "acme"+delimiter+"eu", svc.Post("k", "b", testservice.WithHeader("X-Account", "acme"+delimiter+"eu")).Body)
	}
}

func TestKeyOfAnotherEndpointIsNotReplayed(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Method+" "+r.URL.EscapedPath())
	})
	for _, target := range []string{"/pay", "/refund", "/pay/", "/pay%2F", "/PAY"} {
		for _, method := range []string{"POST", "PATCH"} {
			require.Equal(t, method+" "+target, svc.Send(target, "k", "b", testservice.WithMethod(method)).Body)
		}
	}
}

func TestQueryIsPartOfTheFingerprint(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{}.Serve(t, testservice.Echo)
	require.Equal(t, http.StatusCreated, svc.Send("/pay?amount=1", "k", "").Status)
	testservice.RequireProblem(t, svc.Send("/pay?amount=100", "k", ""), http.StatusConflict, "key-reused")
}

func TestEmptyBodyHasAFingerprintToo(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{}.Serve(t, testservice.Echo)
	require.Equal(t, http.StatusCreated, svc.Post("k", "").Status)
	testservice.RequireProblem(t, svc.Post("k", "b"), http.StatusConflict, "key-reused")
	require.Equal(t, http.StatusCreated, svc.Post("l", "b").Status)
	testservice.RequireProblem(t, svc.Post("l", ""), http.StatusConflict, "key-reused")
}

func TestPlainTextAnswerIsStored(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{}.Serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, "ok")
	})
	testservice.RequireReplay(t, svc.Post("k", "b"), svc.Post("k", "b"))
}

func TestFreshCredentialsGetAFreshAnswer(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "fresh" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	})
	require.Equal(t, http.StatusUnauthorized, svc.Post("k", "b", testservice.WithHeader("Authorization", "stale")).Status)
	require.Equal(t, http.StatusOK, svc.Post("k", "b", testservice.WithHeader("Authorization", "fresh")).Status)
}

func TestRepeatedTransientErrorLeavesNothingPending(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{}.Serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	for range 5 {
		require.Equal(t, http.StatusInternalServerError, svc.Post("k", "b").Status)
	}
	require.EqualValues(t, 5, svc.Runs.Load())
}

// Headers that change between the attempts of a client do not make a different request.
func TestRetryWithOtherTraceHeadersIsReplayed(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{}.Serve(t, testservice.Echo)
	attempt := func(n string) testservice.Answer {
		return svc.Post("k", "b", testservice.WithHeader("Traceparent", n), testservice.WithHeader("X-Retry-Count", n), testservice.WithHeader("User-Agent", n))
	}
	testservice.RequireReplay(t, attempt("0"), attempt("1"))
}

// An empty body is replayed, because the record distinguishes an empty body from an omitted body.
func TestEmptyAnswerIsReplayed(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{Opts: idempotency.Options{MaxResponse: 1}}.Serve(t, func(http.ResponseWriter, *http.Request) {})
	testservice.RequireReplay(t, svc.Post("k", "b"), svc.Post("k", "b"))
}

// A handler that copies from a connection or a file must not bypass the recorder.
func TestLargeFileIsRecordedWhole(t *testing.T) {
	t.Parallel()
	content := strings.Repeat("0123456789abcdef", 10_000)
	svc := testservice.Setup{}.Serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		n, err := io.Copy(w, io.LimitReader(strings.NewReader(content+"rest"), int64(len(content))))
		assert.NoError(t, err)
		assert.EqualValues(t, len(content), n)
	})
	first := svc.Post("k", "b")
	require.Equal(t, http.StatusCreated, first.Status)
	require.Equal(t, content, first.Body)
	testservice.RequireReplay(t, first, svc.Post("k", "b"))
}

// A second middleware, further out, may record the answer of an inner middleware.
func TestNestedMiddlewaresReplayTheSameAnswer(t *testing.T) {
	t.Parallel()
	outer, err := idempotency.New(testservice.NewSpyStore(), idempotency.SingleUser, idempotency.Options{})
	require.NoError(t, err)
	svc := testservice.Setup{Outer: outer.Handler}.Serve(t, testservice.Echo)
	testservice.RequireReplay(t, svc.Post("k", "b"), svc.Post("k", "b"))
	require.EqualValues(t, 1, svc.Runs.Load())
	require.EqualValues(t, 1, svc.Store.Begins.Load())
}

// The files of a form are removed when the request has ended, as a server does without the middleware.
func TestFilesOfFormsAreRemoved(t *testing.T) {
	t.Parallel()
	var file string
	svc := testservice.Setup{}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
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
	answer := svc.Post("k", body, testservice.WithHeader("Content-Type", "multipart/form-data; boundary=x"))
	require.Equal(t, http.StatusOK, answer.Status)
	require.NotEmpty(t, file)
	require.Eventually(t, func() bool {
		_, err := os.Stat(file)
		return errors.Is(err, fs.ErrNotExist)
	}, 5*time.Second, time.Millisecond)
}

// Calls without an operation get random keys, because another system would take calls with a shared key for the
// same operation.
func TestDownstreamKeysWithoutAnOperation(t *testing.T) {
	t.Parallel()
	none, ok := idempotency.FromContext(t.Context())
	require.False(t, ok)
	require.NotEqual(t, none.DownstreamKey("charge"), none.DownstreamKey("charge"))
	one := idempotency.Operation{ID: uuid.New()}
	require.Equal(t, one.DownstreamKey("charge"), one.DownstreamKey("charge"))
	require.NotEqual(t, one.DownstreamKey("charge"), one.DownstreamKey("mail"))
}
