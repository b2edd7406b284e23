package idempotency_test

import (
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// A goroutine that a panicked handler leaves behind may go on to write more than can be kept. That must neither settle
// the claim a second time, nor send an answer.
func TestGoroutineOfAPanickedHandlerIsSilenced(t *testing.T) {
	t.Parallel()
	store := newSpyStore()
	releasing, written := make(chan struct{}), make(chan struct{})
	store.onRelease = func(_ context.Context, _ int64, step func() error) error {
		close(releasing)
		<-written
		return step()
	}
	svc := setup{store: store, opts: idempotency.Options{MaxResponse: 8}}.guard(t,
		func(w http.ResponseWriter, _ *http.Request) {
			go func() {
				defer close(written)
				<-releasing
				_, err := io.WriteString(w, "over the limit")
				assert.Equal(t, http.ErrHandlerTimeout, err)
			}()
			panic("boom")
		})
	r := httptest.NewRequest(http.MethodPost, "/payments", nil)
	r.Header.Set("Idempotency-Key", "k")
	w := httptest.NewRecorder()
	require.PanicsWithValue(t, "boom", func() { svc.handler.ServeHTTP(w, r) })
	require.Empty(t, w.Body.String())
	require.Zero(t, store.completes.Load())
	require.Equal(t, []idempotency.Outcome{idempotency.OutcomeReleased}, svc.journal.outcomes())
}

// The handler never ran, so even Refuse has no reason to keep the key from being tried again.
func TestClaimThatLapsedOnItsWayIsReleased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newSpyStore()
		store.onBegin = func(_ context.Context, n int64, step func() error) error {
			if n == 1 {
				defer time.Sleep(time.Minute)
			}
			return step()
		}
		b := newBench(t, store, idempotency.RunnerOptions{Lease: time.Minute, Abandoned: idempotency.Refuse})
		_, _, err := b.do(mustNotWork(t))
		require.ErrorIs(t, err, idempotency.ErrClaimLost)
		require.ErrorAs(t, err, new(*idempotency.Error))
		require.Equal(t, []idempotency.Outcome{idempotency.OutcomeClaimLost}, b.journal.outcomes())
		_, _, err = b.do(someWork)
		require.NoError(t, err)
	})
}

// A record that is made again, because it expired while its owner was suspended, must not be the one that goes when its
// response needs room.
func TestRecordRestoredInAFullMemoryStoreIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: 1000})
		claim := mustClaim(t, store, numberedKey(1), attemptFor(time.Minute))
		time.Sleep(time.Hour)
		require.ErrorIs(t, claim.Complete(t.Context(), bodyOf(1000), time.Hour), idempotency.ErrRestored)
		record, successor, err := store.Begin(t.Context(), numberedKey(1), attemptFor(time.Minute))
		require.NoError(t, err)
		require.Nil(t, successor, "claimed again")
		require.True(t, record.Response.Omitted)
	})
}

// FailOpen takes the risk that a key is held by somebody. It does not run what is known to be running.
func TestFailOpenDoesNotRunBesideTheAttemptThatItWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newSpyStore()
		store.onBegin = func(_ context.Context, n int64, step func() error) error {
			if n >= 3 {
				return errDown
			}
			return step()
		}
		opts := waiting
		opts.FailOpen = true
		b := newBench(t, store, opts)
		wait := b.own(time.Second, nil)
		_, _, err := b.do(mustNotWork(t))
		require.ErrorIs(t, err, idempotency.ErrUnavailable)
		require.Equal(t, idempotency.OutcomeUnavailable, b.journal.last(t).Outcome)
		wait()
	})
}

func TestRefusalPassesThroughCompression(t *testing.T) {
	t.Parallel()
	svc := setup{outer: compressing, opts: idempotency.Options{Required: true}}.serve(t, echo)
	got := svc.post("", "b") // the client decompresses
	got.header.Del("Content-Encoding")
	requireProblem(t, got, http.StatusBadRequest, "key-missing")
}

// compressing is middleware that leaves the Content-Length alone because handlers as a rule do not set it, which is
// common.
func compressing(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		defer z.Close()
		next.ServeHTTP(plainGzipWriter{w, z}, r)
	})
}

type plainGzipWriter struct {
	http.ResponseWriter
	z *gzip.Writer
}

func (w plainGzipWriter) Write(p []byte) (int, error) { return w.z.Write(p) }
