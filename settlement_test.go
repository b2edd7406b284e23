package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
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

// requireLive requires that nothing has ended ctx yet.
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

// requireEnded requires that ctx has ended as contexts do.
func requireEnded(t *testing.T, ctx context.Context, err, cause error) {
	t.Helper()
	<-ctx.Done()
	require.Equal(t, err, ctx.Err())
	require.Equal(t, cause, context.Cause(ctx))
}

var errHungUp = errors.New("hung up")

// The context of work ends with that of its caller, when the claim is lost, and when work has returned.
func TestContextOfWork(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		during     func(t *testing.T, ctx context.Context, hangUp func()) // in work
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
		"caller hangs up, and nobody asks": {func(_ *testing.T, _ context.Context, hangUp func()) { hangUp() },
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

func testContextOfWork(t *testing.T, during func(*testing.T, context.Context, func()), ask func(*testing.T, context.Context), err, cause error) {
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
			return idempotency.Response{}, errHungUp // so that it runs each time
		})
		require.Equal(t, errHungUp, err)
	}
	group.Wait()
}

// A step of the store ends by a deadline of its own, not with the request.
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

// watched tells when the context of the server ends: when it knows that the client has left.
func watched(gone chan<- struct{}) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			stop := context.AfterFunc(r.Context(), func() { gone <- struct{}{} })
			defer stop()
			next.ServeHTTP(w, r)
		})
	}
}

// The work goes on when the client has left, and the retry gets its answer.
func TestClientThatLeavesDecidesNothing(t *testing.T) {
	t.Parallel()
	working, gone, finish := make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{})
	svc := testservice.Setup{Outer: watched(gone)}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		working <- struct{}{}
		select {
		case <-finish:
			testservice.Echo(w, r)
		case <-r.Context().Done(): // obeys, and says nothing
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

// A handler that is tied to its client may give up without a word. That is no answer.
func TestHandlerThatEndsWithItsClient(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]idempotency.Options{
		"option": {CancelWithClient: true},
		"stream": {Stream: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			svc := endedWithItsClient(t, opts)
			require.Equal(t, idempotency.OutcomeReleased, svc.Journal.Last(t).Outcome)
			require.Equal(t, http.StatusCreated, svc.Post("k", "b").Status)
		})
	}
	t.Run("option, refuse", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			opts := idempotency.Options{CancelWithClient: true, Abandoned: idempotency.Refuse, Lease: time.Minute}
			svc := endedWithItsClient(t, opts)
			require.Equal(t, idempotency.OutcomeAbandoned, svc.Journal.Last(t).Outcome)
			time.Sleep(time.Minute)
			testservice.RequireProblem(t, svc.Post("k", "b"), http.StatusConflict, "outcome-unknown")
		})
	})
}

// endedWithItsClient returns a service whose first client has left, and with it the handler.
func endedWithItsClient(t *testing.T, opts idempotency.Options) *testservice.Service {
	t.Helper()
	working, gone := make(chan struct{}, 1), make(chan struct{}, 1)
	svc := testservice.Setup{Outer: watched(gone), Opts: opts}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
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

// limited is middleware that limits the time of a request and answers if it was exceeded, as chi's Timeout does.
func limited(d time.Duration) func(http.Handler) http.Handler {
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

// A handler that obeys a deadline without a word has not answered: the answer of outer middleware goes out, and the
// retry runs again.
func TestSilenceAfterADeadlineIsNoAnswer(t *testing.T) {
	t.Parallel()
	const allowed = time.Second
	givingUp := testservice.WithHeader("X-Give-Up", "1")
	for name, test := range map[string]struct {
		outer  func(http.Handler) http.Handler
		status int
	}{
		"middleware answers":  {limited(allowed), http.StatusGatewayTimeout},
		"http.TimeoutHandler": {func(h http.Handler) http.Handler { return http.TimeoutHandler(h, allowed, "") }, http.StatusServiceUnavailable},
		"nobody answers":      {deadlined(allowed), http.StatusOK}, // as without a key
	} {
		for _, policy := range []idempotency.Abandoned{idempotency.ReExecute, idempotency.Refuse} {
			t.Run(fmt.Sprint(name, policy), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					svc := testservice.Setup{Outer: test.outer, Opts: idempotency.Options{Abandoned: policy}}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
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
						testservice.RequireProblem(t, second, http.StatusConflict, "in-progress")
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

// deadlined is middleware that sets a deadline and leaves the answer to the handler.
func deadlined(d time.Duration) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), d)
			defer cancel()
			next.ServeHTTP(w, r.WithContext(ctx))
		})
	}
}

// A handler that answers although its time is up has answered. Its client got the answer of outer middleware, and the
// retry gets that of the handler.
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
		svc := testservice.Setup{Store: store, Opts: idempotency.Options{Lease: time.Minute}}.Guard(t, func(w http.ResponseWriter, r *http.Request) {
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

// What prints a context must not show the user and the key.
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

// A handler that is guarded twice runs once, whichever of the two has the answer.
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

// Another key, user or store is another operation, also inside of one.
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

// A request that waits and whose client leaves is not one that was refused.
func TestWaitingClientThatLeaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		finish := make(chan struct{})
		svc := testservice.Setup{Opts: idempotency.Options{Wait: time.Hour}}.Guard(t, func(w http.ResponseWriter, r *http.Request) { <-finish })
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

// A retry is told to come back soon as long as the owner renews its lease, and at the end of the lease if it does not.
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

// patientContext ends later than its deadline says, as a timer may.
type patientContext struct {
	context.Context
	deadline time.Time
}

func (c patientContext) Deadline() (time.Time, bool) { return c.deadline, true }

// Outer middleware is told of its deadline by a timer of its own. The request is not over before.
func TestSilenceWaitsForTheOuterDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		svc := testservice.Setup{}.Guard(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		svc.Call("k", "b", testservice.WithContext(patientContext{ctx, began.Add(time.Second)}))
		require.Equal(t, 2*time.Second, time.Since(began))
	})
}

// A handler that keeps its silence has answered, also when its time is over.
func TestSilenceThatIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		svc := testservice.Setup{Outer: limited(time.Second)}.Guard(t, func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			idempotency.Decide(r.Context(), idempotency.Keep)
		})
		first := svc.Call("k", "b")
		require.Equal(t, http.StatusOK, first.Status)
		testservice.RequireReplay(t, first, svc.Call("k", "b"))
	})
}

// Nothing is added to an answer that was streamed, even if it does not count.
func TestStreamWhoseClaimIsLostHasNothingAdded(t *testing.T) {
	t.Parallel()
	store := testservice.NewSpyStore()
	store.OnComplete = testservice.Failing(testservice.Always, idempotency.ErrClaimLost)
	svc := testservice.Setup{Store: store, Opts: idempotency.Options{Stream: true}}.Serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "event")
		w.(http.Flusher).Flush()
	})
	got := svc.Post("k", "b")
	require.Equal(t, "event", got.Body)
	require.Equal(t, http.StatusOK, got.Status)
	require.Equal(t, idempotency.OutcomeClaimLost, svc.Journal.Last(t).Outcome)
}

// An answer without protection may be as large as it likes.
func TestLargeAnswerWithoutProtection(t *testing.T) {
	t.Parallel()
	store := testservice.NewSpyStore()
	store.OnBegin = testservice.Failing(testservice.Always, testservice.ErrDown)
	svc := testservice.Setup{Store: store, Opts: idempotency.Options{FailOpen: true, MaxResponse: 8}}.Guard(t, testservice.Echo)
	require.Equal(t, "over the limit", svc.Call("k", "over the limit").Body)
}

// framework is a writer as that of echo, which answers after its handlers have returned.
type framework struct{ http.ResponseWriter }

func (framework) Before(func()) {}
func (framework) After(func())  {}

// Every way in which a handler can end, with every verdict, has one fate: the outcome, what the
// client gets, and what a retry finds three leases later follow from it.
func TestEveryFate(t *testing.T) {
	t.Parallel()
	status := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
	}
	verdicts := []idempotency.Verdict{0, idempotency.Keep, idempotency.Tombstone, idempotency.Free, idempotency.Unknown}
	endings := []struct {
		name   string
		end    http.HandlerFunc
		fates  string // with each verdict
		status string // that the first client gets, with each verdict
	}{
		{"panics", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
			"unknown unknown unknown unknown unknown", "0 0 0 0 0"},
		{"silent", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
			"unknown kept tombstone released unknown", "504 200 200 504 504"},
		{"left open", func(http.ResponseWriter, *http.Request) {},
			"unknown tombstone tombstone released unknown", "418 418 418 418 418"},
		{"broken off", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "10")
			_, _ = io.WriteString(w, "x")
		}, "failed tombstone tombstone released unknown", "200 200 200 200 200"},
		{"storable", status(201), "kept kept tombstone released unknown", "201 201 201 201 201"},
		{"refused", status(422), "released kept tombstone released unknown", "422 422 422 422 422"},
		{"failed", status(500), "failed kept tombstone released unknown", "500 500 500 500 500"},
	}
	policies := map[string]idempotency.Abandoned{"re-execute": idempotency.ReExecute, "refuse": idempotency.Refuse}
	for _, ending := range endings {
		for i, verdict := range verdicts {
			for name, abandoned := range policies {
				synctest.Test(t, func(t *testing.T) {
					fate := strings.Fields(ending.fates)[i]
					what := fmt.Sprintf("%s, verdict %d, %s: %s", ending.name, verdict, name, fate)
					setup := testservice.Setup{
						Opts: idempotency.Options{
							Abandoned: abandoned, Storable: func(resp *idempotency.Response) bool { return resp.Status < 400 },
						},
						Outer: answersForTheSilent(ending.name == "left open"),
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
					case fate == "kept" || fate == "tombstone":
						wanted = idempotency.OutcomeExecuted
					case fate == "unknown" && refuses:
						wanted = idempotency.OutcomeAbandoned
					}
					require.Equal(t, []idempotency.Outcome{wanted}, svc.Journal.Outcomes(), what)

					time.Sleep(90 * time.Second)
					again := svc.Call("k", "b")
					switch {
					case fate == "kept":
						require.True(t, again.Replayed(), what)
						require.Equal(t, first.Status, again.Status, what)
					case fate == "tombstone":
						testservice.RequireProblem(t, again, http.StatusConflict, "not-replayable")
					case fate == "unknown" && refuses:
						testservice.RequireProblem(t, again, http.StatusConflict, "outcome-unknown")
					case fate == "released":
						require.Equal(t, "1", again.Body, what) // the record is forgotten
					default:
						require.Equal(t, "2", again.Body, what)
					}
				})
			}
		}
	}
}

// answersForTheSilent returns outer middleware that answers if its handler has not: as a framework does, or as one that
// sets a deadline.
func answersForTheSilent(later bool) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			written := &writeSpy{ResponseWriter: w}
			switch {
			case later:
				next.ServeHTTP(framework{written}, r)
			default:
				next.ServeHTTP(written, r)
			}
			switch {
			case written.wrote:
			case later:
				w.WriteHeader(http.StatusTeapot)
			default:
				w.WriteHeader(http.StatusGatewayTimeout)
			}
		})
	}
}

// writeSpy notes whether anything was written.
type writeSpy struct {
	http.ResponseWriter
	wrote bool
}

func (w *writeSpy) WriteHeader(status int) {
	w.wrote = true
	w.ResponseWriter.WriteHeader(status)
}

func (w *writeSpy) Write(p []byte) (int, error) {
	w.wrote = true
	return w.ResponseWriter.Write(p)
}
