package idempotency_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/testservice"
)

// lateWriter is a writer of a framework that answers after its handlers have returned.
type lateWriter struct {
	http.ResponseWriter
	written bool
}

func (w *lateWriter) Write(p []byte) (int, error) {
	w.written = true
	return w.ResponseWriter.Write(p)
}

func (w *lateWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

type echoLike struct{ *lateWriter }

func (echoLike) Before(func()) {}
func (echoLike) After(func())  {}

type ginLike struct{ *lateWriter }

func (w ginLike) WriteHeaderNow() {}
func (w ginLike) Written() bool   { return w.written }

// wrappedWriter is what a middleware of a framework puts around its writer.
type wrappedWriter struct{ http.ResponseWriter }

func (w wrappedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// negroniLike has some of the methods of such writers, but its framework does not answer late.
type negroniLike struct{ http.ResponseWriter }

func (negroniLike) Before(func(http.ResponseWriter)) {}
func (negroniLike) Written() bool                    { return false }

// answeringLate is a framework that answers 402 after a handler that wrote nothing.
func answeringLate(writer func(*lateWriter) http.ResponseWriter) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			late := &lateWriter{ResponseWriter: w}
			next.ServeHTTP(writer(late), r)
			if !late.written {
				w.WriteHeader(http.StatusPaymentRequired)
				_, _ = w.Write([]byte("declined"))
			}
		})
	}
}

func asEcho(w *lateWriter) http.ResponseWriter { return echoLike{w} }

func asGin(w *lateWriter) http.ResponseWriter { return ginLike{w} }

func asWrapped(w *lateWriter) http.ResponseWriter { return wrappedWriter{wrappedWriter{echoLike{w}}} }

// silent sets a field and returns.
func silent(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Reason", "poor") }

func TestFrameworkAnswersAfterASilentHandler(t *testing.T) {
	t.Parallel()
	for name, writer := range map[string]func(*lateWriter) http.ResponseWriter{
		"echo": asEcho, "gin": asGin, "wrapped": asWrapped,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var logged bytes.Buffer
			svc := testservice.Setup{
				Outer: answeringLate(writer), Opts: idempotency.Options{Logger: slog.New(slog.NewTextHandler(&logged, nil))},
			}.Guard(t, silent)
			bare := svc.Call("", "")
			require.Equal(t, http.StatusPaymentRequired, bare.Status)
			require.Equal(t, "poor", bare.Header.Get("X-Reason"))
			for range 2 {
				require.Equal(t, bare, svc.Call("k", ""))
				require.ErrorContains(t, svc.Journal.Last(t).Err, "adapter")
				require.Equal(t, idempotency.OutcomeReleased, svc.Journal.Last(t).Outcome)
				require.Zero(t, svc.Journal.Last(t).Status)
			}
			require.EqualValues(t, 3, svc.Runs.Load())
			require.Zero(t, svc.Store.Completes.Load())
			require.Equal(t, 2, bytes.Count(logged.Bytes(), []byte("level=WARN")), logged.String())
		})
	}
}

// A handler that writes to the writer of the framework writes past the middleware.
func TestAnswerPastTheMiddlewareIsNotStored(t *testing.T) {
	t.Parallel()
	for name, writer := range map[string]func(*lateWriter) http.ResponseWriter{"echo": asEcho, "gin": asGin} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var outer http.ResponseWriter
			svc := testservice.Setup{Outer: answeringLate(func(w *lateWriter) http.ResponseWriter {
				outer = writer(w)
				return outer
			})}.Guard(t, func(_ http.ResponseWriter, r *http.Request) { testservice.Echo(outer, r) })
			for range 2 {
				got := svc.Call("k", "b")
				require.Equal(t, http.StatusCreated, got.Status)
				require.Equal(t, "b", got.Body)
			}
			require.EqualValues(t, 2, svc.Runs.Load())
			require.Zero(t, svc.Store.Completes.Load())
		})
	}
}

func TestSilenceIsAnAnswerWhereNobodyAnswersLater(t *testing.T) {
	t.Parallel()
	explicit := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }
	asServer := func(w *lateWriter) http.ResponseWriter { return w.ResponseWriter }
	asServerWrapped := func(w *lateWriter) http.ResponseWriter { return wrappedWriter{w.ResponseWriter} }
	asNegroni := func(w *lateWriter) http.ResponseWriter { return negroniLike{w.ResponseWriter} }
	for name, row := range map[string]struct {
		writer  func(*lateWriter) http.ResponseWriter
		handler http.HandlerFunc
	}{
		"net/http":           {asServer, silent},
		"wrapped":            {asServerWrapped, silent},
		"another framework":  {asNegroni, silent},
		"echo, a status":     {asEcho, explicit},
		"gin, a status":      {asGin, explicit},
		"gin, an empty body": {asGin, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(nil) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			svc := testservice.Setup{Outer: func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					next.ServeHTTP(row.writer(&lateWriter{ResponseWriter: w}), r)
				})
			}}.Guard(t, row.handler)
			first := svc.Call("k", "")
			require.Equal(t, http.StatusOK, first.Status)
			testservice.RequireReplay(t, first, svc.Call("k", ""))
			require.EqualValues(t, 1, svc.Runs.Load())
		})
	}
}

// Echo's WrapMiddleware leaves the writer of the handler in the context, so echo answers by way of it: also after a
// panic, and after a timeout.
func TestFrameworkAnswersByTheWriterOfTheHandler(t *testing.T) {
	t.Parallel()
	for name, handler := range map[string]http.HandlerFunc{
		"silent": silent,
		"panic":  func(http.ResponseWriter, *http.Request) { panic("crash") },
		"late":   func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var inner http.ResponseWriter
				svc := testservice.Setup{Outer: func(next http.Handler) http.Handler {
					return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						ctx, cancel := context.WithTimeout(r.Context(), time.Second)
						defer cancel()
						func() {
							defer func() { _ = recover() }()
							next.ServeHTTP(echoLike{&lateWriter{ResponseWriter: w}}, r.WithContext(ctx))
						}()
						inner.Header().Set("Content-Type", "text/plain")
						inner.WriteHeader(http.StatusPaymentRequired)
						_, _ = io.WriteString(inner, "decl")
						assert.NoError(t, http.NewResponseController(inner).Flush())
						_, _ = inner.Write([]byte("ined"))
					})
				}}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
					inner = w
					handler(w, r)
				})
				for range 2 {
					got := svc.Post("k", "")
					require.Equal(t, http.StatusPaymentRequired, got.Status)
					require.Equal(t, "declined", got.Body)
					require.Equal(t, "text/plain", got.Header.Get("Content-Type"))
				}
				require.EqualValues(t, 2, svc.Runs.Load())
				require.Zero(t, svc.Store.Completes.Load())
			})
		})
	}
}

// What a handler has decided holds, although nobody knows its answer.
func TestDecisionOfASilentHandler(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		verdict idempotency.Verdict
		retry   int
		runs    int64
	}{
		"keep":      {idempotency.Keep, http.StatusConflict, 1},
		"tombstone": {idempotency.Tombstone, http.StatusConflict, 1},
		"free":      {idempotency.Free, http.StatusPaymentRequired, 2},
		"unknown":   {idempotency.Unknown, http.StatusPaymentRequired, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			svc := testservice.Setup{Outer: answeringLate(asEcho)}.Guard(t, func(_ http.ResponseWriter, r *http.Request) {
				idempotency.Decide(r.Context(), row.verdict)
			})
			require.Equal(t, http.StatusPaymentRequired, svc.Call("k", "").Status)
			retry := svc.Call("k", "")
			require.Equal(t, row.retry, retry.Status)
			if row.runs == 1 {
				testservice.RequireProblem(t, retry, http.StatusConflict, "not-replayable")
			}
			require.Equal(t, row.runs, svc.Runs.Load())
		})
	}
}

func TestSilentHandlerWithRefuse(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{
		Outer: answeringLate(asEcho), Opts: idempotency.Options{Abandoned: idempotency.Refuse, Lease: 2 * time.Second},
	}.Guard(t, silent)
	require.Equal(t, http.StatusPaymentRequired, svc.Call("k", "").Status)
	require.Equal(t, idempotency.OutcomeAbandoned, svc.Journal.Last(t).Outcome)
	testservice.RequireProblem(t, svc.Call("k", ""), http.StatusConflict, "in-progress")
	require.EqualValues(t, 1, svc.Runs.Load())
}

// Without a claim, nothing is recorded, and the framework answers.
func TestSilentHandlerThatNobodyGuards(t *testing.T) {
	t.Parallel()
	store := testservice.NewSpyStore()
	store.OnBegin = testservice.Failing(testservice.Always, idempotency.ErrUnavailable)
	svc := testservice.Setup{
		Store: store, Outer: answeringLate(asEcho), Opts: idempotency.Options{FailOpen: true},
	}.Guard(t, silent)
	require.Equal(t, http.StatusPaymentRequired, svc.Call("k", "").Status)
}
