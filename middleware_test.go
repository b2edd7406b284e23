package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/fingerprint"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

func TestMain(m *testing.M) { testservice.Main(m) }

func TestUnguardedRequestReachesTheHandlerUntouched(t *testing.T) {
	t.Parallel()
	type seen struct {
		writer http.ResponseWriter
		body   io.ReadCloser
	}
	for name, edits := range map[string][]testservice.Edit{
		"no key":               nil,
		"other method":         {testservice.WithMethod(http.MethodPut), testservice.WithHeader("Idempotency-Key", "k")},
		"GET with invalid key": {testservice.WithMethod(http.MethodGet), testservice.WithHeader("Idempotency-Key", "", "")},
		"QUERY with a body":    {testservice.WithMethod("QUERY"), testservice.WithHeader("Idempotency-Key", "k")},
	} {
		t.Run(name, func(t *testing.T) {
			var outside, inside seen
			svc := testservice.Setup{Outer: func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					outside = seen{w, r.Body}
					next.ServeHTTP(w, r)
				})
			}}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
				inside = seen{w, r.Body}
				_, ok := idempotency.FromContext(r.Context())
				assert.False(t, ok)
			})
			for range 2 {
				require.Equal(t, http.StatusOK, svc.Post("", "b", edits...).Status)
				require.True(t, outside == inside, "wrapped: %T, %T", inside.writer, inside.body)
			}
			require.EqualValues(t, 2, svc.Runs.Load())
			require.Zero(t, svc.Store.Begins.Load())
			require.Empty(t, svc.Journal.All())
		})
	}
}

func TestRefusedBeforeTheStoreIsAsked(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	user := func(name string, err error) idempotency.UserFunc {
		return func(*http.Request) (string, error) { return name, err }
	}
	chunked := func(r *http.Request) { r.ContentLength = -1 }
	key := testservice.WithHeader("Idempotency-Key", "k")
	keys := func(lines ...string) []testservice.Edit {
		return []testservice.Edit{testservice.WithHeader("Idempotency-Key", lines...)}
	}
	small := idempotency.Options{MaxBody: 4}
	for _, row := range []struct {
		name     string
		setup    testservice.Setup
		edits    []testservice.Edit
		body     string
		status   int
		code     string
		is       error
		bodyRead bool
	}{
		{"no key", testservice.Setup{Opts: idempotency.Options{Required: true}}, nil, "b",
			400, "key-missing", idempotency.ErrKeyMissing, false},
		{"two lines", testservice.Setup{}, keys("k", "k"), "b", 400, "key-invalid", idempotency.ErrKeyInvalid, false},
		{"empty", testservice.Setup{}, keys(""), "b", 400, "key-invalid", idempotency.ErrKeyInvalid, false},
		{"too long", testservice.Setup{}, keys(strings.Repeat("k", 256)), "b", 400, "key-invalid", idempotency.ErrKeyInvalid, false},
		{"malformed", testservice.Setup{}, keys(`"k`), "b", 400, "key-invalid", idempotency.ErrKeyInvalid, false},
		{"not valid here", testservice.Setup{Opts: idempotency.Options{ValidateKey: func(string) error { return broken }}},
			[]testservice.Edit{key}, "b", 400, "key-invalid", broken, false},
		{"user fails", testservice.Setup{User: user("alice", broken)}, []testservice.Edit{key}, "b", 401, "user-unknown", broken, false},
		{"user fails for a key of its own", testservice.Setup{User: user("", idempotency.ErrKeyInvalid)}, []testservice.Edit{key}, "b",
			401, "user-unknown", idempotency.ErrUserUnknown, false},
		{"user empty", testservice.Setup{User: user("", nil)}, []testservice.Edit{key}, "b", 401, "user-unknown", idempotency.ErrUserUnknown, false},
		{"body declared too large", testservice.Setup{Opts: small}, []testservice.Edit{key}, "bytes",
			413, "body-too-large", idempotency.ErrBodyTooLarge, false},
		{"body too large", testservice.Setup{Opts: small}, []testservice.Edit{key, chunked}, "bytes",
			413, "body-too-large", idempotency.ErrBodyTooLarge, true},
		{"body limited by outer middleware", testservice.Setup{Outer: func(next http.Handler) http.Handler {
			return http.MaxBytesHandler(next, 4)
		}}, []testservice.Edit{key}, "bytes", 413, "body-too-large", idempotency.ErrBodyTooLarge, true},
		{"body breaks off", testservice.Setup{}, []testservice.Edit{key, func(r *http.Request) {
			r.Body = io.NopCloser(io.MultiReader(r.Body, iotest.ErrReader(io.ErrUnexpectedEOF)))
		}}, "b", 400, "body-invalid", io.ErrUnexpectedEOF, true},
		{"body without fingerprint", testservice.Setup{Opts: idempotency.Options{Fingerprint: fingerprint.JSON}},
			[]testservice.Edit{key, testservice.WithHeader("Content-Type", mediaTypeJSON)}, "{",
			400, "body-invalid", idempotency.ErrBodyInvalid, true},
		{"number without fingerprint", testservice.Setup{Opts: idempotency.Options{Fingerprint: fingerprint.JSON}},
			[]testservice.Edit{key, testservice.WithHeader("Content-Type", mediaTypeJSON)}, `{"amount":1e400}`,
			400, "body-invalid", idempotency.ErrBodyInvalid, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			svc := row.setup.Guard(t, testservice.Echo)
			var read atomic.Bool
			row.edits = append(row.edits, func(r *http.Request) {
				r.Body = io.NopCloser(io.TeeReader(r.Body, writerFunc(func(p []byte) { read.Store(true) })))
			})
			testservice.RequireProblem(t, svc.Call("", row.body, row.edits...), row.status, row.code)
			require.Equal(t, row.bodyRead, read.Load(), "body read")
			require.Zero(t, svc.Runs.Load())
			require.Zero(t, svc.Store.Begins.Load())
			require.Equal(t, []idempotency.Outcome{idempotency.OutcomeRejected}, svc.Journal.Outcomes())
			require.ErrorIs(t, svc.Journal.Last(t).Err, row.is)
		})
	}
}

// writerFunc is a function used as an io.Writer.
type writerFunc func([]byte)

func (f writerFunc) Write(p []byte) (int, error) { f(p); return len(p), nil }

func TestPanicOfTheUserFunctionGoesOn(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{User: func(*http.Request) (string, error) { panic("who?") }}.Guard(t, testservice.Echo)
	require.PanicsWithValue(t, "who?", func() { svc.Call("k", "b") })
	require.Zero(t, svc.Runs.Load())
	require.Zero(t, svc.Store.Begins.Load())
}

func TestRetryGetsTheStoredAnswer(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		op, ok := idempotency.FromContext(r.Context())
		assert.True(t, ok)
		assert.Equal(t, 1, op.Attempt)
		assert.Equal(t, idempotency.Key{User: "single", Endpoint: "POST /payments", ID: "k"}, op.Key)
		w.Header().Set("Location", "/payments/"+op.ID.String())
		testservice.Echo(w, r)
	})
	first := svc.Post("k", "b")
	require.Equal(t, http.StatusCreated, first.Status)
	require.Equal(t, "b", first.Body)
	require.NotContains(t, first.Header, "Idempotent-Replayed")
	for range 3 {
		testservice.RequireReplay(t, first, svc.Post("k", "b"))
	}
	testservice.RequireReplay(t, first, svc.Post(`"k"`, "b"))
	require.EqualValues(t, 1, svc.Runs.Load())
	require.EqualValues(t, 5, svc.Store.Begins.Load())
	require.EqualValues(t, 1, svc.Store.Completes.Load())
	require.Equal(t, idempotency.OutcomeExecuted, svc.Journal.All()[0].Outcome)
	require.Equal(t, idempotency.OutcomeReplayed, svc.Journal.Last(t).Outcome)
}

func TestAnswerIsStoredBeforeItIsSent(t *testing.T) {
	t.Parallel()
	store := testservice.NewSpyStore()
	completing, stored := make(chan struct{}), make(chan struct{})
	store.OnComplete = func(_ context.Context, _ int64, step func() error) error {
		close(completing)
		<-stored
		return step()
	}
	svc := testservice.Setup{Store: store}.Serve(t, testservice.Echo)
	answers := make(chan testservice.Answer, 1)
	go func() { answers <- svc.Post("k", "b") }()
	<-completing
	select {
	case got := <-answers:
		t.Fatalf("answered before it was stored: %+v", got)
	case <-time.After(50 * time.Millisecond):
	}
	close(stored)
	require.Equal(t, http.StatusCreated, (<-answers).Status)
}

// Nothing of the answer is written before the answer is stored. The test looks at the ResponseWriter, because a
// client waits for the end of an answer, and cannot tell that a part came early.
func TestNothingIsSentBeforeItIsStored(t *testing.T) {
	t.Parallel()
	store, w := testservice.NewSpyStore(), httptest.NewRecorder()
	store.OnComplete = func(_ context.Context, _ int64, step func() error) error {
		assert.Empty(t, w.Header())
		assert.Empty(t, w.Body.String())
		assert.False(t, w.Flushed)
		return step()
	}
	r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader("b"))
	r.Header.Set("Idempotency-Key", "k")
	testservice.Setup{Store: store}.Guard(t, testservice.Echo).Handler.ServeHTTP(w, r)
	require.Equal(t, http.StatusCreated, w.Code)
	require.Equal(t, "b", w.Body.String())
}

func TestDuplicateOfARunningRequestIsRefused(t *testing.T) {
	t.Parallel()
	running, finish := make(chan struct{}), make(chan struct{})
	svc := testservice.Setup{}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		close(running)
		<-finish
		testservice.Echo(w, r)
	})
	answers := make(chan testservice.Answer, 1)
	go func() { answers <- svc.Post("k", "b") }()
	<-running
	testservice.RequireProblem(t, svc.Post("k", "b"), http.StatusConflict, "in-progress")
	require.Equal(t, idempotency.OutcomeInProgress, svc.Journal.Last(t).Outcome)
	testservice.RequireProblem(t, svc.Post("k", "c"), http.StatusConflict, "key-reused")
	close(finish)
	testservice.RequireReplay(t, <-answers, svc.Post("k", "b"))
	require.EqualValues(t, 1, svc.Runs.Load())
}

func TestKeyOfAnotherRequestIsRefusedAsReused(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusOK, http.StatusInternalServerError} { // completed, released
		svc := testservice.Setup{}.Guard(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		first := svc.Call("k", "b")
		testservice.RequireProblem(t, svc.Call("k", "c"), http.StatusConflict, "key-reused")
		require.Equal(t, idempotency.OutcomeKeyReused, svc.Journal.Last(t).Outcome)
		require.EqualValues(t, 1, svc.Runs.Load())
		require.Equal(t, first.Status, svc.Call("k", "b").Status)
	}
}

func TestAnswerOverTheLimitIsNotExecutedAgain(t *testing.T) {
	t.Parallel()
	const limit = 1000
	for _, stream := range []bool{false, true} {
		for _, chunk := range []int{1, 700, limit + 1, 5 * limit} {
			svc := testservice.Setup{Opts: idempotency.Options{MaxResponse: limit, Stream: stream}}.Serve(t,
				func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("X-Id", "1")
					w.WriteHeader(http.StatusAccepted)
					for written := 0; written < 5*limit; written += chunk {
						n, err := io.WriteString(w, strings.Repeat("x", min(chunk, 5*limit-written)))
						assert.NoError(t, err)
						assert.Equal(t, min(chunk, 5*limit-written), n)
					}
				})
			first := svc.Post("k", "b")
			require.Equal(t, http.StatusAccepted, first.Status)
			require.Equal(t, strings.Repeat("x", 5*limit), first.Body)
			require.Equal(t, "1", first.Header.Get("X-Id"))
			retry := svc.Post("k", "b")
			require.Equal(t, http.StatusAccepted, testservice.RequireProblem(t, retry, http.StatusConflict, "not-replayable").OriginalStatus)
			require.Equal(t, idempotency.OutcomeNotReplayable, svc.Journal.Last(t).Outcome)
			testservice.RequireProblem(t, svc.Post("k", "c"), http.StatusConflict, "key-reused")
			require.EqualValues(t, 1, svc.Runs.Load())
			require.Zero(t, svc.Store.Releases.Load())
		}
	}
}

func TestAnswerAtTheLimitIsReplayed(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{Opts: idempotency.Options{MaxResponse: 4}}.Guard(t, testservice.Echo)
	testservice.RequireReplay(t, svc.Call("k", "1234"), svc.Call("k", "1234"))
}

func TestOversizedAnswerIsRecordedBeforeItsFirstByteIsSent(t *testing.T) {
	t.Parallel()
	store := testservice.NewSpyStore()
	var written atomic.Bool
	store.OnComplete = func(_ context.Context, _ int64, step func() error) error {
		assert.False(t, written.Load())
		return step()
	}
	svc := testservice.Setup{Store: store, Opts: idempotency.Options{MaxResponse: 4}, Outer: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			next.ServeHTTP(observedWriter{w, func() { written.Store(true) }}, r)
		})
	}}.Guard(t, testservice.Echo)
	require.Equal(t, "12345", svc.Call("k", "12345").Body)
	require.True(t, written.Load())
	require.EqualValues(t, 1, store.Completes.Load())
}

// observedWriter calls beforeWrite before each write.
type observedWriter struct {
	http.ResponseWriter
	beforeWrite func()
}

func (w observedWriter) WriteHeader(status int) {
	w.beforeWrite()
	w.ResponseWriter.WriteHeader(status)
}

func (w observedWriter) Write(p []byte) (int, error) {
	w.beforeWrite()
	return w.ResponseWriter.Write(p)
}

func TestCrashedAttemptIsTakenOverWhenItsLeaseHasLapsed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var op idempotency.Operation
		svc := testservice.Setup{}.Guard(t, func(w http.ResponseWriter, r *http.Request) {
			op, _ = idempotency.FromContext(r.Context())
			testservice.Echo(w, r)
		})
		testservice.Crash(t, svc, "k", "b", time.Minute)
		time.Sleep(time.Minute - 1)
		testservice.RequireProblem(t, svc.Call("k", "b"), http.StatusConflict, "in-progress")
		time.Sleep(time.Nanosecond)
		testservice.RequireProblem(t, svc.Call("k", "c"), http.StatusConflict, "key-reused")
		testservice.RequireReplay(t, svc.Call("k", "b"), svc.Call("k", "b"))
		require.Equal(t, op.Key.OperationID(), op.ID)
		require.Equal(t, 2, op.Attempt)
	})
}

func TestCrashedAttemptIsNeverRepeatedIfAbandonedIsRefuse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		svc := testservice.Setup{Opts: idempotency.Options{Abandoned: idempotency.Refuse}}.Guard(t, testservice.Echo)
		testservice.Crash(t, svc, "k", "b", time.Minute)
		testservice.RequireProblem(t, svc.Call("k", "b"), http.StatusConflict, "in-progress")
		time.Sleep(time.Minute)
		testservice.RequireProblem(t, svc.Call("k", "b"), http.StatusConflict, "outcome-unknown")
		require.Equal(t, idempotency.OutcomeUnknown, svc.Journal.Last(t).Outcome)
		testservice.RequireProblem(t, svc.Call("k", "c"), http.StatusConflict, "key-reused")
		require.Zero(t, svc.Runs.Load())
	})
}

func TestAnswerThatIsNotStorableMayBeTriedAgain(t *testing.T) {
	t.Parallel()
	for _, stream := range []bool{false, true} {
		var operations []idempotency.Operation
		opts := idempotency.Options{Stream: stream, MaxResponse: 5000}
		svc := testservice.Setup{Opts: opts}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
			op, _ := idempotency.FromContext(r.Context())
			operations = append(operations, op)
			if op.Attempt < 3 {
				http.Error(w, strings.Repeat("busy", 1000*op.Attempt), http.StatusServiceUnavailable)
				return
			}
			testservice.Echo(w, r)
		})
		for attempt := range 2 { // the second answer is over the limit as well
			got := svc.Post("k", "b")
			require.Equal(t, http.StatusServiceUnavailable, got.Status)
			require.Equal(t, strings.Repeat("busy", 1000*(attempt+1))+"\n", got.Body)
			require.Equal(t, idempotency.OutcomeReleased, svc.Journal.Last(t).Outcome)
		}
		testservice.RequireReplay(t, svc.Post("k", "b"), svc.Post("k", "b"))
		require.Len(t, operations, 3)
		require.Equal(t, operations[0].ID, operations[2].ID)
		require.EqualValues(t, 1, svc.Store.Completes.Load())
		require.EqualValues(t, 2, svc.Store.Releases.Load())
	}
}

// aborts are functions that end a handler by a panic.
var aborts = map[string]func(){
	"string":         func() { panic("boom") },
	"error":          func() { panic(io.ErrNoProgress) },
	"pointer":        func() { panic(&testservice.Problem{}) },
	"abort":          func() { panic(http.ErrAbortHandler) },
	"nil pointer":    func() { panic((*testservice.Problem)(nil)) },
	"invalid status": func() { httptest.NewRecorder().WriteHeader(0) },
}

func TestPanicReleasesTheClaimAndGoesOnUnchanged(t *testing.T) {
	t.Parallel()
	for name, abort := range aborts {
		t.Run(name, func(t *testing.T) {
			svc := testservice.Setup{}.Guard(t, func(w http.ResponseWriter, r *http.Request) {
				if op, _ := idempotency.FromContext(r.Context()); op.Attempt == 1 {
					testservice.Echo(w, r)
					abort()
				}
				testservice.Echo(w, r)
			})
			want := catchPanic(abort)
			require.Equal(t, want, catchPanic(func() { svc.Call("k", "b") }))
			require.Equal(t, idempotency.OutcomeReleased, svc.Journal.Last(t).Outcome)
			require.Zero(t, svc.Journal.Last(t).Status)
			testservice.RequireReplay(t, svc.Call("k", "b"), svc.Call("k", "b"))
			require.EqualValues(t, 2, svc.Runs.Load())
		})
	}
}

// catchPanic calls f, and returns the value of the panic, or nil.
func catchPanic(f func()) (value any) {
	defer func() { value = recover() }()
	f()
	return nil
}

// After a panic in a function of the service, there is an outcome if the handler has run. A panic before the handler,
// or instead of the handler, leaves no outcome.
func TestOutcomesOfPanics(t *testing.T) {
	t.Parallel()
	const boom = "boom"
	sealedBy := func(cipher testservice.KeyService) idempotency.Store {
		return testservice.MustSeal(t, testservice.NewSpyStore(), testservice.SealingWith(cipher))
	}
	crypt := func(context.Context, []byte) ([]byte, error) { panic(boom) }
	for name, test := range map[string]struct {
		setup testservice.Setup
		calls int // the last call panics
		want  []idempotency.Outcome
	}{
		"UserFunc":    {testservice.Setup{User: func(*http.Request) (string, error) { panic(boom) }}, 1, nil},
		"ValidateKey": {testservice.Setup{Opts: idempotency.Options{ValidateKey: func(string) error { panic(boom) }}}, 1, nil},
		"Endpoint":    {testservice.Setup{Opts: idempotency.Options{Endpoint: func(*http.Request) string { panic(boom) }}}, 1, nil},
		"Fingerprint": {testservice.Setup{Opts: idempotency.Options{
			Fingerprint: func(*http.Request, []byte) (idempotency.Fingerprint, error) { panic(boom) },
		}}, 1, nil},
		"Storable": {testservice.Setup{Opts: idempotency.Options{
			Storable: func(*idempotency.Response) bool { panic(boom) },
		}}, 1, []idempotency.Outcome{idempotency.OutcomeExecuted}},
		"Encrypt": {testservice.Setup{Store: sealedBy(testservice.KeyService{OnEncrypt: crypt})}, 1, []idempotency.Outcome{idempotency.OutcomeReleased}},
		"Decrypt": {testservice.Setup{Store: sealedBy(testservice.KeyService{OnDecrypt: crypt})}, 2, []idempotency.Outcome{idempotency.OutcomeExecuted}},
		"Replay": {testservice.Setup{Opts: idempotency.Options{
			Replay: func(*http.Request, *idempotency.Response) error { panic(boom) },
		}}, 2, []idempotency.Outcome{idempotency.OutcomeExecuted}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			svc := test.setup.Guard(t, testservice.Echo)
			for range test.calls - 1 {
				require.Equal(t, http.StatusCreated, svc.Call("k", "b").Status)
			}
			require.Equal(t, boom, catchPanic(func() { svc.Call("k", "b") }))
			require.Equal(t, test.want, svc.Journal.Outcomes())
		})
	}
}

func TestNothingIsWrittenAfterAPanic(t *testing.T) {
	t.Parallel()
	var left http.ResponseWriter
	store := testservice.NewSpyStore()
	store.OnRelease = func(_ context.Context, _ int64, step func() error) error {
		_, err := left.Write([]byte("late"))
		assert.ErrorIs(t, err, http.ErrHandlerTimeout)
		return step()
	}
	svc := testservice.Setup{Store: store, Outer: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			assert.Equal(t, "boom", catchPanic(func() {
				next.ServeHTTP(observedWriter{w, func() { t.Error("written to") }}, r)
			}))
			w.WriteHeader(http.StatusBadGateway)
		})
	}}.Guard(t, func(w http.ResponseWriter, _ *http.Request) {
		left = w
		panic("boom")
	})
	require.Equal(t, http.StatusBadGateway, svc.Call("k", "b").Status)
	left.WriteHeader(http.StatusEarlyHints)
	_, err := left.Write([]byte("late"))
	require.ErrorIs(t, err, http.ErrHandlerTimeout)
	require.ErrorIs(t, http.NewResponseController(left).Flush(), http.ErrHandlerTimeout)
}

func TestGoexitReleasesTheClaim(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{}.Guard(t, func(w http.ResponseWriter, r *http.Request) {
		if op, _ := idempotency.FromContext(r.Context()); op.Attempt == 1 {
			runtime.Goexit()
		}
		testservice.Echo(w, r)
	})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		svc.Call("k", "b")
		t.Error("Goexit was stopped")
	}()
	<-ended
	require.Equal(t, "b", svc.Call("k", "b").Body)
	require.EqualValues(t, 2, svc.Runs.Load())
}

func TestPanickedHandlerIsNotRepeatedIfAbandonedIsRefuse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		svc := testservice.Setup{Opts: idempotency.Options{Abandoned: idempotency.Refuse}}.Guard(t,
			func(http.ResponseWriter, *http.Request) { panic("boom") })
		require.PanicsWithValue(t, "boom", func() { svc.Call("k", "b") })
		require.Equal(t, idempotency.OutcomeAbandoned, svc.Journal.Last(t).Outcome)
		testservice.RequireProblem(t, svc.Call("k", "b"), http.StatusConflict, "outcome-unknown")
		time.Sleep(time.Minute)
		testservice.RequireProblem(t, svc.Call("k", "b"), http.StatusConflict, "outcome-unknown")
		require.EqualValues(t, 1, svc.Runs.Load())
	})
}

// After a panic, a client over the network sees a broken connection, and nothing of what the handler has written.
func TestNothingOfAPanickedHandlersAnswerIsSent(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		testservice.Echo(w, r)
		panic("boom")
	})
	got := svc.Send("/payments", "k", "b")
	require.ErrorIs(t, got.Err, io.EOF)
	require.Zero(t, got.Status)
}

func TestStoreThatFailsAtTheClaim(t *testing.T) {
	t.Parallel()
	t.Run("nothing is executed", func(t *testing.T) {
		store := testservice.NewSpyStore()
		store.OnBegin = testservice.Failing(2, testservice.ErrDown)
		svc := testservice.Setup{Store: store}.Guard(t, testservice.Echo)
		for range 2 {
			testservice.RequireProblem(t, svc.Call("k", "b"), http.StatusServiceUnavailable, "store-unavailable")
			require.Equal(t, idempotency.OutcomeUnavailable, svc.Journal.Last(t).Outcome)
			require.ErrorIs(t, svc.Journal.Last(t).Err, testservice.ErrDown)
		}
		require.Zero(t, svc.Runs.Load())
		testservice.RequireReplay(t, svc.Call("k", "b"), svc.Call("k", "b"))
	})
	t.Run("fail open", func(t *testing.T) {
		store := testservice.NewSpyStore()
		store.OnBegin = testservice.Failing(2, testservice.ErrDown)
		svc := testservice.Setup{Store: store, Opts: idempotency.Options{FailOpen: true, MaxResponse: 2}}.Serve(t, testservice.Echo)
		for _, body := range []string{"b", "large"} {
			got := svc.Post("k", body)
			require.Equal(t, http.StatusCreated, got.Status)
			require.Equal(t, body, got.Body)
			require.False(t, got.Replayed())
			require.Equal(t, idempotency.OutcomeUnprotected, svc.Journal.Last(t).Outcome)
			require.ErrorIs(t, svc.Journal.Last(t).Err, testservice.ErrDown)
			require.Equal(t, http.StatusCreated, svc.Journal.Last(t).Status)
		}
		require.EqualValues(t, 2, svc.Runs.Load())
		testservice.RequireReplay(t, svc.Post("k", "b"), svc.Post("k", "b"))
	})
	t.Run("fail open, and one charge", func(t *testing.T) {
		provider := make(map[string]int) // counts the requests for each key, and charges once for a key
		var attempts []int
		charge := func(w http.ResponseWriter, r *http.Request) {
			op, ok := idempotency.FromContext(r.Context())
			assert.True(t, ok)
			provider[op.DownstreamKey("charge")]++
			attempts = append(attempts, op.Attempt)
			testservice.Echo(w, r)
		}
		store := testservice.NewSpyStore()
		store.OnBegin = testservice.Failing(3, testservice.ErrDown)
		svc := testservice.Setup{Store: store, Opts: idempotency.Options{FailOpen: true}}.Guard(t, charge)
		for range 3 {
			require.Equal(t, http.StatusCreated, svc.Call("k", "b").Status)
			require.Equal(t, idempotency.OutcomeUnprotected, svc.Journal.Last(t).Outcome)
			require.Equal(t, svc.Journal.Last(t).Key.OperationID(), svc.Journal.Last(t).Operation)
		}
		require.Equal(t, http.StatusCreated, svc.Call("k", "b").Status) // the store is back
		require.Equal(t, []int{0, 0, 0, 1}, attempts)
		require.Len(t, provider, 1)
		svc.Call("another", "b")
		require.Len(t, provider, 2)
	})
	t.Run("store full", func(t *testing.T) {
		svc := testservice.Setup{Store: oneUserStore(330)}.Guard(t, testservice.Echo)
		testservice.RequireProblem(t, svc.Call("k", "b"), http.StatusServiceUnavailable, "store-unavailable")
		require.ErrorIs(t, svc.Journal.Last(t).Err, idempotency.ErrStoreFull)
	})
	for _, reason := range []error{
		idempotency.ErrRecordInvalid, idempotency.ErrStoreFull, idempotency.ErrStoreBusy, errors.ErrUnsupported,
	} {
		t.Run("fail open, but: "+reason.Error(), func(t *testing.T) {
			store := testservice.NewSpyStore()
			store.OnBegin = testservice.Failing(testservice.Always, fmt.Errorf("wrapped: %w", reason))
			svc := testservice.Setup{Store: store, Opts: idempotency.Options{FailOpen: true}}.Guard(t, testservice.Echo)
			testservice.RequireProblem(t, svc.Call("k", "b"), http.StatusServiceUnavailable, "store-unavailable")
			require.Equal(t, idempotency.OutcomeUnavailable, svc.Journal.Last(t).Outcome)
			require.Zero(t, svc.Runs.Load())
		})
	}
}

func TestStoreThatFailsAtTheCompletion(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name     string
		fault    testservice.Hook
		calls    int64
		outcome  idempotency.Outcome
		replayed bool
	}{
		{"once", testservice.Failing(1, testservice.ErrDown), 2, idempotency.OutcomeExecuted, true},
		{"several times", testservice.Failing(5, testservice.ErrDown), 6, idempotency.OutcomeExecuted, true},
		{"reply lost", func(_ context.Context, n int64, step func() error) error {
			return errors.Join(step(), testservice.Failing(1, testservice.ErrDown)(nil, n, func() error { return nil }))
		}, 2, idempotency.OutcomeExecuted, true},
		{"for ever", testservice.Failing(testservice.Always, testservice.ErrDown), 11, idempotency.OutcomeUnrecorded, false}, // once in the background
		{"record of another writer", testservice.Failing(testservice.Always, idempotency.ErrRecordInvalid),
			1, idempotency.OutcomeUnrecorded, false},
		{"store had forgotten", func(_ context.Context, _ int64, step func() error) error {
			return errors.Join(step(), idempotency.ErrRestored)
		}, 1, idempotency.OutcomeRestored, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			store := testservice.NewSpyStore()
			store.OnComplete = row.fault
			synctest.Test(t, func(t *testing.T) {
				store.Store = idempotency.NewMemoryStore(idempotency.MemoryOptions{})
				svc := testservice.Setup{Store: store}.Guard(t, testservice.Echo)
				began := time.Now()
				first := svc.Call("k", "b")
				require.LessOrEqual(t, time.Since(began), 5*time.Second)
				require.Equal(t, http.StatusCreated, first.Status)
				require.Equal(t, "b", first.Body)
				require.Equal(t, row.outcome, svc.Journal.Last(t).Outcome)
				synctest.Wait() // until the background work has begun
				require.Equal(t, row.calls, store.Completes.Load())
				require.Zero(t, store.Releases.Load())
				if retry := svc.Call("k", "b"); row.replayed {
					testservice.RequireReplay(t, first, retry)
				} else {
					testservice.RequireProblem(t, retry, http.StatusConflict, "in-progress") // the claim is kept
				}
				require.EqualValues(t, 1, svc.Runs.Load())
			})
		})
	}
}

func TestStoreThatFailsAtTheRelease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testservice.NewSpyStore()
		store.OnRelease = testservice.Failing(testservice.Always, testservice.ErrDown)
		svc := testservice.Setup{Store: store}.Guard(t, func(w http.ResponseWriter, r *http.Request) {
			if op, _ := idempotency.FromContext(r.Context()); op.Attempt == 1 {
				w.WriteHeader(http.StatusBadGateway)
				return
			}
			testservice.Echo(w, r)
		})
		require.Equal(t, http.StatusBadGateway, svc.Call("k", "b").Status)
		require.ErrorIs(t, svc.Journal.Last(t).Err, testservice.ErrDown)
		testservice.RequireProblem(t, svc.Call("k", "b"), http.StatusConflict, "in-progress")
		time.Sleep(time.Minute)
		require.Equal(t, "b", svc.Call("k", "b").Body)
	})
}

func TestClaimLostToASuccessor(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name   string
		answer func(http.ResponseWriter)
	}{
		{"handler answers", func(w http.ResponseWriter) { w.WriteHeader(http.StatusCreated) }},
		{"handler answers at length", func(w http.ResponseWriter) { _, _ = io.WriteString(w, "over the limit") }},
		{"handler gives up", func(w http.ResponseWriter) { w.WriteHeader(http.StatusInternalServerError) }},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := testservice.NewSpyStore()
				store.OnExtend = testservice.Failing(testservice.Always, testservice.ErrDown)
				opts := idempotency.Options{MaxResponse: 8, Lease: time.Minute}
				svc := testservice.Setup{Store: store, Opts: opts}.Guard(t, func(w http.ResponseWriter, r *http.Request) {
					if op, _ := idempotency.FromContext(r.Context()); op.Attempt == 2 {
						_, _ = io.WriteString(w, "second")
						return
					}
					<-r.Context().Done()
					assert.Equal(t, idempotency.ErrClaimLost, context.Cause(r.Context()))
					time.Sleep(5 * time.Second)
					row.answer(w)
				})
				answers := make(chan testservice.Answer, 1)
				go func() { answers <- svc.Call("k", "b") }()
				time.Sleep(time.Minute + time.Millisecond)
				second := svc.Call("k", "b")
				require.Equal(t, "second", second.Body)
				testservice.RequireProblem(t, <-answers, http.StatusConflict, "in-progress")
				require.Equal(t, idempotency.OutcomeClaimLost, svc.Journal.Last(t).Outcome)
				testservice.RequireReplay(t, second, svc.Call("k", "b"))
			})
		})
	}
}

func TestManyRequestsWithOneKeyExecuteOnce(t *testing.T) {
	t.Parallel()
	const clients = 64
	store := testservice.NewSpyStore()
	finish := make(chan struct{})
	handler := func(w http.ResponseWriter, r *http.Request) {
		<-finish
		testservice.Echo(w, r)
	}
	instances := []*testservice.Service{ // as two processes on one store
		testservice.Setup{Store: store, Opts: idempotency.Options{Wait: time.Minute}}.Serve(t, handler),
		testservice.Setup{Store: store}.Serve(t, handler),
	}
	answers := make([]testservice.Answer, clients)
	var group sync.WaitGroup
	for i := range answers {
		group.Go(func() { answers[i] = instances[i%2].Post("k", "b") })
	}
	require.Eventually(t, func() bool { return store.Begins.Load() >= clients }, 10*time.Second, time.Millisecond)
	close(finish)
	group.Wait()
	require.EqualValues(t, 1, instances[0].Runs.Load()+instances[1].Runs.Load())
	firsts := 0
	for _, got := range answers {
		switch {
		case got.Status == http.StatusConflict:
			testservice.RequireProblem(t, got, http.StatusConflict, "in-progress")
		default:
			require.Equal(t, http.StatusCreated, got.Status)
			require.Equal(t, "b", got.Body)
			if !got.Replayed() {
				firsts++
			}
		}
	}
	require.LessOrEqual(t, firsts, 1)
}

func TestClientThatHangsUpDoesNotLoseTheRecord(t *testing.T) {
	t.Parallel()
	const requests, parallel = 500, 25
	var ran sync.Map
	store := testservice.NewSpyStore()
	store.OnBegin = func(ctx context.Context, _ int64, step func() error) error {
		select {
		case <-ctx.Done(): // as database drivers do
			return ctx.Err()
		default:
			return step()
		}
	}
	store.OnComplete, store.OnRelease = store.OnBegin, store.OnBegin
	svc := testservice.Setup{Store: store}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		op, _ := idempotency.FromContext(r.Context())
		_, again := ran.LoadOrStore(op.Key.ID, true)
		assert.False(t, again, "executed twice")
		select { // a handler that watches its client
		case <-r.Context().Done():
		case <-time.After(rand.N(2 * time.Millisecond)):
		}
		testservice.Echo(w, r)
	})
	var interrupted atomic.Int64
	slots := make(chan struct{}, parallel)
	var group sync.WaitGroup
	for i := range requests {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			key := fmt.Sprint("k", i)
			ctx, cancel := context.WithTimeout(t.Context(), rand.N(4*time.Millisecond))
			defer cancel()
			if got := svc.Send("/payments", key, key, testservice.WithContext(ctx)); got.Err != nil {
				interrupted.Add(1)
			}
		})
	}
	group.Wait()
	require.Positive(t, interrupted.Load())
	svc.Server.CloseClientConnections()
	for i := range requests {
		key := fmt.Sprint("k", i)
		_, executed := ran.Load(key)
		var got testservice.Answer
		require.Eventually(t, func() bool { // the handler may still be running
			got = svc.Send("/payments", key, key)
			return got.Err == nil && got.Status != http.StatusConflict
		}, 10*time.Second, time.Millisecond)
		require.Equal(t, key, got.Body)
		if executed {
			require.True(t, got.Replayed())
		}
	}
}

func TestHandlerSeesTheWholeRequest(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{}.Guard(t, func(w http.ResponseWriter, r *http.Request) {
		assert.NoError(t, r.ParseForm())
		_, _ = fmt.Fprint(w, r.Form.Encode())
		n, err := r.Body.Read(make([]byte, 1))
		assert.Zero(t, n)
		assert.Equal(t, io.EOF, err)
		assert.NoError(t, r.Body.Close())
		_, err = r.Body.Read(make([]byte, 1))
		assert.Equal(t, http.ErrBodyReadAfterClose, err)
	})
	got := svc.Call("k", "amount=1&to=bob", testservice.WithHeader("Content-Type", "application/x-www-form-urlencoded"))
	require.Equal(t, "amount=1&to=bob", got.Body)
}

// A handler may leave a goroutine behind. Buffers go back to a pool, so the goroutine must not meet the bytes of
// later requests there.
func TestGoroutineLeftBehindTouchesNoOtherRequest(t *testing.T) {
	t.Parallel()
	const requests = 200
	var left sync.WaitGroup
	svc := testservice.Setup{}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		op, _ := idempotency.FromContext(r.Context())
		mine := op.Key.ID[0]
		returned := make(chan struct{})
		defer close(returned)
		left.Go(func() {
			<-returned
			p := make([]byte, 16)
			for range 100 {
				n, err := r.Body.Read(p)
				for _, b := range p[:n] {
					assert.Equal(t, mine, b)
				}
				_, _ = w.Write([]byte{mine - 'a' + 'A'})
				w.WriteHeader(http.StatusTeapot)
				_ = http.NewResponseController(w).Flush()
				if err != nil {
					p = p[:1+rand.IntN(15)]
				}
				runtime.Gosched()
			}
		})
		_, _ = io.CopyN(w, r.Body, 300)
	})
	var group sync.WaitGroup
	for worker := range 8 {
		group.Go(func() {
			for i := range requests / 8 {
				letter := string(rune('a' + (worker*requests/8+i)%26))
				got := svc.Post(fmt.Sprint(letter, worker, "-", i), strings.Repeat(letter, 1000))
				assert.Equal(t, http.StatusOK, got.Status)
				// The goroutine may write before the handler has fully returned. These bytes still belong to the handler's own answer.
				assert.Equal(t, strings.Repeat(letter, 300), strings.TrimRight(got.Body, strings.ToUpper(letter)))
			}
		})
	}
	group.Wait()
	left.Wait()
}

func TestMountsUnderStripPrefixDoNotShareKeys(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{Outer: func(guarded http.Handler) http.Handler {
		mux := http.NewServeMux()
		for _, prefix := range []string{"/eu", "/us"} {
			mux.Handle(prefix+"/", http.StripPrefix(prefix, guarded))
		}
		return mux
	}}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		op, _ := idempotency.FromContext(r.Context())
		_, _ = fmt.Fprint(w, op.Key.Endpoint, " ", r.URL.Path)
	})
	require.Equal(t, "POST /eu/payments /payments", svc.Send("/eu/payments", "k", "b").Body)
	require.Equal(t, "POST /us/payments /payments", svc.Send("/us/payments", "k", "b").Body)
	require.True(t, svc.Send("/us/payments", "k", "b").Replayed())
}

// Outer middleware may edit the values of fields in place when the header is written. The edits must not change the
// record.
func TestOuterMiddlewareDoesNotEditTheRecord(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{Outer: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			next.ServeHTTP(observedWriter{w, func() {
				for i := range w.Header()["Set-Cookie"] {
					w.Header()["Set-Cookie"][i] += "; Secure"
				}
			}}, r)
		})
	}}.Guard(t, func(w http.ResponseWriter, _ *http.Request) {
		http.SetCookie(w, &http.Cookie{Name: "a", Value: "1"})
		w.WriteHeader(http.StatusNoContent)
	})
	first := svc.Call("k", "b")
	require.Equal(t, []string{"a=1; Secure"}, first.Header["Set-Cookie"])
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() { testservice.RequireReplay(t, first, svc.Call("k", "b")) })
	}
	group.Wait()
}

func TestOutcomesAreObservedOnce(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{}.Guard(t, testservice.Echo)
	svc.Call("k", "b")
	svc.Call("k", "b")
	svc.Call("k", "c")
	svc.Call("k k", "b")
	require.True(t, slices.Equal(svc.Journal.Outcomes(), []idempotency.Outcome{
		idempotency.OutcomeExecuted, idempotency.OutcomeReplayed, idempotency.OutcomeKeyReused, idempotency.OutcomeRejected,
	}))
}

// After a panic, outer middleware recovers and sends its own answer. The fields of the handler are removed, because
// the answer of the handler is never sent.
func TestHeaderOfAPanickedHandlerIsTakenBack(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{Outer: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Outer", "1")
			defer func() {
				recover()
				w.WriteHeader(http.StatusInternalServerError)
			}()
			next.ServeHTTP(w, r)
		})
	}}.Guard(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("X-Outer", "2")
		panic("boom")
	})
	a := svc.Call("k", "b")
	require.Equal(t, http.StatusInternalServerError, a.Status)
	require.Equal(t, []string{"1"}, a.Header["X-Outer"])
	require.NotContains(t, a.Header, "Content-Encoding")
}
