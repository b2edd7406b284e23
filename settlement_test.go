package idempotency_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// requireLive requires that ctx is live: Err and Cause return nil, and the Done channel is open.
func requireLive(t *testing.T, ctx context.Context) {
	t.Helper()
	require.NoError(t, ctx.Err())
	require.NoError(t, context.Cause(ctx))
	select {
	case <-ctx.Done():
		require.Fail(t, "is done")
	default:
	}
}

// requireEnded waits until ctx ends, and requires the given error and cause.
func requireEnded(t *testing.T, ctx context.Context, err, cause error) {
	t.Helper()
	<-ctx.Done()
	require.Equal(t, err, ctx.Err())
	require.Equal(t, cause, context.Cause(ctx))
}

var errHungUp = errors.New("hung up")

// The context of work ends when the caller's context ends, when the claim is lost, and when work has returned.
func TestContextOfWork(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		during     func(t *testing.T, ctx context.Context, hangUp func()) // called by work
		err, cause error                                                  // afterwards
	}{
		"never asked":   {func(*testing.T, context.Context, func()) {}, context.Canceled, context.Canceled},
		"asked":         {func(t *testing.T, ctx context.Context, _ func()) { requireLive(t, ctx) }, context.Canceled, context.Canceled},
		"asked for Err": {func(t *testing.T, ctx context.Context, _ func()) { require.NoError(t, ctx.Err()) }, context.Canceled, context.Canceled},
		"caller hangs up": {func(t *testing.T, ctx context.Context, hangUp func()) {
			requireLive(t, ctx)
			hangUp()
			requireEnded(t, ctx, context.Canceled, errHungUp)
		}, context.Canceled, errHungUp},
		"caller has hung up": {func(t *testing.T, ctx context.Context, hangUp func()) {
			hangUp()
			require.Equal(t, errHungUp, context.Cause(ctx))
			requireEnded(t, ctx, context.Canceled, errHungUp)
		}, context.Canceled, errHungUp},
		"caller hangs up, and work does not ask": {func(_ *testing.T, _ context.Context, hangUp func()) { hangUp() },
			context.Canceled, errHungUp},
		"lost": {func(t *testing.T, ctx context.Context, _ func()) {
			time.Sleep(time.Minute)
			requireEnded(t, ctx, context.Canceled, idempotency.ErrClaimLost)
		}, context.Canceled, idempotency.ErrClaimLost},
		"lost while it is awaited": {func(t *testing.T, ctx context.Context, _ func()) {
			requireEnded(t, ctx, context.Canceled, idempotency.ErrClaimLost)
		}, context.Canceled, idempotency.ErrClaimLost},
		"derived": {func(t *testing.T, ctx context.Context, _ func()) {
			derived, cancel := context.WithTimeout(ctx, time.Hour)
			defer cancel()
			requireLive(t, derived)
			requireEnded(t, derived, context.Canceled, idempotency.ErrClaimLost)
		}, context.Canceled, idempotency.ErrClaimLost},
	} {
		for first, ask := range map[string]func(t *testing.T, ctx context.Context){
			"Err":   func(t *testing.T, ctx context.Context) { require.Equal(t, test.err, ctx.Err()) },
			"Cause": func(t *testing.T, ctx context.Context) { require.Equal(t, test.cause, context.Cause(ctx)) },
			"Done":  func(_ *testing.T, ctx context.Context) { <-ctx.Done() },
		} {
			t.Run(name+", then "+first, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { testContextOfWork(t, test.during, ask, test.err, test.cause) })
			})
		}
	}
}

// testContextOfWork runs work that calls during. After the end of work, testContextOfWork calls ask with the context
// of work, and requires err and cause of this context.
func testContextOfWork(
	t *testing.T, during func(*testing.T, context.Context, func()), ask func(*testing.T, context.Context), err, cause error,
) {
	store := testservice.NewSpyStore()
	store.OnExtend = testservice.Failing(testservice.Always, idempotency.ErrClaimLost)
	b := newBench(t, store, idempotency.RunnerOptions{Lease: time.Minute})
	parent, hangUp := context.WithCancelCause(context.WithValue(t.Context(), errHungUp, "value"))
	defer hangUp(nil)
	var kept context.Context
	_, _, _ = b.Do(parent, someKey, nil, func(ctx context.Context) (idempotency.Response, error) {
		during(t, ctx, func() { hangUp(errHungUp) })
		kept = ctx
		return someWork(ctx)
	})
	ask(t, kept)
	requireEnded(t, kept, err, cause)
	require.Equal(t, "value", kept.Value(errHungUp))
	operation, ok := idempotency.FromContext(kept)
	require.True(t, ok)
	require.Equal(t, someKey, operation.Key)
	derived, cancel := context.WithCancel(kept)
	defer cancel()
	requireEnded(t, derived, err, cause)
}

func TestContextOfWorkIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	b := newBench(t, testservice.NewSpyStore(), idempotency.RunnerOptions{})
	var group sync.WaitGroup
	for range 50 {
		_, _, err := b.Do(t.Context(), testservice.NumberedKey(0), nil, func(ctx context.Context) (idempotency.Response, error) {
			for range 4 {
				group.Go(func() {
					_, _ = ctx.Err(), ctx.Value(errHungUp)
					<-ctx.Done()
					assert.Error(t, ctx.Err())
				})
			}
			return idempotency.Response{}, errHungUp // an error, so that each call runs the work
		})
		require.Equal(t, errHungUp, err)
	}
	group.Wait()
}

// Each step of the store ends at its own deadline, after StoreTimeout, even if the request's context has ended before
// the step.
func TestStepsEndByTheirDeadlines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const timeout = 8 * time.Second
		store := testservice.NewSpyStore()
		store.OnBegin = func(ctx context.Context, n int64, _ func() error) error {
			began := time.Now()
			assert.NoError(t, context.Cause(ctx))
			deadline, ok := ctx.Deadline()
			assert.True(t, ok)
			assert.Equal(t, began.Add(timeout), deadline)
			<-ctx.Done()
			assert.Equal(t, timeout, time.Since(began))
			assert.Equal(t, context.DeadlineExceeded, context.Cause(ctx))
			return ctx.Err()
		}
		b := newBench(t, store, idempotency.RunnerOptions{StoreTimeout: timeout})
		parent, hangUp := context.WithCancelCause(t.Context())
		hangUp(errHungUp)
		_, _, err := b.Do(parent, someKey, nil, someWork)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

// signalWhenClientLeaves returns middleware that sends to gone when the server notices the client's departure.
func signalWhenClientLeaves(gone chan<- struct{}) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			stop := context.AfterFunc(r.Context(), func() { gone <- struct{}{} })
			defer stop()
			next.ServeHTTP(w, r)
		})
	}
}

// The handler goes on after the client has left, and the retry gets the handler's answer.
func TestClientThatLeavesDecidesNothing(t *testing.T) {
	t.Parallel()
	working, gone, finish := make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{})
	svc := testservice.Setup{Outer: signalWhenClientLeaves(gone)}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		working <- struct{}{}
		select {
		case <-finish:
			testservice.Echo(w, r)
		case <-r.Context().Done(): // the handler would return without an answer
		}
	})
	svc.HangUp(t, "k", working, gone)
	testservice.RequireProblem(t, svc.Post("k", "b"), http.StatusConflict, "in-progress")
	close(finish)
	require.Eventually(t, func() bool { return len(svc.Journal.All()) == 2 }, 10*time.Second, time.Millisecond)
	got := svc.Post("k", "b")
	require.True(t, got.Replayed())
	require.Equal(t, "b", got.Body)
	require.EqualValues(t, 1, svc.Runs.Load())
}

// With CancelWithClient or Stream, the context of the handler ends when the client leaves. A handler that then
// returns without a word has given no answer, so the claim is released, or abandoned with Refuse.
func TestHandlerThatEndsWithItsClient(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]idempotency.Options{
		"option": {CancelWithClient: true},
		"stream": {Stream: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			svc := serveLeavingClient(t, opts)
			require.Equal(t, idempotency.OutcomeReleased, svc.Journal.Last(t).Outcome)
			require.Equal(t, http.StatusCreated, svc.Post("k", "b").Status)
		})
	}
	t.Run("option, refuse", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			opts := idempotency.Options{CancelWithClient: true, Abandoned: idempotency.Refuse, Lease: time.Minute}
			svc := serveLeavingClient(t, opts)
			require.Equal(t, idempotency.OutcomeAbandoned, svc.Journal.Last(t).Outcome)
			time.Sleep(time.Minute)
			testservice.RequireProblem(t, svc.Post("k", "b"), http.StatusConflict, "outcome-unknown")
		})
	})
}

// serveLeavingClient returns a service after the departure of its first client. The handler of that client has
// returned.
func serveLeavingClient(t *testing.T, opts idempotency.Options) *testservice.Service {
	t.Helper()
	working, gone := make(chan struct{}, 1), make(chan struct{}, 1)
	svc := testservice.Setup{Outer: signalWhenClientLeaves(gone), Opts: opts}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		if op, _ := idempotency.FromContext(r.Context()); op.Attempt > 1 {
			testservice.Echo(w, r)
			return
		}
		working <- struct{}{}
		<-r.Context().Done()
	})
	svc.HangUp(t, "k", working, gone)
	require.Eventually(t, func() bool { return len(svc.Journal.All()) == 1 }, 10*time.Second, time.Millisecond)
	return svc
}

// withTimeout returns middleware that limits the time of a request, and answers 504 after the deadline, as chi's
// Timeout does.
func withTimeout(d time.Duration) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), d)
			defer func() {
				cancel()
				if ctx.Err() == context.DeadlineExceeded {
					w.WriteHeader(http.StatusGatewayTimeout)
				}
			}()
			next.ServeHTTP(w, r.WithContext(ctx))
		})
	}
}

// A handler that returns at its deadline without a word has given no answer: the client gets the answer of the outer
// middleware, and the retry runs the handler again. With Refuse, the retry is refused.
func TestGivingUpAtADeadlineIsNoAnswer(t *testing.T) {
	t.Parallel()
	const allowed = time.Second
	givingUp := testservice.WithHeader("X-Give-Up", "1")
	for name, test := range map[string]struct {
		outer  func(http.Handler) http.Handler
		status int
	}{
		"middleware answers":  {withTimeout(allowed), http.StatusGatewayTimeout},
		"http.TimeoutHandler": {func(h http.Handler) http.Handler { return http.TimeoutHandler(h, allowed, "") }, http.StatusServiceUnavailable},
		"no answer":           {withDeadline(allowed), http.StatusOK}, // as without a key
	} {
		for _, policy := range []idempotency.Abandoned{idempotency.ReExecute, idempotency.Refuse} {
			t.Run(fmt.Sprint(name, policy), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					svc := testservice.Setup{
						Outer: test.outer, Opts: idempotency.Options{Abandoned: policy},
					}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
						if r.Header.Get("X-Give-Up") == "" {
							testservice.Echo(w, r)
							return
						}
						w.Header().Set("X-Left-Behind", "1")
						<-r.Context().Done()
						assert.Equal(t, context.DeadlineExceeded, context.Cause(r.Context()))
					})
					require.Equal(t, test.status, svc.Post("", "b", givingUp).Status, "without a key")
					first := svc.Post("k", "b", givingUp)
					require.Equal(t, test.status, first.Status)
					require.NotContains(t, first.Header, "X-Left-Behind")
					require.Eventually(t, func() bool { return len(svc.Journal.All()) == 1 }, 10*time.Second, time.Millisecond)
					second := svc.Post("k", "b")
					require.False(t, second.Replayed())
					if policy == idempotency.Refuse {
						testservice.RequireProblem(t, second, http.StatusConflict, "outcome-unknown")
						require.Equal(t, idempotency.OutcomeAbandoned, svc.Journal.All()[0].Outcome)
						return
					}
					require.Equal(t, http.StatusCreated, second.Status)
					require.Equal(t, idempotency.OutcomeReleased, svc.Journal.All()[0].Outcome)
					require.True(t, svc.Post("k", "b").Replayed())
				})
			})
		}
	}
}

// withDeadline returns middleware that sets a deadline, and leaves the answer to the handler.
func withDeadline(d time.Duration) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), d)
			defer cancel()
			next.ServeHTTP(w, r.WithContext(ctx))
		})
	}
}

// A handler that answers after its deadline has answered. The client has got the answer of the outer middleware, and
// the retry gets the answer of the handler.
func TestAnswerAfterADeadlineIsStored(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		answered := make(chan struct{})
		outer := func(h http.Handler) http.Handler { return http.TimeoutHandler(h, time.Second, "") }
		svc := testservice.Setup{Outer: outer}.Serve(t,
			func(w http.ResponseWriter, r *http.Request) {
				<-r.Context().Done()
				<-answered
				_, _ = io.WriteString(w, "late")
			})
		require.Equal(t, http.StatusServiceUnavailable, svc.Post("k", "b").Status)
		close(answered)
		require.Eventually(t, func() bool { return len(svc.Journal.All()) == 1 }, 10*time.Second, time.Millisecond)
		require.Equal(t, "late", svc.Post("k", "b").Body)
		require.EqualValues(t, 1, svc.Runs.Load())
	})
}

func TestContextOfAHandler(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		store := testservice.NewSpyStore()
		store.OnExtend = testservice.Failing(testservice.Always, idempotency.ErrClaimLost)
		svc := testservice.Setup{
			Store: store, Opts: idempotency.Options{Lease: time.Minute},
		}.Guard(t, func(w http.ResponseWriter, r *http.Request) {
			ctx := r.Context()
			requireLive(t, ctx)
			require.Equal(t, "value", ctx.Value(key{}))
			deadline, ok := ctx.Deadline()
			require.True(t, ok)
			require.Equal(t, time.Hour, time.Until(deadline))
			requireEnded(t, ctx, context.Canceled, idempotency.ErrClaimLost)
			testservice.Echo(w, r)
		})
		ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, "value"), time.Hour)
		cancel() // the client has left
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), time.Hour)
		defer cancel()
		svc.Call("k", "b", testservice.WithContext(ctx))
	})
}

// A printed context conceals the user and the key.
func TestPrintedContextShowsNoKey(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{User: func(*http.Request) (string, error) { return "secretuser", nil }}.Guard(t,
		func(w http.ResponseWriter, r *http.Request) {
			for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
				assert.NotContains(t, fmt.Sprintf(format, r.Context()), "secret")
			}
		})
	svc.Call("secretkey", "b")
	require.EqualValues(t, 1, svc.Runs.Load())
}

// A handler behind two Middlewares of the same store runs once, with and without Wait, and each request asks the
// store once.
func TestMountedTwice(t *testing.T) {
	t.Parallel()
	for _, wait := range []time.Duration{0, time.Minute} {
		store := testservice.NewSpyStore()
		opts := idempotency.Options{Wait: wait}
		outer, err := idempotency.New(store, idempotency.SingleUser, opts)
		require.NoError(t, err)
		svc := testservice.Setup{Store: store, Outer: outer.Handler, Opts: opts}.Serve(t, testservice.Echo)
		first := svc.Post("k", "b")
		require.Equal(t, http.StatusCreated, first.Status)
		testservice.RequireReplay(t, first, svc.Post("k", "b"))
		require.EqualValues(t, 1, svc.Runs.Load())
		require.EqualValues(t, 2, store.Begins.Load(), "one for each request")
	}
}

// A different key, user or store makes a different operation, even inside a running operation. Here the outer
// Middleware has its own user.
func TestOperationInsideOfAnother(t *testing.T) {
	t.Parallel()
	store := testservice.NewSpyStore()
	outer, err := idempotency.New(store, func(*http.Request) (string, error) { return "gateway", nil }, idempotency.Options{})
	require.NoError(t, err)
	svc := testservice.Setup{Store: store, Outer: outer.Handler}.Serve(t, testservice.Echo)
	first := svc.Post("k", "b")
	require.EqualValues(t, 2, store.Begins.Load())
	testservice.RequireReplay(t, first, svc.Post("k", "b"))
	require.EqualValues(t, 1, svc.Runs.Load())
}

// If a client leaves while its request waits, the outcome is OutcomeClientLeft, because the request was not refused.
func TestWaitingClientThatLeaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		finish := make(chan struct{})
		svc := testservice.Setup{
			Opts: idempotency.Options{Wait: time.Hour},
		}.Guard(t, func(w http.ResponseWriter, r *http.Request) { <-finish })
		go svc.Call("k", "b")
		synctest.Wait()
		ctx, leave := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, leave)
		svc.Call("k", "b", testservice.WithContext(ctx))
		require.Equal(t, idempotency.OutcomeClientLeft, svc.Journal.Last(t).Outcome)
		require.Equal(t, context.Canceled, svc.Journal.Last(t).Err)
		require.Equal(t, time.Second, svc.Journal.Last(t).Waited)
		close(finish)
	})
}

// Retry-After is one second while the owner renews its lease. After the last renewal, Retry-After is the rest of the
// lease.
func TestRetryAfterOfWhatIsInProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testservice.NewSpyStore()
		var dead atomic.Bool
		store.OnExtend = func(_ context.Context, _ int64, step func() error) error {
			if dead.Load() {
				return testservice.ErrDown
			}
			return step()
		}
		finish := make(chan struct{})
		svc := testservice.Setup{Store: store, Opts: idempotency.Options{Lease: time.Minute}}.Guard(t,
			func(w http.ResponseWriter, r *http.Request) { <-finish })
		retryAfter := func() string {
			w := httptest.NewRecorder()
			r := httptest.NewRequest(http.MethodPost, "/payments", nil)
			r.Header.Set("Idempotency-Key", "k")
			svc.Handler.ServeHTTP(w, r)
			require.Equal(t, http.StatusConflict, w.Code)
			return w.Header().Get("Retry-After")
		}
		go svc.Call("k", "")
		synctest.Wait()
		for range 10 {
			time.Sleep(19 * time.Second)
			require.Equal(t, "1", retryAfter())
		}
		dead.Store(true)
		time.Sleep(40 * time.Second) // the last renewal was 50 seconds ago
		require.Equal(t, "10", retryAfter())
		close(finish)
	})
}

// lateContext ends later than its deadline, as the timer of a context may be late.
type lateContext struct {
	context.Context
	deadline time.Time
}

func (c lateContext) Deadline() (time.Time, bool) { return c.deadline, true }

// A request lasts until the context of the outer middleware has ended, even after the context's deadline, because
// outer middleware learns of the deadline from its own timer.
func TestGivingUpWaitsForTheOuterDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		svc := testservice.Setup{}.Guard(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		svc.Call("k", "b", testservice.WithContext(lateContext{ctx, began.Add(time.Second)}))
		require.Equal(t, 2*time.Second, time.Since(began))
	})
}

// After Keep, a handler that has written nothing has answered with an empty 200, even after its deadline.
func TestMissingAnswerThatIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		svc := testservice.Setup{Outer: withTimeout(time.Second)}.Guard(t, func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			idempotency.Decide(r.Context(), idempotency.Keep)
		})
		first := svc.Call("k", "b")
		require.Equal(t, http.StatusOK, first.Status)
		testservice.RequireReplay(t, first, svc.Call("k", "b"))
	})
}

// Nothing is added to a streamed answer, even if the claim is lost at the completion.
func TestNothingIsAddedToAStreamAfterALostClaim(t *testing.T) {
	t.Parallel()
	store := testservice.NewSpyStore()
	store.OnComplete = testservice.Failing(testservice.Always, idempotency.ErrClaimLost)
	svc := testservice.Setup{
		Store: store, Opts: idempotency.Options{Stream: true},
	}.Serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "event")
		w.(http.Flusher).Flush()
	})
	got := svc.Post("k", "b")
	require.Equal(t, "event", got.Body)
	require.Equal(t, http.StatusOK, got.Status)
	require.Equal(t, idempotency.OutcomeClaimLost, svc.Journal.Last(t).Outcome)
}

// MaxResponse limits only answers to be stored. FailOpen runs a handler without a claim, and sends a larger answer in
// full.
func TestLargeAnswerWithoutProtection(t *testing.T) {
	t.Parallel()
	store := testservice.NewSpyStore()
	store.OnBegin = testservice.Failing(testservice.Always, testservice.ErrDown)
	svc := testservice.Setup{Store: store, Opts: idempotency.Options{FailOpen: true, MaxResponse: 8}}.Guard(t, testservice.Echo)
	require.Equal(t, "over the limit", svc.Call("k", "over the limit").Body)
}

// frameworkWriter is a ResponseWriter like the writer of echo. Such a framework answers after its handlers have
// returned.
type frameworkWriter struct{ http.ResponseWriter }

func (frameworkWriter) Before(func()) {}
func (frameworkWriter) After(func())  {}

// Each end of a handler, combined with each verdict, has one record action. The action determines the outcome, the
// answer to the client, and what a retry finds three leases later.
func TestEveryRecordAction(t *testing.T) {
	t.Parallel()
	status := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
	}
	verdicts := []idempotency.Verdict{0, idempotency.Keep, idempotency.Tombstone, idempotency.Free, idempotency.Unknown}
	endings := []struct {
		name    string
		end     http.HandlerFunc
		actions string // one for each verdict
		reasons string // why the attempt ended, one for each verdict; "-" without a record or with a response
		status  string // in the answer to the first client, one for each verdict
	}{
		{"panics", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
			"unknown unknown unknown unknown unknown", "panicked panicked panicked panicked panicked", "0 0 0 0 0"},
		{"silent", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
			"unknown kept tombstone released unknown", "gave-up - - - not-kept", "504 200 200 504 504"},
		{"left open", func(http.ResponseWriter, *http.Request) {},
			"unknown tombstone tombstone released unknown", "no-answer - - - not-kept", "418 418 418 418 418"},
		{"broken off", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "10")
			_, _ = io.WriteString(w, "x")
		}, "failed tombstone tombstone released unknown", "truncated - - - not-kept", "200 200 200 200 200"},
		{"storable", status(201), "kept kept tombstone released unknown", "- - - - not-kept", "201 201 201 201 201"},
		{"refused", status(422), "released kept tombstone released unknown", "- - - - not-kept", "422 422 422 422 422"},
		{"failed", status(500), "failed kept tombstone released unknown", "not-storable - - - not-kept", "500 500 500 500 500"},
	}
	policies := map[string]idempotency.Abandoned{"re-execute": idempotency.ReExecute, "refuse": idempotency.Refuse}
	for _, ending := range endings {
		for i, verdict := range verdicts {
			for name, abandoned := range policies {
				synctest.Test(t, func(t *testing.T) {
					action := strings.Fields(ending.actions)[i]
					what := fmt.Sprintf("%s, verdict %d, %s: %s", ending.name, verdict, name, action)
					setup := testservice.Setup{
						Opts: idempotency.Options{
							Abandoned: abandoned, Storable: func(resp *idempotency.Response) bool { return resp.Status < 400 },
						},
						Outer: answerForSilentHandler(ending.name == "left open"),
					}
					var svc *testservice.Service
					svc = setup.Guard(t, func(w http.ResponseWriter, r *http.Request) {
						if svc.Runs.Load() > 1 {
							op, _ := idempotency.FromContext(r.Context())
							_, _ = fmt.Fprint(w, op.Attempt)
							return
						}
						if verdict != 0 {
							require.True(t, idempotency.Decide(r.Context(), verdict))
						}
						ending.end(w, r)
					})
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					var first testservice.Answer
					func() {
						defer func() { _ = recover() }()
						first = svc.Call("k", "b", testservice.WithContext(ctx))
					}()
					require.Equal(t, strings.Fields(ending.status)[i], fmt.Sprint(first.Status), what)
					refuses := abandoned == idempotency.Refuse
					wanted := idempotency.OutcomeReleased
					switch {
					case action == "kept" || action == "tombstone":
						wanted = idempotency.OutcomeExecuted
					case action == "unknown" && refuses:
						wanted = idempotency.OutcomeAbandoned
					}
					require.Equal(t, []idempotency.Outcome{wanted}, svc.Journal.Outcomes(), what)
					entry, _ := svc.Store.Store.(idempotency.Inspector).Inspect(t.Context(), svc.Journal.Last(t).Key)
					require.Equal(t, strings.Fields(ending.reasons)[i], cmp.Or(string(entry.Ended), "-"), what)

					time.Sleep(90 * time.Second)
					again := svc.Call("k", "b")
					switch {
					case action == "kept":
						require.True(t, again.Replayed(), what)
						require.Equal(t, first.Status, again.Status, what)
					case action == "tombstone":
						testservice.RequireProblem(t, again, http.StatusConflict, "not-replayable")
					case action == "unknown" && refuses:
						testservice.RequireProblem(t, again, http.StatusConflict, "outcome-unknown")
					case action == "released":
						require.Equal(t, "1", again.Body, what) // the record is forgotten
					default:
						require.Equal(t, "2", again.Body, what)
					}
				})
			}
		}
	}
}

// answerForSilentHandler returns outer middleware that answers if the handler has written nothing: with asFramework
// as a framework does, otherwise as middleware with a deadline does.
func answerForSilentHandler(asFramework bool) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			written := &writeSpy{ResponseWriter: w}
			switch {
			case asFramework:
				next.ServeHTTP(frameworkWriter{written}, r)
			default:
				next.ServeHTTP(written, r)
			}
			switch {
			case written.hasWritten:
			case asFramework:
				w.WriteHeader(http.StatusTeapot)
			default:
				w.WriteHeader(http.StatusGatewayTimeout)
			}
		})
	}
}

// writeSpy notes whether the handler has written anything.
type writeSpy struct {
	http.ResponseWriter
	hasWritten bool
}

func (w *writeSpy) WriteHeader(status int) {
	w.hasWritten = true
	w.ResponseWriter.WriteHeader(status)
}

func (w *writeSpy) Write(p []byte) (int, error) {
	w.hasWritten = true
	return w.ResponseWriter.Write(p)
}

// failBetween returns a hook of a store that fails from the time from until the time to, both counted from the call
// of failBetween.
func failBetween(from, to time.Duration) testservice.Hook {
	start := time.Now()
	return func(ctx context.Context, _ int64, step func() error) error {
		if since := time.Since(start); since >= from && since < to {
			return testservice.ErrDown
		}
		return step()
	}
}

// The process keeps an answer while the store is down, and stores the answer when the store is back, within the lease
// or after its end. No other attempt runs the operation in the meantime.
func TestAnswerIsStoredWhenTheStoreIsBack(t *testing.T) {
	t.Parallel()
	for name, down := range map[string]time.Duration{"within the lease": 6 * time.Second, "after the lease": time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			store := testservice.NewSpyStore()
			store.OnComplete, store.OnExtend, store.OnBegin = failBetween(0, down), failBetween(0, down), failBetween(1, down)
			svc := testservice.Setup{
				Store: store, Opts: idempotency.Options{StoreTimeout: 2 * time.Second},
			}.Guard(t, testservice.AttemptNumber)
			began := time.Now()
			first := svc.Call("k", "b")
			require.Equal(t, "attempt 1", first.Body)
			require.LessOrEqual(t, time.Since(began), 2*time.Second, "the client has its answer in time")
			require.Equal(t, []idempotency.Outcome{idempotency.OutcomeUnrecorded}, svc.Journal.Outcomes())
			time.Sleep(down - time.Since(began) + time.Second)
			require.Equal(t, []idempotency.Outcome{idempotency.OutcomeUnrecorded, idempotency.OutcomeRecorded}, svc.Journal.Outcomes())
			require.Equal(t, svc.Journal.All()[0].Operation, svc.Journal.All()[1].Operation)
			testservice.RequireReplay(t, first, svc.Call("k", "b"))
			require.EqualValues(t, 1, svc.Runs.Load(), name)
		})
	}
}

// The lease is renewed until the answer is stored.
func TestLeaseOfAnAnswerThatIsNotStoredIsRenewed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testservice.NewSpyStore()
		store.OnComplete = failBetween(0, 10*time.Minute) // but Extend works
		svc := testservice.Setup{Store: store}.Guard(t, testservice.Echo)
		first := svc.Call("k", "b")
		for range 19 {
			time.Sleep(30 * time.Second)
			testservice.RequireProblem(t, svc.Call("k", "b"), http.StatusConflict, "in-progress")
		}
		time.Sleep(30 * time.Second)
		testservice.RequireReplay(t, first, svc.Call("k", "b"))
		renewed := store.Extends.Load()
		time.Sleep(time.Hour)
		require.Equal(t, renewed, store.Extends.Load(), "renewed after the answer was stored")
	})
}

// The body of an answer lies in a buffer, and the next requests use this buffer, too. The body stays unchanged until
// the answer is stored.
func TestAnswerThatIsNotStoredYetKeepsItsBody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testservice.NewSpyStore()
		store.OnComplete = func(ctx context.Context, n int64, step func() error) error {
			if n == 1 {
				<-ctx.Done()
				return ctx.Err()
			}
			return step()
		}
		svc := testservice.Setup{Store: store}.Guard(t, testservice.Echo)
		first := svc.Call("k", "the first answer")
		for range 10 {
			svc.Call(testservice.NumberedKey(1).ID, "another answer, and longer")
		}
		time.Sleep(time.Minute)
		testservice.RequireReplay(t, first, svc.Call("k", "the first answer"))
	})
}

// While the store was down, another attempt has taken over and completed the operation. The answer of that attempt is
// replayed, and the late answer is not stored.
func TestLateAnswerOfALostClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testservice.NewSpyStore()
		var mu sync.Mutex
		cutOff := true
		store.OnComplete = func(_ context.Context, n int64, step func() error) error {
			mu.Lock()
			defer mu.Unlock()
			if cutOff {
				return testservice.ErrDown
			}
			return step()
		}
		store.OnExtend = testservice.Failing(testservice.Always, testservice.ErrDown)
		svc := testservice.Setup{Store: store}.Guard(t, testservice.AttemptNumber)
		require.Equal(t, "attempt 1", svc.Call("k", "b").Body)
		time.Sleep(30 * time.Second)
		other := testservice.Setup{Store: store.Store}.Guard(t, testservice.AttemptNumber) // another process
		second := other.Call("k", "b")
		require.Equal(t, "attempt 2", second.Body)
		mu.Lock()
		cutOff = false
		mu.Unlock()
		time.Sleep(time.Minute)
		require.Equal(t, []idempotency.Outcome{idempotency.OutcomeUnrecorded, idempotency.OutcomeClaimLost}, svc.Journal.Outcomes())
		testservice.RequireReplay(t, second, svc.Call("k", "b"))
	})
}

func TestShutdownWaitsForWhatIsNotSettled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testservice.NewSpyStore()
		store.OnComplete = failBetween(0, time.Minute)
		b := newBench(t, store, idempotency.RunnerOptions{})
		require.NoError(t, b.Shutdown(t.Context()), "nothing to wait for")

		b = newBench(t, store, idempotency.RunnerOptions{})
		_, _, err := b.doOperation(someWork)
		require.NoError(t, err)
		began := time.Now()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		b2 := newBench(t, store, idempotency.RunnerOptions{})
		_, _, err = b2.Do(t.Context(), testservice.NumberedKey(1), nil, someWork)
		require.NoError(t, err)
		err = b2.Shutdown(short)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "1 operations are not settled")
		require.NoError(t, b2.Shutdown(t.Context()), "the operation was given up")

		require.NoError(t, b.Shutdown(t.Context()))
		require.GreaterOrEqual(t, time.Since(began), 50*time.Second)
		require.Equal(t, idempotency.OutcomeRecorded, b.journal.Last(t).Outcome)
		_, replayed, err := b.doOperation(mustNotWork(t))
		require.NoError(t, err)
		require.True(t, replayed)
	})
}

// After Shutdown, the Runner does no background work: an answer that the store does not take during the call is given
// up.
func TestNoBackgroundWorkAfterShutdown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testservice.NewSpyStore()
		store.OnComplete = testservice.Failing(testservice.Always, testservice.ErrDown)
		b := newBench(t, store, idempotency.RunnerOptions{})
		require.NoError(t, b.Shutdown(t.Context()))
		_, _, err := b.doOperation(someWork)
		require.NoError(t, err)
		require.Equal(t, idempotency.OutcomeUnrecorded, b.journal.Last(t).Outcome)
		completes, extends := store.Completes.Load(), store.Extends.Load()
		time.Sleep(time.Hour)
		require.Equal(t, completes, store.Completes.Load())
		require.Equal(t, extends, store.Extends.Load())
	})
}

// spreadKeyOverUsers returns the key with the number n. The keys belong to ten users in turn.
func spreadKeyOverUsers(n int) idempotency.Key {
	key := testservice.NumberedKey(n)
	key.User = strconv.Itoa(n % 10)
	return key
}

// The number and the bytes of waiting answers are bounded, because a long outage of the store must not fill the
// memory. Answers beyond the limit are given up.
func TestBacklogIsBounded(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ answers, size, kept int }{
		"number": {2100, 1, 2048}, "bytes": {40, 1 << 20, 32},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := testservice.NewSpyStore()
				store.OnComplete = failBetween(0, 5*time.Second)
				b := newBench(t, store, idempotency.RunnerOptions{StoreTimeout: time.Millisecond})
				body := bytes.Repeat([]byte("x"), test.size)
				for i := range test.answers {
					_, _, err := b.Do(t.Context(), spreadKeyOverUsers(i), nil, func(context.Context) (idempotency.Response, error) {
						return idempotency.Response{Body: body}, nil
					})
					require.NoError(t, err)
				}
				time.Sleep(time.Minute)
				recorded := 0
				for _, outcome := range b.journal.Outcomes() {
					if outcome == idempotency.OutcomeRecorded || outcome == idempotency.OutcomeRestored {
						recorded++
					}
				}
				require.Equal(t, test.kept, recorded)
			})
		})
	}
}

// Claims waiting for their release have a limit of their own, because clients can cause any number of such claims,
// which would take the place of answers.
func TestReleasesLeaveRoomForAnswers(t *testing.T) {
	t.Parallel()
	const hostile = 1100
	for name, down := range map[string]time.Duration{"within the lease": 6 * time.Second, "after the lease": time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := testservice.NewSpyStore()
				store.OnBegin = func(_ context.Context, n int64, step func() error) error {
					err := step()
					if n > 1 && n <= 1+hostile {
						return idempotency.ErrStoreBusy // but the claim may have been granted
					}
					return err
				}
				store.OnComplete, store.OnExtend, store.OnRelease = failBetween(0, down), failBetween(0, down), failBetween(0, down)
				var svc *testservice.Service
				refused := sync.OnceFunc(func() {
					for i := range hostile {
						svc.Call(testservice.NumberedKey(i).ID, "b")
					}
				})
				opts := idempotency.Options{StoreTimeout: time.Millisecond}
				svc = testservice.Setup{Store: store, Opts: opts}.Guard(t, func(w http.ResponseWriter, r *http.Request) {
					refused()
					testservice.AttemptNumber(w, r)
				})
				first := svc.Call("honest", "b")
				require.Equal(t, "attempt 1", first.Body)
				time.Sleep(down + 2*time.Second)
				testservice.RequireReplay(t, first, svc.Call("honest", "b"))
				require.EqualValues(t, 1, svc.Runs.Load())
			})
		})
	}
}

// The number of claims waiting for their release is bounded, too. A claim beyond the limit lapses with its lease, and
// each release makes room for a new claim.
func TestReleasesAreBounded(t *testing.T) {
	t.Parallel()
	const most, calls = 1024, 1100
	synctest.Test(t, func(t *testing.T) {
		store := testservice.NewSpyStore()
		store.OnRelease = func(_ context.Context, _ int64, step func() error) error {
			if time.Now().Second() < 5 { // synctest begins at midnight
				return testservice.ErrDown
			}
			return step()
		}
		store.OnBegin = loseReplies(2 * calls)
		opts := idempotency.RunnerOptions{Lease: time.Hour, Logger: slog.New(slog.DiscardHandler)}
		r, err := idempotency.NewRunner(store, opts)
		require.NoError(t, err)
		testservice.ShutdownAtEnd(t, r)
		for round := range 2 {
			for i := range calls {
				_, _, err := r.Do(t.Context(), spreadKeyOverUsers(round*calls+i), nil, mustNotWork(t))
				require.ErrorIs(t, err, idempotency.ErrUnavailable)
			}
			time.Sleep(time.Minute)
		}
		free := 0
		for i := range 2 * calls {
			if _, _, err := r.Do(t.Context(), spreadKeyOverUsers(i), nil, someWork); err == nil {
				free++
			}
		}
		require.Equal(t, 2*most, free)
	})
}

// loseReplies returns a hook that loses the replies to the first n calls, after the store has acted.
func loseReplies(n int64) testservice.Hook {
	return func(_ context.Context, call int64, step func() error) error {
		if err := step(); err != nil || call > n {
			return err
		}
		return testservice.ErrDown
	}
}

// A claim without a known reply belongs to no attempt. The Runner releases the claim, because the claim would block
// the key, and leave an unknown outcome with Refuse.
func TestClaimWhoseReplyWasLostIsReleased(t *testing.T) {
	t.Parallel()
	for _, policy := range []idempotency.Abandoned{idempotency.ReExecute, idempotency.Refuse} {
		synctest.Test(t, func(t *testing.T) {
			store := testservice.NewSpyStore()
			store.OnBegin = loseReplies(1)
			store.OnRelease = failBetween(0, 10*time.Second)
			svc := testservice.Setup{Store: store, Opts: idempotency.Options{Abandoned: policy}}.Guard(t, testservice.AttemptNumber)
			testservice.RequireProblem(t, svc.Call("k", "b"), http.StatusServiceUnavailable, "store-unavailable")
			require.Zero(t, svc.Runs.Load())
			time.Sleep(11 * time.Second)
			require.Equal(t, http.StatusOK, svc.Call("k", "b").Status)
			require.EqualValues(t, 1, svc.Runs.Load())
		})
	}
}

// A ClaimInDoubtError without a claim breaks the contract of a store. The Middleware answers 503 and does not panic.
func TestClaimInDoubtIsMissing(t *testing.T) {
	t.Parallel()
	store := testservice.NewSpyStore()
	store.OnBegin = func(context.Context, int64, func() error) error {
		return &idempotency.ClaimInDoubtError{Err: testservice.ErrDown}
	}
	svc := testservice.Setup{Store: store}.Guard(t, testservice.AttemptNumber)
	testservice.RequireProblem(t, svc.Call("k", "b"), http.StatusServiceUnavailable, "store-unavailable")
	require.Zero(t, svc.Runs.Load())
}

// With Refuse, a claim whose reply was lost blocks its key until the record expires. The Runner tries to release the
// claim for as long.
func TestClaimWhoseReplyWasLostInALongOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testservice.NewSpyStore()
		store.OnBegin = loseReplies(1)
		store.OnRelease = failBetween(0, time.Hour)
		svc := testservice.Setup{
			Store: store, Opts: idempotency.Options{Abandoned: idempotency.Refuse},
		}.Guard(t, testservice.AttemptNumber)
		testservice.RequireProblem(t, svc.Call("k", "b"), http.StatusServiceUnavailable, "store-unavailable")
		time.Sleep(time.Minute)
		testservice.RequireProblem(t, svc.Call("k", "b"), http.StatusConflict, "outcome-unknown")
		time.Sleep(time.Hour)
		require.Equal(t, http.StatusOK, svc.Call("k", "b").Status)
	})
}

// The request for a claim may reach the store after the Runner has stopped waiting for the reply. The Runner releases
// the claim after its arrival.
func TestClaimThatArrivesLateIsReleased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testservice.NewSpyStore()
		var released atomic.Int64
		store.OnRelease = func(_ context.Context, n int64, step func() error) error {
			if n <= 3 {
				return idempotency.ErrClaimLost // the claim has not arrived yet
			}
			released.Add(1)
			return step()
		}
		store.OnBegin = loseReplies(1)
		svc := testservice.Setup{Store: store}.Guard(t, testservice.AttemptNumber)
		testservice.RequireProblem(t, svc.Call("k", "b"), http.StatusServiceUnavailable, "store-unavailable")
		time.Sleep(3 * time.Second)
		require.EqualValues(t, 1, released.Load())
		require.Equal(t, http.StatusOK, svc.Call("k", "b").Status)
	})
}

// The store may have granted no claim at all. The Runner stops trying to release the claim after less than a lease,
// long before the record would have expired.
func TestClaimThatWasNeverGrantedIsForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testservice.NewSpyStore()
		store.OnRelease = testservice.Failing(testservice.Always, idempotency.ErrClaimLost)
		store.OnBegin = loseReplies(1)
		svc := testservice.Setup{
			Store: store, Opts: idempotency.Options{Abandoned: idempotency.Refuse},
		}.Guard(t, testservice.AttemptNumber)
		svc.Call("k", "b")
		time.Sleep(10 * time.Second) // well within a lease, because a Shutdown must not wait for a lease
		asked := store.Releases.Load()
		require.Positive(t, asked)
		time.Sleep(time.Hour)
		require.Equal(t, asked, store.Releases.Load())
	})
}

// FailOpen runs the handler although the store may have granted the claim. Such a claim is not released, and keeps
// other attempts away for a lease.
func TestFailOpenDoesNotReleaseAClaimInDoubt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testservice.NewSpyStore()
		store.OnBegin = loseReplies(1)
		svc := testservice.Setup{
			Store: store, Opts: idempotency.Options{FailOpen: true},
		}.Guard(t, func(w http.ResponseWriter, r *http.Request) {
			op, ok := idempotency.FromContext(r.Context())
			assert.True(t, ok)
			assert.Zero(t, op.Attempt)
			testservice.Echo(w, r)
		})
		require.Equal(t, http.StatusCreated, svc.Call("k", "b").Status)
		require.Equal(t, []idempotency.Outcome{idempotency.OutcomeUnprotected}, svc.Journal.Outcomes())
		time.Sleep(10 * time.Second)
		testservice.RequireProblem(t, svc.Call("k", "b"), http.StatusConflict, "in-progress")
		require.Zero(t, store.Releases.Load())
	})
}

// An answer that outgrows MaxResponse is sent although the store is down. The lease is renewed while the handler goes
// on, and the record is completed at the end.
func TestAnswerOutgrowsItsLimitWhileTheStoreIsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testservice.NewSpyStore()
		store.OnComplete = failBetween(0, time.Minute)
		svc := testservice.Setup{
			Store: store, Opts: idempotency.Options{MaxResponse: 8},
		}.Guard(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte("over the limit"))
			for range 20 {
				time.Sleep(30 * time.Second)
				assert.NoError(t, r.Context().Err())
			}
		})
		answers := make(chan testservice.Answer, 1)
		go func() { answers <- svc.Call("k", "b") }()
		for range 19 {
			time.Sleep(30 * time.Second)
			testservice.RequireProblem(t, svc.Call("k", "b"), http.StatusConflict, "in-progress")
		}
		require.Equal(t, "over the limit", (<-answers).Body)
		testservice.RequireProblem(t, svc.Call("k", "b"), http.StatusConflict, "not-replayable")
		require.EqualValues(t, 1, svc.Runs.Load())
		require.Contains(t, svc.Journal.Outcomes(), idempotency.OutcomeExecuted)
	})
}

// Shutdown with an ended context returns nil if all operations are settled.
func TestShutdownAfterItsTimeWithNothingToSettle(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		require.NoError(t, newBench(t, testservice.NewSpyStore(), idempotency.RunnerOptions{}).Shutdown(ctx))
	}
}

// stalledStore answers nothing before the time until. Afterwards, stalledStore executes the requests of the stall in
// the wrong order: the release before its claim.
type stalledStore struct {
	idempotency.Store
	until      time.Time
	grantClaim func() // executes the request for the claim
}

func (s *stalledStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	if s.grantClaim != nil {
		return s.Store.Begin(ctx, key, request)
	}
	c := &stalledClaim{store: s}
	s.grantClaim = func() { _, c.Claim, _ = s.Store.Begin(context.Background(), key, request) }
	<-ctx.Done()
	return idempotency.Record{}, nil, &idempotency.ClaimInDoubtError{Claim: c, Err: ctx.Err()}
}

// stalledClaim is the claim in doubt of a stalledStore.
type stalledClaim struct {
	idempotency.Claim
	store *stalledStore
}

func (c *stalledClaim) Release(ctx context.Context, end idempotency.Release) error {
	switch {
	case time.Now().Before(c.store.until):
		<-ctx.Done()
		return ctx.Err()
	case c.Claim == nil:
		c.store.grantClaim()
		return idempotency.ErrClaimLost
	}
	return c.Claim.Release(ctx, end)
}

// The store may grant a claim long after the request, and after the first request for the release. The Runner repeats
// the release.
func TestClaimThatAStoreGrantsAfterAStallIsReleased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &stalledStore{Store: testservice.NewSpyStore(), until: time.Now().Add(20 * time.Second)}
		r, err := idempotency.NewRunner(store, idempotency.RunnerOptions{
			Lease: time.Minute, StoreTimeout: time.Second, Logger: slog.New(slog.DiscardHandler),
		})
		require.NoError(t, err)
		testservice.ShutdownAtEnd(t, r)
		_, _, err = r.Do(t.Context(), someKey, nil, mustNotWork(t))
		require.ErrorIs(t, err, idempotency.ErrUnavailable)
		time.Sleep(24 * time.Second)
		require.NotNil(t, store.grantClaim)
		_, replayed, err := r.Do(t.Context(), someKey, nil, someWork)
		require.NoError(t, err)
		require.False(t, replayed)
	})
}

// A request that waits for an operation gets a late answer at the moment when the answer is stored.
func TestWaiterHearsOfALateAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testservice.NewSpyStore()
		opts := waiting
		opts.StoreTimeout = time.Millisecond
		b := newBench(t, store, opts)
		store.OnComplete = failBetween(0, 5*time.Second)
		_, _, err := b.doOperation(someWork)
		require.NoError(t, err)
		_, replayed, err := b.doOperation(mustNotWork(t))
		require.NoError(t, err)
		require.True(t, replayed)
		synctest.Wait() // the background may report after the waiter
		eventByOutcome := make(map[idempotency.Outcome]idempotency.Event)
		for _, e := range b.journal.All() {
			eventByOutcome[e.Outcome] = e
		}
		recorded, waiter := eventByOutcome[idempotency.OutcomeRecorded], eventByOutcome[idempotency.OutcomeReplayed]
		require.NotZero(t, recorded.Total)
		require.Equal(t, recorded.Total, waiter.Waited) // both began at the same moment
	})
}

// The Observer gets one event with OutcomeUnrecorded, even if the store first fails and then refuses the answer for
// good.
func TestAnswerThatCanNeverBeStoredIsReportedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, began := testservice.NewSpyStore(), time.Now()
		store.OnComplete = func(context.Context, int64, func() error) error {
			if time.Since(began) < 30*time.Second {
				return testservice.ErrDown
			}
			return idempotency.ErrRecordInvalid
		}
		svc := testservice.Setup{Store: store}.Guard(t, testservice.Echo)
		svc.Call("k", "b")
		time.Sleep(time.Hour)
		require.Equal(t, []idempotency.Outcome{idempotency.OutcomeUnrecorded}, svc.Journal.Outcomes())
	})
}

// readUserField reads the user of a request from the field X-User.
func readUserField(r *http.Request) (string, error) { return r.Header.Get("X-User"), nil }

var (
	asMallory = testservice.WithHeader("X-User", "mallory")
	asAlice   = testservice.WithHeader("X-User", "alice")
)

// An outage of the store says nothing about the answer. The whole answer is stored when the store is back, even if
// the store comes back in the middle of a step.
func TestAnswerIsStoredWholeAfterAnOutage(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		driverRetryTime time.Duration // how long the driver itself tries again; zero: the driver waits for a lost reply
		extendWorks     bool          // leases are renewed during the outage
		err             error         // nil: testservice.ErrDown
	}{
		"replies are lost":                      {},
		"replies are lost, but not to renewals": {extendWorks: true},
		"connections are refused":               {driverRetryTime: time.Second},
		"no connection is free, but for renewals": {
			driverRetryTime: time.Second, extendWorks: true, err: idempotency.ErrStoreBusy,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for back := 30 * time.Second; back < 110*time.Second; back += time.Second / 4 {
				synctest.Test(t, func(t *testing.T) {
					began := time.Now()
					down := func() bool { return time.Since(began) < back }
					outage := func(ctx context.Context, _ int64, step func() error) error {
						switch {
						case down() && test.driverRetryTime == 0:
							<-ctx.Done()
							return ctx.Err()
						case down():
							time.Sleep(test.driverRetryTime)
						}
						if down() {
							return cmp.Or(test.err, testservice.ErrDown)
						}
						return step()
					}
					store := testservice.NewSpyStore()
					if store.OnComplete = outage; !test.extendWorks {
						store.OnExtend = outage
					}
					svc := testservice.Setup{Store: store}.Guard(t, testservice.Echo)
					first := svc.Call("k", "b")
					time.Sleep(2 * time.Minute)
					testservice.RequireReplay(t, first, svc.Call("k", "b"))
				})
			}
		})
	}
}
