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
)

func TestUnguardedRequestReachesTheHandlerUntouched(t *testing.T) {
	t.Parallel()
	type seen struct {
		writer http.ResponseWriter
		body   io.ReadCloser
	}
	for name, edits := range map[string][]edit{
		"no key":               nil,
		"other method":         {withMethod(http.MethodPut), withHeader("Idempotency-Key", "k")},
		"GET with invalid key": {withMethod(http.MethodGet), withHeader("Idempotency-Key", "", "")},
	} {
		t.Run(name, func(t *testing.T) {
			var outside, inside seen
			svc := setup{outer: func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					outside = seen{w, r.Body}
					next.ServeHTTP(w, r)
				})
			}}.serve(t, func(w http.ResponseWriter, r *http.Request) {
				inside = seen{w, r.Body}
				_, ok := idempotency.FromContext(r.Context())
				assert.False(t, ok)
			})
			for range 2 {
				require.Equal(t, http.StatusOK, svc.post("", "b", edits...).status)
				require.True(t, outside == inside, "wrapped: %T, %T", inside.writer, inside.body)
			}
			require.EqualValues(t, 2, svc.runs.Load())
			require.Zero(t, svc.store.begins.Load())
			require.Empty(t, svc.journal.all())
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
	key := withHeader("Idempotency-Key", "k")
	keys := func(lines ...string) []edit { return []edit{withHeader("Idempotency-Key", lines...)} }
	small := idempotency.Options{MaxBody: 4}
	for _, row := range []struct {
		name     string
		setup    setup
		edits    []edit
		body     string
		status   int
		code     string
		is       error
		bodyRead bool
	}{
		{"no key", setup{opts: idempotency.Options{Required: true}}, nil, "b",
			400, "key-missing", idempotency.ErrKeyMissing, false},
		{"two lines", setup{}, keys("k", "k"), "b", 400, "key-invalid", idempotency.ErrKeyInvalid, false},
		{"empty", setup{}, keys(""), "b", 400, "key-invalid", idempotency.ErrKeyInvalid, false},
		{"too long", setup{}, keys(strings.Repeat("k", 256)), "b", 400, "key-invalid", idempotency.ErrKeyInvalid, false},
		{"malformed", setup{}, keys(`"k`), "b", 400, "key-invalid", idempotency.ErrKeyInvalid, false},
		{"not valid here", setup{opts: idempotency.Options{ValidateKey: func(string) error { return broken }}},
			[]edit{key}, "b", 400, "key-invalid", broken, false},
		{"user fails", setup{user: user("alice", broken)}, []edit{key}, "b", 401, "user-unknown", broken, false},
		{"user fails for a key of its own", setup{user: user("", idempotency.ErrKeyInvalid)}, []edit{key}, "b",
			401, "user-unknown", idempotency.ErrUserUnknown, false},
		{"user empty", setup{user: user("", nil)}, []edit{key}, "b", 401, "user-unknown", idempotency.ErrUserUnknown, false},
		{"body declared too large", setup{opts: small}, []edit{key}, "bytes",
			413, "body-too-large", idempotency.ErrBodyTooLarge, false},
		{"body too large", setup{opts: small}, []edit{key, chunked}, "bytes",
			413, "body-too-large", idempotency.ErrBodyTooLarge, true},
		{"body limited by outer middleware", setup{outer: func(next http.Handler) http.Handler {
			return http.MaxBytesHandler(next, 4)
		}}, []edit{key}, "bytes", 413, "body-too-large", idempotency.ErrBodyTooLarge, true},
		{"body breaks off", setup{}, []edit{key, func(r *http.Request) {
			r.Body = io.NopCloser(io.MultiReader(r.Body, iotest.ErrReader(io.ErrUnexpectedEOF)))
		}}, "b", 400, "body-invalid", io.ErrUnexpectedEOF, true},
		{"body without fingerprint", setup{opts: idempotency.Options{Fingerprint: idempotency.FingerprintJSON}},
			[]edit{key, withHeader("Content-Type", js)}, "{",
			400, "body-invalid", idempotency.ErrBodyInvalid, true},
		{"number without fingerprint", setup{opts: idempotency.Options{Fingerprint: idempotency.FingerprintJSON}},
			[]edit{key, withHeader("Content-Type", js)}, `{"amount":1e400}`,
			400, "body-invalid", idempotency.ErrBodyInvalid, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			svc := row.setup.guard(t, echo)
			var read atomic.Bool
			row.edits = append(row.edits, func(r *http.Request) {
				r.Body = io.NopCloser(io.TeeReader(r.Body, writerFunc(func(p []byte) { read.Store(true) })))
			})
			requireProblem(t, svc.call("", row.body, row.edits...), row.status, row.code)
			require.Equal(t, row.bodyRead, read.Load(), "body read")
			require.Zero(t, svc.runs.Load())
			require.Zero(t, svc.store.begins.Load())
			require.Equal(t, []idempotency.Outcome{idempotency.OutcomeRejected}, svc.journal.outcomes())
			require.ErrorIs(t, svc.journal.last(t).Err, row.is)
		})
	}
}

type writerFunc func([]byte)

func (f writerFunc) Write(p []byte) (int, error) { f(p); return len(p), nil }

func TestPanicOfTheUserFunctionGoesOn(t *testing.T) {
	t.Parallel()
	svc := setup{user: func(*http.Request) (string, error) { panic("who?") }}.guard(t, echo)
	require.PanicsWithValue(t, "who?", func() { svc.call("k", "b") })
	require.Zero(t, svc.runs.Load())
	require.Zero(t, svc.store.begins.Load())
}

func TestRetryGetsTheStoredAnswer(t *testing.T) {
	t.Parallel()
	svc := setup{}.serve(t, func(w http.ResponseWriter, r *http.Request) {
		op, ok := idempotency.FromContext(r.Context())
		assert.True(t, ok)
		assert.Equal(t, 1, op.Attempt)
		assert.Equal(t, idempotency.Key{User: "single", Endpoint: "POST /payments", ID: "k"}, op.Key)
		w.Header().Set("Location", "/payments/"+op.ID.String())
		echo(w, r)
	})
	first := svc.post("k", "b")
	require.Equal(t, http.StatusCreated, first.status)
	require.Equal(t, "b", first.body)
	require.NotContains(t, first.header, "Idempotent-Replayed")
	for range 3 {
		requireReplay(t, first, svc.post("k", "b"))
	}
	requireReplay(t, first, svc.post(`"k"`, "b"))
	require.EqualValues(t, 1, svc.runs.Load())
	require.EqualValues(t, 5, svc.store.begins.Load())
	require.EqualValues(t, 1, svc.store.completes.Load())
	require.Equal(t, idempotency.OutcomeExecuted, svc.journal.all()[0].Outcome)
	require.Equal(t, idempotency.OutcomeReplayed, svc.journal.last(t).Outcome)
}

func TestAnswerIsStoredBeforeItIsSent(t *testing.T) {
	t.Parallel()
	store := newSpyStore()
	completing, stored := make(chan struct{}), make(chan struct{})
	store.onComplete = func(_ context.Context, _ int64, step func() error) error {
		close(completing)
		<-stored
		return step()
	}
	svc := setup{store: store}.serve(t, echo)
	answers := make(chan answer, 1)
	go func() { answers <- svc.post("k", "b") }()
	<-completing
	select {
	case got := <-answers:
		t.Fatalf("answered before it was stored: %+v", got)
	case <-time.After(50 * time.Millisecond):
	}
	close(stored)
	require.Equal(t, http.StatusCreated, (<-answers).status)
}

// A client cannot tell that a part of an answer came early: it waits for the end.
func TestNothingIsSentBeforeItIsStored(t *testing.T) {
	t.Parallel()
	store, w := newSpyStore(), httptest.NewRecorder()
	store.onComplete = func(_ context.Context, _ int64, step func() error) error {
		assert.Empty(t, w.Header())
		assert.Empty(t, w.Body.String())
		assert.False(t, w.Flushed)
		return step()
	}
	r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader("b"))
	r.Header.Set("Idempotency-Key", "k")
	setup{store: store}.guard(t, echo).handler.ServeHTTP(w, r)
	require.Equal(t, http.StatusCreated, w.Code)
	require.Equal(t, "b", w.Body.String())
}

func TestDuplicateOfARunningRequestIsRefused(t *testing.T) {
	t.Parallel()
	running, finish := make(chan struct{}), make(chan struct{})
	svc := setup{}.serve(t, func(w http.ResponseWriter, r *http.Request) {
		close(running)
		<-finish
		echo(w, r)
	})
	answers := make(chan answer, 1)
	go func() { answers <- svc.post("k", "b") }()
	<-running
	requireProblem(t, svc.post("k", "b"), http.StatusConflict, "in-progress")
	require.Equal(t, idempotency.OutcomeInProgress, svc.journal.last(t).Outcome)
	requireProblem(t, svc.post("k", "c"), http.StatusConflict, "key-reused")
	close(finish)
	requireReplay(t, <-answers, svc.post("k", "b"))
	require.EqualValues(t, 1, svc.runs.Load())
}

func TestKeyOfAnotherRequestIsRefusedAsReused(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusOK, http.StatusInternalServerError} { // completed, released
		svc := setup{}.guard(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		first := svc.call("k", "b")
		requireProblem(t, svc.call("k", "c"), http.StatusConflict, "key-reused")
		require.Equal(t, idempotency.OutcomeKeyReused, svc.journal.last(t).Outcome)
		require.EqualValues(t, 1, svc.runs.Load())
		require.Equal(t, first.status, svc.call("k", "b").status)
	}
}

func TestAnswerOverTheLimitIsNotExecutedAgain(t *testing.T) {
	t.Parallel()
	const limit = 1000
	for _, stream := range []bool{false, true} {
		for _, chunk := range []int{1, 700, limit + 1, 5 * limit} {
			svc := setup{opts: idempotency.Options{MaxResponse: limit, Stream: stream}}.serve(t,
				func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("X-Id", "1")
					w.WriteHeader(http.StatusAccepted)
					for written := 0; written < 5*limit; written += chunk {
						n, err := io.WriteString(w, strings.Repeat("x", min(chunk, 5*limit-written)))
						assert.NoError(t, err)
						assert.Equal(t, min(chunk, 5*limit-written), n)
					}
				})
			first := svc.post("k", "b")
			require.Equal(t, http.StatusAccepted, first.status)
			require.Equal(t, strings.Repeat("x", 5*limit), first.body)
			require.Equal(t, "1", first.header.Get("X-Id"))
			retry := svc.post("k", "b")
			require.Equal(t, http.StatusAccepted, requireProblem(t, retry, http.StatusConflict, "not-replayable").OriginalStatus)
			require.Equal(t, idempotency.OutcomeNotReplayable, svc.journal.last(t).Outcome)
			requireProblem(t, svc.post("k", "c"), http.StatusConflict, "key-reused")
			require.EqualValues(t, 1, svc.runs.Load())
			require.Zero(t, svc.store.releases.Load())
		}
	}
}

// A transactional store holds back even what it cannot keep.
func TestAnswerOverTheLimitOfATransactionIsNotExecutedAgain(t *testing.T) {
	t.Parallel()
	svc := setup{store: txStore{newSpyStore()}, opts: idempotency.Options{MaxResponse: 4}}.serve(t, echo)
	require.Equal(t, "12345", svc.post("k", "12345").body)
	retry := requireProblem(t, svc.post("k", "12345"), http.StatusConflict, "not-replayable")
	require.Equal(t, http.StatusCreated, retry.OriginalStatus)
	require.EqualValues(t, 1, svc.runs.Load())
}

func TestAnswerAtTheLimitIsReplayed(t *testing.T) {
	t.Parallel()
	svc := setup{opts: idempotency.Options{MaxResponse: 4}}.guard(t, echo)
	requireReplay(t, svc.call("k", "1234"), svc.call("k", "1234"))
}

func TestOversizedAnswerIsRecordedBeforeItsFirstByteIsSent(t *testing.T) {
	t.Parallel()
	store := newSpyStore()
	var written atomic.Bool
	store.onComplete = func(_ context.Context, _ int64, step func() error) error {
		assert.False(t, written.Load())
		return step()
	}
	svc := setup{store: store, opts: idempotency.Options{MaxResponse: 4}, outer: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			next.ServeHTTP(observedWriter{w, func() { written.Store(true) }}, r)
		})
	}}.guard(t, echo)
	require.Equal(t, "12345", svc.call("k", "12345").body)
	require.True(t, written.Load())
	require.EqualValues(t, 1, store.completes.Load())
}

type observedWriter struct {
	http.ResponseWriter
	before func()
}

func (w observedWriter) WriteHeader(status int) { w.before(); w.ResponseWriter.WriteHeader(status) }

func (w observedWriter) Write(p []byte) (int, error) { w.before(); return w.ResponseWriter.Write(p) }

// crash makes a first attempt at what svc.call(key, body) asks for, which ends without a trace.
func crash(t *testing.T, svc *service, key, body string, lease time.Duration) idempotency.Record {
	t.Helper()
	fp, err := idempotency.FingerprintRaw(httptest.NewRequest(http.MethodPost, "/payments", nil), []byte(body))
	require.NoError(t, err)
	rec, claim, err := svc.store.Begin(t.Context(), idempotency.Key{User: "single", Endpoint: "POST /payments", ID: key},
		idempotency.ClaimRequest{Fingerprint: fp, Lease: lease, TTL: time.Hour})
	require.NoError(t, err)
	require.NotNil(t, claim)
	return rec
}

func TestCrashedAttemptIsTakenOverWhenItsLeaseHasLapsed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var op idempotency.Operation
		svc := setup{}.guard(t, func(w http.ResponseWriter, r *http.Request) {
			op, _ = idempotency.FromContext(r.Context())
			echo(w, r)
		})
		crash(t, svc, "k", "b", time.Minute)
		time.Sleep(time.Minute - 1)
		requireProblem(t, svc.call("k", "b"), http.StatusConflict, "in-progress")
		time.Sleep(time.Nanosecond)
		requireProblem(t, svc.call("k", "c"), http.StatusConflict, "key-reused")
		requireReplay(t, svc.call("k", "b"), svc.call("k", "b"))
		require.Equal(t, op.Key.OperationID(), op.ID)
		require.Equal(t, 2, op.Attempt)
	})
}

func TestCrashedAttemptIsNeverRepeatedIfAbandonedIsRefuse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		svc := setup{opts: idempotency.Options{Abandoned: idempotency.Refuse}}.guard(t, echo)
		crash(t, svc, "k", "b", time.Minute)
		requireProblem(t, svc.call("k", "b"), http.StatusConflict, "in-progress")
		time.Sleep(time.Minute)
		requireProblem(t, svc.call("k", "b"), http.StatusConflict, "outcome-unknown")
		require.Equal(t, idempotency.OutcomeUnknown, svc.journal.last(t).Outcome)
		requireProblem(t, svc.call("k", "c"), http.StatusConflict, "key-reused")
		require.Zero(t, svc.runs.Load())
	})
}

func TestAnswerThatIsNotStorableMayBeTriedAgain(t *testing.T) {
	t.Parallel()
	for _, stream := range []bool{false, true} {
		var operations []idempotency.Operation
		opts := idempotency.Options{Stream: stream, MaxResponse: 5000}
		svc := setup{opts: opts}.serve(t, func(w http.ResponseWriter, r *http.Request) {
			op, _ := idempotency.FromContext(r.Context())
			operations = append(operations, op)
			if op.Attempt < 3 {
				http.Error(w, strings.Repeat("busy", 1000*op.Attempt), http.StatusServiceUnavailable)
				return
			}
			echo(w, r)
		})
		for attempt := range 2 { // the second answer is over the limit as well
			got := svc.post("k", "b")
			require.Equal(t, http.StatusServiceUnavailable, got.status)
			require.Equal(t, strings.Repeat("busy", 1000*(attempt+1))+"\n", got.body)
			require.Equal(t, idempotency.OutcomeReleased, svc.journal.last(t).Outcome)
		}
		requireReplay(t, svc.post("k", "b"), svc.post("k", "b"))
		require.Len(t, operations, 3)
		require.Equal(t, operations[0].ID, operations[2].ID)
		require.EqualValues(t, 1, svc.store.completes.Load())
		require.EqualValues(t, 2, svc.store.releases.Load())
	}
}

// aborts are the ways in which a handler ends without returning.
var aborts = map[string]func(){
	"string":         func() { panic("boom") },
	"error":          func() { panic(io.ErrNoProgress) },
	"pointer":        func() { panic(&problem{}) },
	"abort":          func() { panic(http.ErrAbortHandler) },
	"nil pointer":    func() { panic((*problem)(nil)) },
	"invalid status": func() { httptest.NewRecorder().WriteHeader(0) },
}

func TestPanicReleasesTheClaimAndGoesOnUnchanged(t *testing.T) {
	t.Parallel()
	for name, abort := range aborts {
		t.Run(name, func(t *testing.T) {
			svc := setup{}.guard(t, func(w http.ResponseWriter, r *http.Request) {
				if op, _ := idempotency.FromContext(r.Context()); op.Attempt == 1 {
					echo(w, r)
					abort()
				}
				echo(w, r)
			})
			want := panicOf(abort)
			require.Equal(t, want, panicOf(func() { svc.call("k", "b") }))
			require.Equal(t, idempotency.OutcomeReleased, svc.journal.last(t).Outcome)
			require.Zero(t, svc.journal.last(t).Status)
			requireReplay(t, svc.call("k", "b"), svc.call("k", "b"))
			require.EqualValues(t, 2, svc.runs.Load())
		})
	}
}

func panicOf(f func()) (value any) {
	defer func() { value = recover() }()
	f()
	return nil
}

// A function of the service that panics leaves an outcome if the handler has run, and none before or instead of that.
func TestOutcomesOfPanics(t *testing.T) {
	t.Parallel()
	const boom = "boom"
	sealedBy := func(cipher keyService) idempotency.Store { return mustSeal(t, newSpyStore(), sealingWith(cipher)) }
	crypt := func(context.Context, []byte) ([]byte, error) { panic(boom) }
	for name, test := range map[string]struct {
		setup setup
		calls int // the last one panics
		want  []idempotency.Outcome
	}{
		"UserFunc":    {setup{user: func(*http.Request) (string, error) { panic(boom) }}, 1, nil},
		"ValidateKey": {setup{opts: idempotency.Options{ValidateKey: func(string) error { panic(boom) }}}, 1, nil},
		"Endpoint":    {setup{opts: idempotency.Options{Endpoint: func(*http.Request) string { panic(boom) }}}, 1, nil},
		"Fingerprint": {setup{opts: idempotency.Options{
			Fingerprint: func(*http.Request, []byte) (idempotency.Fingerprint, error) { panic(boom) },
		}}, 1, nil},
		"Storable": {setup{opts: idempotency.Options{
			Storable: func(*idempotency.Response) bool { panic(boom) },
		}}, 1, []idempotency.Outcome{idempotency.OutcomeExecuted}},
		"Encrypt": {setup{store: sealedBy(keyService{encrypt: crypt})}, 1, []idempotency.Outcome{idempotency.OutcomeReleased}},
		"Decrypt": {setup{store: sealedBy(keyService{decrypt: crypt})}, 2, []idempotency.Outcome{idempotency.OutcomeExecuted}},
		"Replay": {setup{opts: idempotency.Options{
			Replay: func(*http.Request, *idempotency.Response) error { panic(boom) },
		}}, 2, []idempotency.Outcome{idempotency.OutcomeExecuted}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			svc := test.setup.guard(t, echo)
			for range test.calls - 1 {
				require.Equal(t, http.StatusCreated, svc.call("k", "b").status)
			}
			require.Equal(t, boom, panicOf(func() { svc.call("k", "b") }))
			require.Equal(t, test.want, svc.journal.outcomes())
		})
	}
}

func TestNothingIsWrittenAfterAPanic(t *testing.T) {
	t.Parallel()
	var left http.ResponseWriter
	store := newSpyStore()
	store.onRelease = func(_ context.Context, _ int64, step func() error) error {
		_, err := left.Write([]byte("late"))
		assert.ErrorIs(t, err, http.ErrHandlerTimeout)
		return step()
	}
	svc := setup{store: store, outer: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			assert.Equal(t, "boom", panicOf(func() {
				next.ServeHTTP(observedWriter{w, func() { t.Error("written to") }}, r)
			}))
			w.WriteHeader(http.StatusBadGateway)
		})
	}}.guard(t, func(w http.ResponseWriter, _ *http.Request) {
		left = w
		panic("boom")
	})
	require.Equal(t, http.StatusBadGateway, svc.call("k", "b").status)
	left.WriteHeader(http.StatusEarlyHints)
	_, err := left.Write([]byte("late"))
	require.ErrorIs(t, err, http.ErrHandlerTimeout)
	require.ErrorIs(t, http.NewResponseController(left).Flush(), http.ErrHandlerTimeout)
}

func TestGoexitReleasesTheClaim(t *testing.T) {
	t.Parallel()
	svc := setup{}.guard(t, func(w http.ResponseWriter, r *http.Request) {
		if op, _ := idempotency.FromContext(r.Context()); op.Attempt == 1 {
			runtime.Goexit()
		}
		echo(w, r)
	})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		svc.call("k", "b")
		t.Error("Goexit was stopped")
	}()
	<-ended
	require.Equal(t, "b", svc.call("k", "b").body)
	require.EqualValues(t, 2, svc.runs.Load())
}

func TestPanickedHandlerIsNotRepeatedIfAbandonedIsRefuse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		svc := setup{opts: idempotency.Options{Abandoned: idempotency.Refuse}}.guard(t,
			func(http.ResponseWriter, *http.Request) { panic("boom") })
		require.PanicsWithValue(t, "boom", func() { svc.call("k", "b") })
		require.Equal(t, idempotency.OutcomeAbandoned, svc.journal.last(t).Outcome)
		requireProblem(t, svc.call("k", "b"), http.StatusConflict, "in-progress")
		time.Sleep(time.Minute)
		requireProblem(t, svc.call("k", "b"), http.StatusConflict, "outcome-unknown")
		require.EqualValues(t, 1, svc.runs.Load())
	})
}

// A client over the network sees a panic as a broken connection, and nothing of what the handler had written.
func TestNothingOfAPanickedHandlersAnswerIsSent(t *testing.T) {
	t.Parallel()
	svc := setup{}.serve(t, func(w http.ResponseWriter, r *http.Request) {
		echo(w, r)
		panic("boom")
	})
	got := svc.send("/payments", "k", "b")
	require.ErrorIs(t, got.err, io.EOF)
	require.Zero(t, got.status)
}

var errDown = errors.New("store down")

func TestStoreThatFailsAtTheClaim(t *testing.T) {
	t.Parallel()
	t.Run("nothing is executed", func(t *testing.T) {
		store := newSpyStore()
		store.onBegin = failing(2, errDown)
		svc := setup{store: store}.guard(t, echo)
		for range 2 {
			requireProblem(t, svc.call("k", "b"), http.StatusServiceUnavailable, "store-unavailable")
			require.Equal(t, idempotency.OutcomeUnavailable, svc.journal.last(t).Outcome)
			require.ErrorIs(t, svc.journal.last(t).Err, errDown)
		}
		require.Zero(t, svc.runs.Load())
		requireReplay(t, svc.call("k", "b"), svc.call("k", "b"))
	})
	t.Run("fail open", func(t *testing.T) {
		store := newSpyStore()
		store.onBegin = failing(2, errDown)
		svc := setup{store: store, opts: idempotency.Options{FailOpen: true, MaxResponse: 2}}.serve(t, echo)
		for _, body := range []string{"b", "large"} {
			got := svc.post("k", body)
			require.Equal(t, http.StatusCreated, got.status)
			require.Equal(t, body, got.body)
			require.False(t, got.replayed())
			require.Equal(t, idempotency.OutcomeUnprotected, svc.journal.last(t).Outcome)
			require.ErrorIs(t, svc.journal.last(t).Err, errDown)
			require.Equal(t, http.StatusCreated, svc.journal.last(t).Status)
		}
		require.EqualValues(t, 2, svc.runs.Load())
		requireReplay(t, svc.post("k", "b"), svc.post("k", "b"))
	})
	t.Run("fail open, and one charge", func(t *testing.T) {
		provider := make(map[string]int) // charges once for each key that it is given
		var attempts []int
		charge := func(w http.ResponseWriter, r *http.Request) {
			op, ok := idempotency.FromContext(r.Context())
			assert.True(t, ok)
			provider[op.DownstreamKey("charge")]++
			attempts = append(attempts, op.Attempt)
			echo(w, r)
		}
		store := newSpyStore()
		store.onBegin = failing(3, errDown)
		svc := setup{store: store, opts: idempotency.Options{FailOpen: true}}.guard(t, charge)
		for range 3 {
			require.Equal(t, http.StatusCreated, svc.call("k", "b").status)
			require.Equal(t, idempotency.OutcomeUnprotected, svc.journal.last(t).Outcome)
			require.Equal(t, svc.journal.last(t).Key.OperationID(), svc.journal.last(t).Operation)
		}
		require.Equal(t, http.StatusCreated, svc.call("k", "b").status) // the store is back
		require.Equal(t, []int{0, 0, 0, 1}, attempts)
		require.Len(t, provider, 1)
		svc.call("another", "b")
		require.Len(t, provider, 2)
	})
	t.Run("store full", func(t *testing.T) {
		svc := setup{store: oneUserStore(1)}.guard(t, echo)
		requireProblem(t, svc.call("k", "b"), http.StatusServiceUnavailable, "store-unavailable")
		require.ErrorIs(t, svc.journal.last(t).Err, idempotency.ErrStoreFull)
	})
	for _, reason := range []error{idempotency.ErrRecordInvalid, idempotency.ErrStoreFull, idempotency.ErrStoreBusy} {
		t.Run("fail open, but: "+reason.Error(), func(t *testing.T) {
			store := newSpyStore()
			store.onBegin = failing(always, fmt.Errorf("wrapped: %w", reason))
			svc := setup{store: store, opts: idempotency.Options{FailOpen: true}}.guard(t, echo)
			requireProblem(t, svc.call("k", "b"), http.StatusServiceUnavailable, "store-unavailable")
			require.Equal(t, idempotency.OutcomeUnavailable, svc.journal.last(t).Outcome)
			require.Zero(t, svc.runs.Load())
		})
	}
}

// What a transactional store cannot do is a fault of the options. It is reported together with the others.
func TestOptionsOfATransactionalStore(t *testing.T) {
	t.Parallel()
	opts := idempotency.Options{FailOpen: true, Abandoned: idempotency.Refuse}
	leases, transactions := storeOfTransactions{newSpyStore(), false}, storeOfTransactions{newSpyStore(), true}
	_, err := idempotency.New(leases, idempotency.SingleUser, opts)
	require.NoError(t, err)

	opts.Wait, opts.MaxBody = -1, -1
	_, ofMiddleware := idempotency.New(transactions, idempotency.SingleUser, opts)
	_, ofRunner := idempotency.NewRunner(transactions, idempotency.RunnerOptions{
		FailOpen: opts.FailOpen, Abandoned: opts.Abandoned, Wait: opts.Wait,
	})
	for _, fault := range []string{
		"FailOpen with a transactional store", "Abandoned is Refuse with a transactional store", "Wait -1ns is negative",
	} {
		require.ErrorContains(t, ofMiddleware, fault)
		require.ErrorContains(t, ofRunner, fault)
	}
	require.ErrorContains(t, ofMiddleware, "MaxBody -1 is negative")
}

type storeOfTransactions struct {
	idempotency.Store
	transactional bool
}

func (s storeOfTransactions) Transactional() bool { return s.transactional }

func TestStoreThatFailsAtTheCompletion(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name     string
		fault    hook
		calls    int64
		outcome  idempotency.Outcome
		replayed bool
	}{
		{"once", failing(1, errDown), 2, idempotency.OutcomeExecuted, true},
		{"several times", failing(5, errDown), 6, idempotency.OutcomeExecuted, true},
		{"reply lost", func(_ context.Context, n int64, step func() error) error {
			return errors.Join(step(), failing(1, errDown)(nil, n, func() error { return nil }))
		}, 2, idempotency.OutcomeExecuted, true},
		{"for ever", failing(always, errDown), 11, idempotency.OutcomeUnrecorded, false}, // once in the background
		{"record of somebody else", failing(always, idempotency.ErrRecordInvalid), 1, idempotency.OutcomeUnrecorded, false},
		{"store had forgotten", func(_ context.Context, _ int64, step func() error) error {
			return errors.Join(step(), idempotency.ErrRestored)
		}, 1, idempotency.OutcomeRestored, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			store := newSpyStore()
			store.onComplete = row.fault
			synctest.Test(t, func(t *testing.T) {
				store.Store = idempotency.NewMemoryStore(idempotency.MemoryOptions{})
				svc := setup{store: store}.guard(t, echo)
				began := time.Now()
				first := svc.call("k", "b")
				require.LessOrEqual(t, time.Since(began), 5*time.Second)
				require.Equal(t, http.StatusCreated, first.status)
				require.Equal(t, "b", first.body)
				require.Equal(t, row.outcome, svc.journal.last(t).Outcome)
				synctest.Wait() // for the background to begin
				require.Equal(t, row.calls, store.completes.Load())
				require.Zero(t, store.releases.Load())
				if retry := svc.call("k", "b"); row.replayed {
					requireReplay(t, first, retry)
				} else {
					requireProblem(t, retry, http.StatusConflict, "in-progress") // the claim is kept
				}
				require.EqualValues(t, 1, svc.runs.Load())
			})
		})
	}
}

func TestStoreThatFailsAtTheRelease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newSpyStore()
		store.onRelease = failing(always, errDown)
		svc := setup{store: store}.guard(t, func(w http.ResponseWriter, r *http.Request) {
			if op, _ := idempotency.FromContext(r.Context()); op.Attempt == 1 {
				w.WriteHeader(http.StatusBadGateway)
				return
			}
			echo(w, r)
		})
		require.Equal(t, http.StatusBadGateway, svc.call("k", "b").status)
		require.ErrorIs(t, svc.journal.last(t).Err, errDown)
		requireProblem(t, svc.call("k", "b"), http.StatusConflict, "in-progress")
		time.Sleep(time.Minute)
		require.Equal(t, "b", svc.call("k", "b").body)
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
				store := newSpyStore()
				store.onExtend = failing(always, errDown)
				opts := idempotency.Options{MaxResponse: 8, Lease: time.Minute}
				svc := setup{store: store, opts: opts}.guard(t, func(w http.ResponseWriter, r *http.Request) {
					if op, _ := idempotency.FromContext(r.Context()); op.Attempt == 2 {
						_, _ = io.WriteString(w, "second")
						return
					}
					<-r.Context().Done()
					assert.Equal(t, idempotency.ErrClaimLost, context.Cause(r.Context()))
					time.Sleep(5 * time.Second)
					row.answer(w)
				})
				answers := make(chan answer, 1)
				go func() { answers <- svc.call("k", "b") }()
				time.Sleep(time.Minute + time.Millisecond)
				second := svc.call("k", "b")
				require.Equal(t, "second", second.body)
				requireProblem(t, <-answers, http.StatusConflict, "in-progress")
				require.Equal(t, idempotency.OutcomeClaimLost, svc.journal.last(t).Outcome)
				requireReplay(t, second, svc.call("k", "b"))
			})
		})
	}
}

// txStore is a store whose claims have no lease: what the handler does is bound to Complete.
type txStore struct{ *spyStore }

func (s txStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	rec, claim, err := s.spyStore.Begin(ctx, key, request)
	if claim != nil {
		rec.NoLease = true
	}
	return rec, claim, err
}

func TestNothingOfARolledBackAnswerIsSent(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 10_000} {
		for _, cause := range []error{
			fmt.Errorf("%w: serialization failure", idempotency.ErrRolledBack),
			fmt.Errorf("%w: the response", idempotency.ErrRecordInvalid),
		} {
			store := newSpyStore()
			store.onComplete = failing(1, cause)
			svc := setup{store: txStore{store}, opts: idempotency.Options{MaxResponse: 5000, Stream: true}}.serve(t,
				func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Location", "/payments/1")
					_, _ = io.WriteString(w, strings.Repeat("x", size))
					assert.NoError(t, http.NewResponseController(w).Flush())
				})
			got := svc.post("k", "b")
			requireProblem(t, got, http.StatusServiceUnavailable, "rolled-back")
			require.NotContains(t, got.header, "Location")
			require.Equal(t, idempotency.OutcomeRolledBack, svc.journal.last(t).Outcome)
			require.Zero(t, store.releases.Load())
			require.Zero(t, store.extends.Load())
		}
	}
}

func TestManyRequestsWithOneKeyExecuteOnce(t *testing.T) {
	t.Parallel()
	const clients = 64
	store := newSpyStore()
	finish := make(chan struct{})
	handler := func(w http.ResponseWriter, r *http.Request) {
		<-finish
		echo(w, r)
	}
	instances := []*service{ // as two processes on one store
		setup{store: store, opts: idempotency.Options{Wait: time.Minute}}.serve(t, handler),
		setup{store: store}.serve(t, handler),
	}
	answers := make([]answer, clients)
	var group sync.WaitGroup
	for i := range answers {
		group.Go(func() { answers[i] = instances[i%2].post("k", "b") })
	}
	require.Eventually(t, func() bool { return store.begins.Load() >= clients }, 10*time.Second, time.Millisecond)
	close(finish)
	group.Wait()
	require.EqualValues(t, 1, instances[0].runs.Load()+instances[1].runs.Load())
	firsts := 0
	for _, got := range answers {
		switch {
		case got.status == http.StatusConflict:
			requireProblem(t, got, http.StatusConflict, "in-progress")
		default:
			require.Equal(t, http.StatusCreated, got.status)
			require.Equal(t, "b", got.body)
			if !got.replayed() {
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
	store := newSpyStore()
	store.onBegin = func(ctx context.Context, _ int64, step func() error) error {
		select {
		case <-ctx.Done(): // as drivers of databases do
			return ctx.Err()
		default:
			return step()
		}
	}
	store.onComplete, store.onRelease = store.onBegin, store.onBegin
	svc := setup{store: store}.serve(t, func(w http.ResponseWriter, r *http.Request) {
		op, _ := idempotency.FromContext(r.Context())
		_, again := ran.LoadOrStore(op.Key.ID, true)
		assert.False(t, again, "executed twice")
		select { // a handler that takes notice of its client
		case <-r.Context().Done():
		case <-time.After(rand.N(2 * time.Millisecond)):
		}
		echo(w, r)
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
			if got := svc.send("/payments", key, key, withContext(ctx)); got.err != nil {
				interrupted.Add(1)
			}
		})
	}
	group.Wait()
	require.Positive(t, interrupted.Load())
	svc.server.CloseClientConnections()
	for i := range requests {
		key := fmt.Sprint("k", i)
		_, executed := ran.Load(key)
		var got answer
		require.Eventually(t, func() bool { // the handler may still be running
			got = svc.send("/payments", key, key)
			return got.err == nil && got.status != http.StatusConflict
		}, 10*time.Second, time.Millisecond)
		require.Equal(t, key, got.body)
		if executed {
			require.True(t, got.replayed())
		}
	}
}

func TestHandlerSeesTheWholeRequest(t *testing.T) {
	t.Parallel()
	svc := setup{}.guard(t, func(w http.ResponseWriter, r *http.Request) {
		assert.NoError(t, r.ParseForm())
		_, _ = fmt.Fprint(w, r.Form.Encode())
		n, err := r.Body.Read(make([]byte, 1))
		assert.Zero(t, n)
		assert.Equal(t, io.EOF, err)
		assert.NoError(t, r.Body.Close())
		_, err = r.Body.Read(make([]byte, 1))
		assert.Equal(t, http.ErrBodyReadAfterClose, err)
	})
	got := svc.call("k", "amount=1&to=bob", withHeader("Content-Type", "application/x-www-form-urlencoded"))
	require.Equal(t, "amount=1&to=bob", got.body)
}

// A handler may leave a goroutine behind. Buffers go back to a pool: it must meet no other request's bytes in them.
func TestGoroutineLeftBehindTouchesNoOtherRequest(t *testing.T) {
	t.Parallel()
	const requests = 200
	var left sync.WaitGroup
	svc := setup{}.serve(t, func(w http.ResponseWriter, r *http.Request) {
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
				got := svc.post(fmt.Sprint(letter, worker, "-", i), strings.Repeat(letter, 1000))
				assert.Equal(t, http.StatusOK, got.status)
				// What a goroutine writes before the handler has quite returned is still a part of its own answer.
				assert.Equal(t, strings.Repeat(letter, 300), strings.TrimRight(got.body, strings.ToUpper(letter)))
			}
		})
	}
	group.Wait()
	left.Wait()
}

func TestMountsUnderStripPrefixDoNotShareKeys(t *testing.T) {
	t.Parallel()
	svc := setup{outer: func(guarded http.Handler) http.Handler {
		mux := http.NewServeMux()
		for _, prefix := range []string{"/eu", "/us"} {
			mux.Handle(prefix+"/", http.StripPrefix(prefix, guarded))
		}
		return mux
	}}.serve(t, func(w http.ResponseWriter, r *http.Request) {
		op, _ := idempotency.FromContext(r.Context())
		_, _ = fmt.Fprint(w, op.Key.Endpoint, " ", r.URL.Path)
	})
	require.Equal(t, "POST /eu/payments /payments", svc.send("/eu/payments", "k", "b").body)
	require.Equal(t, "POST /us/payments /payments", svc.send("/us/payments", "k", "b").body)
	require.True(t, svc.send("/us/payments", "k", "b").replayed())
}

// Outer middleware may edit the values of fields in place as the header is written. What it edits must not be the
// record.
func TestOuterMiddlewareDoesNotEditTheRecord(t *testing.T) {
	t.Parallel()
	svc := setup{outer: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			next.ServeHTTP(observedWriter{w, func() {
				for i := range w.Header()["Set-Cookie"] {
					w.Header()["Set-Cookie"][i] += "; Secure"
				}
			}}, r)
		})
	}}.guard(t, func(w http.ResponseWriter, _ *http.Request) {
		http.SetCookie(w, &http.Cookie{Name: "a", Value: "1"})
		w.WriteHeader(http.StatusNoContent)
	})
	first := svc.call("k", "b")
	require.Equal(t, []string{"a=1; Secure"}, first.header["Set-Cookie"])
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() { requireReplay(t, first, svc.call("k", "b")) })
	}
	group.Wait()
}

func TestOutcomesAreObservedOnce(t *testing.T) {
	t.Parallel()
	svc := setup{}.guard(t, echo)
	svc.call("k", "b")
	svc.call("k", "b")
	svc.call("k", "c")
	svc.call("k k", "b")
	require.True(t, slices.Equal(svc.journal.outcomes(), []idempotency.Outcome{
		idempotency.OutcomeExecuted, idempotency.OutcomeReplayed, idempotency.OutcomeKeyReused, idempotency.OutcomeRejected,
	}))
}

// Outer middleware that recovers answers for itself. What the handler had set belongs to an answer that nobody gets.
func TestHeaderOfAPanickedHandlerIsTakenBack(t *testing.T) {
	t.Parallel()
	svc := setup{outer: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Outer", "1")
			defer func() {
				recover()
				w.WriteHeader(http.StatusInternalServerError)
			}()
			next.ServeHTTP(w, r)
		})
	}}.guard(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("X-Outer", "2")
		panic("boom")
	})
	a := svc.call("k", "b")
	require.Equal(t, http.StatusInternalServerError, a.status)
	require.Equal(t, []string{"1"}, a.header["X-Outer"])
	require.NotContains(t, a.header, "Content-Encoding")
}
