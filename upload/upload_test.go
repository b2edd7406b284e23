package upload_test

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime/multipart"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/upload"
)

func TestMain(m *testing.M) { testservice.Main(m) }

// sha returns the Content-Digest of body by SHA-256.
func sha(body string) string {
	sum := sha256.Sum256([]byte(body))
	return "sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
}

func sha512Of(body string) string {
	sum := sha512.Sum512([]byte(body))
	return "sha-512=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
}

// service is a guarded handler on a real server.
type service struct {
	t       *testing.T
	url     string
	runs    atomic.Int64
	journal testservice.Journal
}

func serve(t *testing.T, opts idempotency.Options, handler http.HandlerFunc, outer ...func(http.Handler) http.Handler) *service {
	t.Helper()
	s := &service{t: t}
	opts.Observer, opts.Logger = s.journal.Observe, slog.New(slog.DiscardHandler)
	if opts.MaxBody == 0 {
		opts.MaxBody = 1024
	}
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	idem, err := upload.New(store, idempotency.SingleUser, opts)
	require.NoError(t, err)
	testservice.ShutdownAtEnd(t, idem)
	guarded := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.runs.Add(1)
		handler(w, r)
	}))
	for _, wrap := range outer {
		guarded = wrap(guarded)
	}
	s.url = testservice.Listen(t, guarded, false).URL
	return s
}

// send sends body with digest. An empty digest is left out.
func (s *service) send(key, digest, body string) testservice.Answer {
	s.t.Helper()
	return s.do(key, digest, strings.NewReader(body))
}

func (s *service) do(key, digest string, body io.Reader, edits ...testservice.Edit) testservice.Answer {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.url, body)
	require.NoError(s.t, err)
	r.GetBody = nil
	r.Header.Set("Idempotency-Key", key)
	if digest != "" {
		r.Header.Set("Content-Digest", digest)
	}
	for _, edit := range edits {
		edit(r)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return testservice.Answer{Err: err}
	}
	defer resp.Body.Close()
	resp.Header.Del("Date")
	b, err := io.ReadAll(resp.Body)
	return testservice.Answer{Status: resp.StatusCode, Header: resp.Header, Body: string(b), Err: err}
}

// count answers 201 with the number of bytes of the body. If the body breaks off, count answers with an error.
func count(w http.ResponseWriter, r *http.Request) {
	n, err := io.Copy(io.Discard, r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusCreated)
	fmt.Fprint(w, n)
}

// large has many times MaxBody.
var large = strings.Repeat("a page of the scan\n", 1<<16)

func TestLargeBodyIsStreamed(t *testing.T) {
	t.Parallel()
	s := serve(t, idempotency.Options{MaxBodies: 2048}, count)
	first := s.send("1", sha(large), large)
	require.Equal(t, http.StatusCreated, first.Status, first.Body)
	require.Equal(t, fmt.Sprint(len(large)), first.Body)
	testservice.RequireReplay(t, first, s.send("1", sha(large), large))
	testservice.RequireReplay(t, first, s.send("1", sha(large), "")) // no byte of the body need be sent again
	require.EqualValues(t, 1, s.runs.Load())

	testservice.RequireProblem(t, s.send("1", sha("other"), "other"), http.StatusConflict, "key-reused")
	testservice.RequireProblem(t, s.send("1", sha512Of(large), large), http.StatusConflict, "key-reused")
	testservice.RequireProblem(t, s.send("2", "", large), http.StatusRequestEntityTooLarge, "body-too-large")
	require.EqualValues(t, 1, s.runs.Load())
}

// The handler reads the start of the body while the client still sends the rest.
func TestHandlerReadsAsTheBodyArrives(t *testing.T) {
	t.Parallel()
	half := make(chan struct{})
	s := serve(t, idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
		_, err := io.ReadFull(r.Body, make([]byte, len(large)/2))
		if err != nil {
			t.Error(err)
		}
		close(half)
		count(w, r)
	})
	reader, writer := io.Pipe()
	go func() {
		_, err := io.WriteString(writer, large[:len(large)/2])
		<-half
		_, rest := io.WriteString(writer, large[len(large)/2:])
		_ = writer.CloseWithError(errors.Join(err, rest))
	}()
	require.Equal(t, http.StatusCreated, s.do("1", sha(large), reader).Status)
}

// Whatever a handler does with a wrong body, its answer is not kept, and a retry with the right body runs the handler.
func TestWrongBody(t *testing.T) {
	t.Parallel()
	for name, handler := range map[string]http.HandlerFunc{
		"the handler fails": count,
		"the handler does not look": func(w http.ResponseWriter, r *http.Request) {
			n, _ := io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Length", fmt.Sprint(len(fmt.Sprint(n))))
			w.Header().Set("Location", "/scans/1")
			w.WriteHeader(http.StatusCreated)
			fmt.Fprint(w, n)
		},
		"the handler reads nothing": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusCreated)
			fmt.Fprint(w, len(large))
		},
		"the handler closes the body, and reads nothing": func(w http.ResponseWriter, r *http.Request) {
			_ = r.Body.Close()
			w.WriteHeader(http.StatusCreated)
		},
		"the handler reads a part": func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadFull(r.Body, make([]byte, 10))
			fmt.Fprint(w, "ok")
		},
		"the handler is silent":  func(http.ResponseWriter, *http.Request) {},
		"the handler flushes":    func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush() },
		"the handler has a hint": func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(103); count(w, r) },
		"the handler keeps its answer, whatever it is": func(w http.ResponseWriter, r *http.Request) {
			idempotency.Decide(r.Context(), idempotency.Keep)
			count(w, r)
		},
		"the handler keeps its answer at the end": func(w http.ResponseWriter, r *http.Request) {
			count(w, r)
			idempotency.Decide(r.Context(), idempotency.Tombstone)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, idempotency.Options{}, handler)
			wrong := large[1:]
			got := s.send("1", sha(large), wrong)
			testservice.RequireProblem(t, got, http.StatusBadRequest, "digest-mismatching-values")
			require.NotContains(t, got.Header, "Location")
			require.Equal(t, idempotency.OutcomeReleased, s.journal.Last(t).Outcome)
			got = s.send("1", sha(large), large)
			require.Less(t, got.Status, 300, got.Body)
			require.False(t, got.Replayed())
			require.EqualValues(t, 2, s.runs.Load())
		})
	}
}

// A handler may answer 400 or more before the end of the body. Its answer is kept only if the whole body was read and
// right.
func TestRefusalsOfTheHandler(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		reads bool
		kept  bool
	}{
		"to the whole body":       {reads: true, kept: true},
		"before the body arrives": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
				if row.reads {
					_, _ = io.Copy(io.Discard, r.Body)
				}
				http.Error(w, "no such patient", http.StatusUnprocessableEntity)
			})
			for i := range 2 {
				got := s.send("1", sha("a scan"), "a scan")
				require.Equal(t, http.StatusUnprocessableEntity, got.Status)
				require.Equal(t, row.kept && i == 1, got.Replayed())
			}
		})
	}
}

// ProblemBase applies to refusals of bodies as well.
func TestProblemBase(t *testing.T) {
	t.Parallel()
	s := serve(t, idempotency.Options{ProblemBase: "https://api.example.com/problems/"}, count)
	require.Contains(t, s.send("a b", sha("a"), "a").Body, `"type":"https://api.example.com/problems/key-invalid"`)
	testservice.RequireProblem(t, s.send("1", sha("a"), "b"), http.StatusBadRequest, "digest-mismatching-values") // registered
}

// If the handler decides Unknown, the decision stands even if the body was wrong.
func TestUnknownOutcomeOfAWrongBody(t *testing.T) {
	t.Parallel()
	s := serve(t, idempotency.Options{Abandoned: idempotency.Refuse, Lease: time.Second}, func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			idempotency.Decide(r.Context(), idempotency.Unknown)
		}
	})
	testservice.RequireProblem(t, s.send("1", sha("a"), "b"), http.StatusBadRequest, "digest-mismatching-values")
	require.Eventually(t, func() bool {
		return strings.Contains(s.send("1", sha("a"), "a").Body, "#outcome-unknown")
	}, 20*time.Second, 100*time.Millisecond)
	require.EqualValues(t, 1, s.runs.Load())
}

// If a client hangs up in the middle of the body, its retry runs the handler.
func TestBodyBreaksOff(t *testing.T) {
	t.Parallel()
	s := serve(t, idempotency.Options{}, count)
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	require.NoError(t, err)
	_, err = fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\nIdempotency-Key: 1\r\nContent-Digest: %s\r\nContent-Length: %d\r\n\r\n%s",
		sha(large), len(large), large[:len(large)/2])
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	require.Eventually(t, func() bool { return len(s.journal.All()) == 1 }, 10*time.Second, time.Millisecond)
	require.Equal(t, idempotency.OutcomeReleased, s.journal.Last(t).Outcome)
	got := s.send("1", sha(large), large)
	require.Equal(t, http.StatusCreated, got.Status)
	require.False(t, got.Replayed())
}

func TestLimits(t *testing.T) {
	t.Parallel()
	limit := func(next http.Handler) http.Handler { return http.MaxBytesHandler(next, 1<<10) }
	t.Run("outside", func(t *testing.T) {
		t.Parallel()
		s := serve(t, idempotency.Options{}, count, limit)
		testservice.RequireProblem(t, s.send("1", sha(large), large), http.StatusRequestEntityTooLarge, "body-too-large")
	})
	t.Run("inside", func(t *testing.T) {
		t.Parallel()
		s := serve(t, idempotency.Options{}, limit(http.HandlerFunc(count)).ServeHTTP)
		got := s.send("1", sha(large), large)
		require.Equal(t, http.StatusInternalServerError, got.Status, "the handler's own answer")
	})
}

func TestFields(t *testing.T) {
	t.Parallel()
	const body = "a scan"
	for name, row := range map[string]struct {
		lines []string
		want  string // a problem; empty: it is carried out
	}{
		"sha-256":                         {lines: []string{sha(body)}},
		"sha-512":                         {lines: []string{sha512Of(body)}},
		"both":                            {lines: []string{sha(body) + " ,\t" + sha512Of(body)}},
		"two lines":                       {lines: []string{sha(body), sha512Of(body)}},
		"one of two is wrong":             {lines: []string{sha(body), sha512Of("other")}, want: "digest-mismatching-values"},
		"the last of two counts":          {lines: []string{sha("other"), sha(body)}},
		"and not the first":               {lines: []string{sha(body), sha("other")}, want: "digest-mismatching-values"},
		"others are left out":             {lines: []string{"md5=:CY9rzUYh03PK3k6DJie09g==:, " + sha(body)}},
		"of others only":                  {lines: []string{"md5=:CY9rzUYh03PK3k6DJie09g==:"}},
		"too short":                       {lines: []string{"sha-256=:CY9rzUYh03PK3k6DJie09g==:"}, want: "digest-invalid-values"},
		"of nothing":                      {lines: []string{"sha-256=::"}, want: "digest-invalid-values"},
		"no base64":                       {lines: []string{"sha-256=:CY9rzUYh03PK3k6DJie09g=:"}, want: "body-invalid"},
		"in quotes":                       {lines: []string{`sha-256="X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE="`}, want: "body-invalid"},
		"of the older field Digest":       {lines: []string{"SHA-256=X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE="}, want: "body-invalid"},
		"empty":                           {lines: []string{""}, want: "body-invalid"},
		"with a comma too many":           {lines: []string{sha(body) + ","}, want: "body-invalid"},
		"with a parameter":                {lines: []string{sha(body) + ";a=1"}, want: "body-invalid"},
		"a digest that is not the body's": {lines: []string{sha("other")}, want: "digest-mismatching-values"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, idempotency.Options{}, count)
			got := s.do("1", "", strings.NewReader(body), testservice.WithHeader("Content-Digest", row.lines...))
			if row.want != "" {
				testservice.RequireProblem(t, got, http.StatusBadRequest, row.want)
				return
			}
			require.Equal(t, http.StatusCreated, got.Status, got.Body)
			require.Equal(t, fmt.Sprint(len(body)), got.Body)
		})
	}
}

// The example of RFC 9530, section 2, is accepted.
func TestExampleOfTheRFC(t *testing.T) {
	t.Parallel()
	s := serve(t, idempotency.Options{}, count)
	got := s.send("1", "sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=:", "{\"hello\": \"world\"}\n")
	require.Equal(t, http.StatusCreated, got.Status, got.Body)
}

// Requests that are not guarded pass unchanged, whatever their digest says.
func TestUnguardedRequests(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]testservice.Edit{
		"no key": func(r *http.Request) { r.Header.Del("Idempotency-Key") },
		"PUT":    testservice.WithMethod(http.MethodPut),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
				assert.EqualValues(t, 6, r.ContentLength)
				count(w, r)
			})
			require.Equal(t, http.StatusCreated, s.do("1", sha("other"), strings.NewReader("a scan"), edit).Status)
			require.Equal(t, http.StatusCreated, s.do("1", "sha-256", strings.NewReader("a scan"), edit).Status)
			require.EqualValues(t, 2, s.runs.Load())
		})
	}
}

// The server removes the temporary files of a form, as without the middleware.
func TestFormIsRemoved(t *testing.T) {
	t.Parallel()
	var body strings.Builder
	form := multipart.NewWriter(&body)
	part, err := form.CreateFormFile("scan", "scan.txt")
	require.NoError(t, err)
	_, err = io.WriteString(part, large)
	require.NoError(t, err)
	require.NoError(t, form.Close())
	for name, key := range map[string]testservice.Edit{
		"guarded": testservice.WithHeader("Idempotency-Key", "1"),
		"no key":  func(r *http.Request) { r.Header.Del("Idempotency-Key") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			removesForm(t, body.String(), form.FormDataContentType(), key)
		})
	}
}

func removesForm(t *testing.T, body, media string, key testservice.Edit) {
	t.Helper()
	files := make(chan string, 1)
	s := serve(t, idempotency.Options{}, func(_ http.ResponseWriter, r *http.Request) {
		err := r.ParseMultipartForm(0) // all of it goes to the disk
		file, header, opened := r.FormFile("scan")
		if !assert.NoError(t, errors.Join(err, opened)) {
			return
		}
		assert.EqualValues(t, len(large), header.Size)
		assert.NoError(t, file.Close())
		files <- file.(*os.File).Name()
	}, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			next.ServeHTTP(w, r)
			assert.NoError(t, r.MultipartForm.RemoveAll()) // as the server does
		})
	})
	got := s.do("1", sha(body), strings.NewReader(body), testservice.WithHeader("Content-Type", media), key)
	require.Equal(t, http.StatusOK, got.Status, got.Body)
	require.NoFileExists(t, <-files)
}

// A handler that panics gives no answer.
func TestPanic(t *testing.T) {
	t.Parallel()
	s := serve(t, idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
		count(w, r)
		panic(http.ErrAbortHandler)
	})
	for range 2 {
		require.Error(t, s.send("1", sha(large), large).Err)
	}
	require.EqualValues(t, 2, s.runs.Load())
}

// A second Middleware within the first one sees the original request, and the handler runs once.
func TestMountedTwice(t *testing.T) {
	t.Parallel()
	store, err := upload.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser, idempotency.Options{})
	require.NoError(t, err)
	s := serve(t, idempotency.Options{}, store.Handler(http.HandlerFunc(count)).ServeHTTP)
	first := s.send("1", sha(large), large)
	require.Equal(t, http.StatusCreated, first.Status, first.Body)
	testservice.RequireReplay(t, first, s.send("1", sha(large), large))
}

func TestErrorHandlerGetsTheRefusal(t *testing.T) {
	t.Parallel()
	var got error
	s := serve(t, idempotency.Options{ErrorHandler: func(w http.ResponseWriter, _ *http.Request, e *idempotency.Error) {
		got = e
		w.WriteHeader(e.Status)
	}}, count)
	require.Equal(t, http.StatusBadRequest, s.send("1", sha(large), "other").Status)
	require.ErrorIs(t, got, idempotency.ErrBodyInvalid)
	require.ErrorContains(t, got, "differs from its Content-Digest")
	require.Equal(t, http.StatusBadRequest, s.send("2", "sha-256=1", "other").Status)
	require.ErrorIs(t, got, idempotency.ErrBodyInvalid)
	require.ErrorContains(t, got, "no dictionary of byte sequences")
}

func TestFaultsOfTheOptions(t *testing.T) {
	t.Parallel()
	_, err := upload.New(nil, nil, idempotency.Options{})
	_, want := idempotency.New(nil, nil, idempotency.Options{})
	require.Equal(t, want, err)
}

// A Fingerprint of the options still gets bodies without a digest.
func TestOwnFingerprint(t *testing.T) {
	t.Parallel()
	s := serve(t, idempotency.Options{Fingerprint: func(*http.Request, []byte) (idempotency.Fingerprint, error) {
		return idempotency.Fingerprint{1}, nil
	}}, count)
	first := s.send("1", "", "one")
	testservice.RequireReplay(t, first, s.send("1", "", "two"))
	testservice.RequireProblem(t, s.send("1", sha("two"), "two"), http.StatusConflict, "key-reused")
}

// A handler without an answer after its deadline leaves the answer to outer middleware, even if the body was wrong.
func TestSilentAfterTheDeadline(t *testing.T) {
	t.Parallel()
	s := serve(t, idempotency.Options{}, func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
	}, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), 20*time.Millisecond)
			defer cancel()
			next.ServeHTTP(w, r.WithContext(ctx))
			w.WriteHeader(http.StatusGatewayTimeout)
		})
	})
	require.Equal(t, http.StatusGatewayTimeout, s.send("1", sha(large), "other").Status)
}

// A handler that panics has an unknown outcome, even if the body was wrong, because the handler may have acted before.
func TestPanicAfterAWrongBody(t *testing.T) {
	t.Parallel()
	s := serve(t, idempotency.Options{Abandoned: idempotency.Refuse, Lease: time.Second}, func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		assert.Error(t, err)
		panic(http.ErrAbortHandler)
	})
	require.Error(t, s.send("1", sha("a"), "b").Err)
	require.Eventually(t, func() bool {
		return strings.Contains(s.send("1", sha("a"), "a").Body, "#outcome-unknown")
	}, 20*time.Second, 100*time.Millisecond)
	require.EqualValues(t, 1, s.runs.Load())
}
