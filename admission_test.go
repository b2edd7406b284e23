package idempotency_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/step"
	"github.com/idempotency-go/idempotency/stores/cache"
	"github.com/idempotency-go/idempotency/stores/seal"
)

// reconcileFunc is the type of RunnerOptions.Reconcile.
type reconcileFunc = func(context.Context, idempotency.Operation) (*idempotency.Response, error)

// reconciledKey is the key of the operations in this file.
var reconciledKey = idempotency.Key{User: "single", Endpoint: "POST /payments", ID: "k"}

// newAbandonedService returns a service with an abandoned operation: the owner has crashed, and the lease has lapsed.
func newAbandonedService(t *testing.T, setup testservice.Setup, reconcile reconcileFunc) *testservice.Service {
	t.Helper()
	setup.Opts.Abandoned, setup.Opts.Reconcile = idempotency.Refuse, reconcile
	svc := setup.Guard(t, testservice.AttemptNumber)
	testservice.Crash(t, svc, "k", "b", time.Minute)
	testservice.RequireProblem(t, svc.Call("k", "b"), http.StatusConflict, "in-progress")
	time.Sleep(time.Minute)
	return svc
}

// reconcileAsNotHappened is a Reconcile that reports that the operation has not happened.
func reconcileAsNotHappened(context.Context, idempotency.Operation) (*idempotency.Response, error) {
	return nil, nil
}

// reconcileAsCharged is a Reconcile that reports a charge, with the answer to be replayed.
func reconcileAsCharged(context.Context, idempotency.Operation) (*idempotency.Response, error) {
	return &idempotency.Response{Status: 201, Body: []byte("charged")}, nil
}

// requireUntouched requires that the operation is still abandoned after its first attempt, and that the handler has
// not run.
func requireUntouched(t *testing.T, svc *testservice.Service) {
	t.Helper()
	entry := testservice.MustInspect(t, svc.Store.Store, reconciledKey)
	require.Equal(t, idempotency.StateAbandoned, entry.State)
	require.Equal(t, 1, entry.Attempt)
	require.Zero(t, svc.Runs.Load())
}

func TestReconcileSaysWhatHasHappened(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var asked []idempotency.Operation
		svc := newAbandonedService(t, testservice.Setup{}, func(_ context.Context, op idempotency.Operation) (*idempotency.Response, error) {
			asked = append(asked, op)
			header := idempotency.NewFields(http.Header{"Content-Type": {"text/plain"}})
			return &idempotency.Response{Status: 201, Header: header, Body: []byte("charged"), Note: "ch_17"}, nil
		})
		fp := testservice.MustInspect(t, svc.Store.Store, reconciledKey).Fingerprint
		testservice.RequireProblem(t, svc.Call("k", "changed"), http.StatusConflict, "key-reused")
		require.Empty(t, asked)
		for range 3 {
			got := svc.Call("k", "b")
			require.Equal(t, 201, got.Status)
			require.Equal(t, "charged", got.Body)
			require.True(t, got.Replayed())
		}
		testservice.RequireProblem(t, svc.Call("k", "changed"), http.StatusConflict, "key-reused")
		require.Zero(t, svc.Runs.Load())
		require.Equal(t, []idempotency.Operation{
			{Key: reconciledKey, ID: reconciledKey.OperationID(), Attempt: 1, Fingerprint: fp},
		}, asked)
		require.Equal(t, "ch_17", testservice.MustInspect(t, svc.Store.Store, reconciledKey).Note)
		require.Equal(t, []idempotency.Outcome{
			idempotency.OutcomeInProgress, idempotency.OutcomeKeyReused, idempotency.OutcomeHappened, idempotency.OutcomeReplayed,
			idempotency.OutcomeReplayed, idempotency.OutcomeReplayed, idempotency.OutcomeKeyReused,
		}, svc.Journal.Outcomes())
		event := svc.Journal.All()[2]
		require.Equal(t, 201, event.Status)
		require.Equal(t, 1, event.Attempt)
		require.Equal(t, "ch_17", event.Note)
		require.Equal(t, len("Content-Type: text/plain\n")+len("charged"), event.Stored)
		require.NoError(t, event.Err)
	})
}

func TestReconcileSaysThatNothingHasHappened(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		svc := newAbandonedService(t, testservice.Setup{}, func(context.Context, idempotency.Operation) (*idempotency.Response, error) {
			calls++
			return nil, nil
		})
		require.Equal(t, "attempt 2", svc.Call("k", "b").Body)
		require.True(t, svc.Call("k", "b").Replayed())
		require.Equal(t, 1, calls)
		require.Equal(t, []idempotency.Outcome{
			idempotency.OutcomeInProgress, idempotency.OutcomeNotHappened, idempotency.OutcomeExecuted, idempotency.OutcomeReplayed,
		}, svc.Journal.Outcomes())
	})
}

// Reconcile may report an answer without its body. The request that has called Reconcile and all later requests get
// the problem not-replayable.
func TestReconcileKnowsNoBody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lost := func(context.Context, idempotency.Operation) (*idempotency.Response, error) {
			return &idempotency.Response{Status: 201, Omitted: true}, nil
		}
		svc := newAbandonedService(t, testservice.Setup{}, lost)
		for range 2 {
			problem := testservice.RequireProblem(t, svc.Call("k", "b"), http.StatusConflict, "not-replayable")
			require.Equal(t, 201, problem.OriginalStatus)
		}
		b := newBench(t, testservice.NewSpyStore(), idempotency.RunnerOptions{Abandoned: idempotency.Refuse, Reconcile: lost})
		b.crashAttempt(t)
		for range 2 {
			_, replayed, err := b.doOperation(mustNotWork(t))
			require.ErrorIs(t, err, idempotency.ErrNotReplayable)
			require.False(t, replayed)
		}
	})
}

// unknownResults are the results of Reconcile that leave the outcome unknown, with the error that an Observer gets.
var unknownResults = map[string]struct {
	reconcile reconcileFunc
	cause     error
}{
	"error": {func(context.Context, idempotency.Operation) (*idempotency.Response, error) { return nil, errProvider }, errProvider},
	"error and a response": {func(context.Context, idempotency.Operation) (*idempotency.Response, error) {
		return &idempotency.Response{Status: 200}, errProvider
	}, errProvider},
	"refusal of another service": {func(context.Context, idempotency.Operation) (*idempotency.Response, error) {
		return nil, &idempotency.Error{Status: 503, Err: idempotency.ErrKeyReused}
	}, idempotency.ErrKeyReused},
	"hangs": {func(ctx context.Context, _ idempotency.Operation) (*idempotency.Response, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}, context.DeadlineExceeded},
	"says it too late": {func(ctx context.Context, _ idempotency.Operation) (*idempotency.Response, error) {
		<-ctx.Done()
		return nil, nil
	}, context.DeadlineExceeded},
	"no status": {func(context.Context, idempotency.Operation) (*idempotency.Response, error) {
		return &idempotency.Response{Body: []byte("charged")}, nil
	}, idempotency.ErrOutcomeUnknown},
	"impossible status": {func(context.Context, idempotency.Operation) (*idempotency.Response, error) {
		return &idempotency.Response{Status: 103}, nil
	}, idempotency.ErrOutcomeUnknown},
	"field of the connection": {func(context.Context, idempotency.Operation) (*idempotency.Response, error) {
		return &idempotency.Response{Status: 200, Header: "Transfer-Encoding: chunked\n"}, nil
	}, idempotency.ErrOutcomeUnknown},
	"no line of a header": {func(context.Context, idempotency.Operation) (*idempotency.Response, error) {
		return &idempotency.Response{Status: 200, Header: "Content-Type: text/plain"}, nil
	}, idempotency.ErrOutcomeUnknown},
}

var errProvider = errors.New("the provider is down")

// While the outcome is unknown, the operation stays abandoned and the handler does not run, so that the next request
// may call Reconcile again.
func TestReconcileDoesNotKnow(t *testing.T) {
	t.Parallel()
	for name, c := range unknownResults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				known := false
				svc := newAbandonedService(t, testservice.Setup{}, func(ctx context.Context, op idempotency.Operation) (*idempotency.Response, error) {
					assert.Equal(t, 1, op.Attempt)
					if known {
						return &idempotency.Response{Status: 204}, nil
					}
					return c.reconcile(ctx, op)
				})
				for range 3 {
					asked := time.Now()
					testservice.RequireProblem(t, svc.Call("k", "b"), http.StatusConflict, "outcome-unknown")
					require.LessOrEqual(t, time.Since(asked), 15*time.Second, "half a lease")
					require.ErrorIs(t, svc.Journal.Last(t).Err, c.cause)
					require.ErrorIs(t, svc.Journal.Last(t).Err, idempotency.ErrOutcomeUnknown)
					require.Equal(t, idempotency.OutcomeUnknown, svc.Journal.Last(t).Outcome)
					requireUntouched(t, svc)
				}
				known = true
				require.Equal(t, 204, svc.Call("k", "b").Status)
				require.Zero(t, svc.Runs.Load())
			})
		})
	}
}

// An operator can resolve an operation that Reconcile cannot, even while requests call Reconcile all the time.
func TestOperatorEndsWhatReconcileCannot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		svc := newAbandonedService(t, testservice.Setup{}, func(context.Context, idempotency.Operation) (*idempotency.Response, error) {
			time.Sleep(time.Second)
			return nil, errProvider
		})
		var clients sync.WaitGroup
		for range 5 {
			clients.Go(func() {
				for range 10 {
					svc.Call("k", "b")
				}
			})
		}
		time.Sleep(3*time.Second + time.Millisecond) // a call of Reconcile is under way
		entry := testservice.MustInspect(t, svc.Store.Store, reconciledKey)
		resolution := idempotency.Resolution{Response: &idempotency.Response{Status: 201, Body: []byte("found")}, TTL: time.Hour}
		require.NoError(t, svc.Store.Store.(idempotency.Resolver).Resolve(t.Context(), entry, resolution))
		require.Equal(t, "found", svc.Call("k", "b").Body)
		clients.Wait()
		require.Zero(t, svc.Runs.Load())
	})
}

func TestReconcilePanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		panics := true
		svc := newAbandonedService(t, testservice.Setup{}, func(context.Context, idempotency.Operation) (*idempotency.Response, error) {
			if panics {
				panic("cannot be asked")
			}
			return nil, nil
		})
		require.PanicsWithValue(t, "cannot be asked", func() { svc.Call("k", "b") })
		requireUntouched(t, svc)
		panics = false
		require.Equal(t, "attempt 2", svc.Call("k", "b").Body)
	})
}

// operatedStore is a SpyStore with the methods of a Resolver, and with hooks for Inspect and Resolve.
type operatedStore struct {
	*testservice.SpyStore
	onInspect, onResolve func(step func() error) error
}

func (s *operatedStore) asResolver() idempotency.Resolver {
	return s.Store.(idempotency.Resolver)
}

func (s *operatedStore) Inspect(ctx context.Context, key idempotency.Key) (entry idempotency.Entry, err error) {
	step := func() error {
		entry, err = s.asResolver().Inspect(ctx, key)
		return err
	}
	if s.onInspect != nil {
		return entry, s.onInspect(step)
	}
	return entry, step()
}

func (s *operatedStore) InspectOperation(ctx context.Context, operation uuid.UUID) (idempotency.Entry, error) {
	return s.asResolver().InspectOperation(ctx, operation)
}

func (s *operatedStore) Forget(ctx context.Context, entry idempotency.Entry) error {
	return s.asResolver().Forget(ctx, entry)
}

func (s *operatedStore) List(ctx context.Context, request idempotency.ListRequest) (idempotency.Listing, error) {
	return s.asResolver().List(ctx, request)
}

func (s *operatedStore) Resolve(ctx context.Context, entry idempotency.Entry, resolution idempotency.Resolution) error {
	step := func() error { return s.asResolver().Resolve(ctx, entry, resolution) }
	if s.onResolve != nil {
		return s.onResolve(step)
	}
	return step()
}

// While the store fails, the handler runs only with a claim: the operation was seen abandoned, so FailOpen does not
// apply.
func TestReconcileWhileTheStoreFails(t *testing.T) {
	t.Parallel()
	fails := func(func() error) error { return testservice.ErrDown }
	loses := func(step func() error) error { return errors.Join(step(), testservice.ErrDown) }
	for name, c := range map[string]struct {
		inspect, resolve func(step func() error) error
		beginFails       bool
		reconcile        reconcileFunc
		calls            int
		then             string // the body when the store works again
	}{
		"cannot be inspected":     {inspect: fails, reconcile: reconcileAsCharged, then: "charged"},
		"cannot be resolved":      {resolve: fails, reconcile: reconcileAsCharged, calls: 1, then: "charged"},
		"reply to the resolution": {resolve: loses, reconcile: reconcileAsCharged, calls: 1, then: "charged"},
		"the same, not happened":  {resolve: loses, reconcile: reconcileAsNotHappened, calls: 1, then: "attempt 2"},
		"second claim":            {beginFails: true, reconcile: reconcileAsNotHappened, calls: 1, then: "attempt 2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				spy := testservice.NewSpyStore()
				store, calls := &operatedStore{SpyStore: spy}, 0
				svc := testservice.Setup{Store: store, Opts: idempotency.Options{
					Abandoned: idempotency.Refuse, FailOpen: true,
					Reconcile: func(ctx context.Context, op idempotency.Operation) (*idempotency.Response, error) {
						calls++
						return c.reconcile(ctx, op)
					},
				}}.Guard(t, testservice.AttemptNumber)
				svc.Store = spy
				testservice.Crash(t, svc, "k", "b", time.Minute)
				time.Sleep(time.Minute)
				store.onInspect, store.onResolve = c.inspect, c.resolve
				begins := spy.Begins.Load()
				spy.OnBegin = func(_ context.Context, n int64, step func() error) error {
					if c.beginFails && n > begins+1 {
						return testservice.ErrDown
					}
					return step()
				}
				testservice.RequireProblem(t, svc.Call("k", "b"), http.StatusServiceUnavailable, "store-unavailable")
				require.Zero(t, svc.Runs.Load())
				require.Equal(t, c.calls, calls)
				store.onInspect, store.onResolve, spy.OnBegin = nil, nil, nil
				require.Equal(t, c.then, svc.Call("k", "b").Body)
			})
		})
	}
}

// The operation may change before the inspection, the answer of Reconcile or the resolution. The request then gets
// the result of the change, and does not run the handler while another attempt runs.
func TestReconcileIsOvertaken(t *testing.T) {
	t.Parallel()
	type claimedOperation struct {
		store idempotency.Store
		owner idempotency.Claim
	}
	changeOperation := func(t *testing.T, w claimedOperation, how string) {
		resolver, ctx := w.store.(idempotency.Resolver), context.Background()
		entry := testservice.MustInspect(t, w.store, reconciledKey)
		switch how {
		case "the owner completes it":
			assert.NoError(t, w.owner.Complete(ctx, testservice.BodyOf(3), time.Hour))
		case "the owner goes on":
			assert.NoError(t, w.owner.Extend(ctx, time.Minute))
		case "the owner releases it":
			assert.NoError(t, w.owner.Release(ctx, idempotency.Release{TTL: time.Hour}))
		case "another process runs it":
			claimReconciledKey(t, w.store, time.Minute, true)
		case "another process crashes":
			claimReconciledKey(t, w.store, time.Millisecond, true)
			time.Sleep(time.Millisecond)
		case "an operator says that it has happened":
			resp := testservice.BodyOf(3)
			assert.NoError(t, resolver.Resolve(ctx, entry, idempotency.Resolution{Response: &resp, TTL: time.Hour}))
		case "an operator forgets it":
			assert.NoError(t, resolver.Forget(ctx, entry))
		}
	}
	for how, want := range map[string]string{
		"the owner completes it":                "\x00\x00\x00",
		"the owner goes on":                     "in-progress",
		"the owner releases it":                 "attempt 2",
		"another process runs it":               "in-progress",
		"another process crashes":               "outcome-unknown",
		"an operator says that it has happened": "\x00\x00\x00",
		"an operator forgets it":                "attempt 1",
	} {
		for _, before := range []string{"inspection", "answer", "resolution"} {
			t.Run(how+" before the "+before, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					spy := testservice.NewSpyStore()
					store := &operatedStore{SpyStore: spy}
					var w claimedOperation
					now := func() {}
					svc := testservice.Setup{Store: store, Opts: idempotency.Options{
						Abandoned: idempotency.Refuse,
						Reconcile: func(context.Context, idempotency.Operation) (*idempotency.Response, error) {
							if before == "answer" {
								now()
							}
							return nil, nil
						},
					}}.Guard(t, testservice.AttemptNumber)
					svc.Store = spy
					w.store, w.owner = spy.Store, claimReconciledKey(t, spy.Store, time.Minute, false)
					time.Sleep(time.Minute)
					now = sync.OnceFunc(func() { changeOperation(t, w, how) })
					switch before {
					case "inspection":
						store.onInspect = func(step func() error) error { now(); return step() }
					case "resolution":
						store.onResolve = func(step func() error) error { now(); return step() }
					}
					got := svc.Call("k", "b")
					if strings.Contains(want, "-") {
						testservice.RequireProblem(t, got, http.StatusConflict, want)
						return
					}
					require.Equal(t, want, got.Body)
				})
			})
		}
	}
}

// claimReconciledKey claims reconciledKey for the request with the body "b", like an attempt without any other trace.
func claimReconciledKey(t *testing.T, store idempotency.Store, lease time.Duration, takeOver bool) idempotency.Claim {
	t.Helper()
	fp, err := idempotency.FingerprintRaw(httptest.NewRequest(http.MethodPost, "/payments", nil), []byte("b"))
	require.NoError(t, err)
	return testservice.MustClaim(t, store, reconciledKey,
		idempotency.ClaimRequest{Fingerprint: fp, Lease: lease, TTL: time.Hour, TakeOver: takeOver})
}

// A request stands still for a lease after Reconcile has reported that the operation has not happened. Meanwhile, a
// second request runs the handler, and the first request replays the answer.
func TestReconcileStandsStillBeforeTheHandler(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var svc *testservice.Service
		standStill := sync.OnceFunc(func() {
			time.Sleep(time.Minute)
			assert.Equal(t, "attempt 2", svc.Call("k", "b").Body)
		})
		svc = newAbandonedService(t, testservice.Setup{Opts: idempotency.Options{Observer: func(_ context.Context, e idempotency.Event) {
			if e.Outcome == idempotency.OutcomeNotHappened {
				standStill()
			}
		}}}, reconcileAsNotHappened)
		got := svc.Call("k", "b")
		require.Equal(t, "attempt 2", got.Body)
		require.True(t, got.Replayed())
		require.EqualValues(t, 1, svc.Runs.Load())
	})
}

// After Reconcile, too, a request releases a claim that took so long that the lease may have lapsed.
func TestReconcileClaimsTooLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testservice.NewSpyStore()
		svc := newAbandonedService(t, testservice.Setup{Store: store}, reconcileAsNotHappened)
		begins := store.Begins.Load()
		store.OnBegin = func(_ context.Context, n int64, step func() error) error {
			err := step()
			if n == begins+2 {
				time.Sleep(30 * time.Second)
			}
			return err
		}
		testservice.RequireProblem(t, svc.Call("k", "b"), http.StatusConflict, "in-progress")
		require.Zero(t, svc.Runs.Load())
		require.Equal(t, "attempt 3", svc.Call("k", "b").Body)
	})
}

// Of many concurrent requests, the first calls Reconcile. Requests with enough time to wait get the result, and the
// rest get the problem outcome-unknown.
func TestReconcileIsAskedOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		wait time.Duration
		resp *idempotency.Response
		want []string // what the requests without a call of Reconcile get
	}{
		"may wait":                {time.Minute, &idempotency.Response{Status: 201, Body: []byte("charged")}, []string{"charged"}},
		"may wait for no outcome": {time.Minute, nil, []string{"outcome-unknown"}},
		"may not wait":            {0, &idempotency.Response{Status: 201, Body: []byte("charged")}, []string{"outcome-unknown"}},
		"may not wait long enough": {
			time.Second, &idempotency.Response{Status: 201, Body: []byte("charged")}, []string{"outcome-unknown"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				calls := 0
				svc := newAbandonedService(t, testservice.Setup{Opts: idempotency.Options{Wait: c.wait}},
					func(context.Context, idempotency.Operation) (*idempotency.Response, error) {
						calls++
						time.Sleep(5 * time.Second)
						if c.resp == nil {
							return nil, errProvider
						}
						return c.resp, nil
					})
				var mu sync.Mutex
				got := make(map[string]int)
				var all sync.WaitGroup
				for range 20 {
					all.Go(func() {
						body := svc.Call("k", "b").Body
						if strings.Contains(body, "#outcome-unknown") {
							body = "outcome-unknown"
						}
						mu.Lock()
						defer mu.Unlock()
						got[body]++
					})
				}
				all.Wait()
				require.Equal(t, 1, calls)
				require.Zero(t, svc.Runs.Load())
				for _, want := range c.want {
					require.GreaterOrEqual(t, got[want], 19, got)
				}
			})
		})
	}
}

// The calls of Reconcile for several operations run at the same time.
func TestReconcileIsAskedAboutSeveralAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		svc := testservice.Setup{Opts: idempotency.Options{
			Abandoned: idempotency.Refuse, Wait: time.Minute,
			Reconcile: func(context.Context, idempotency.Operation) (*idempotency.Response, error) {
				asked.Add(1)
				time.Sleep(5 * time.Second)
				return nil, errProvider
			},
		}}.Guard(t, testservice.AttemptNumber)
		for i := range 10 {
			testservice.Crash(t, svc, fmt.Sprint(i), "b", time.Minute)
		}
		time.Sleep(time.Minute)
		var all sync.WaitGroup
		for i := range 10 {
			all.Go(func() { svc.Call(fmt.Sprint(i), "b") })
		}
		synctest.Wait()
		require.EqualValues(t, 10, asked.Load())
		all.Wait()
	})
}

// A request waits while Reconcile runs for a different request. If the client of the waiting request leaves, the
// outcome is OutcomeClientLeft. Reconcile goes on even if the client of its own request leaves.
func TestClientLeavesDuringReconcile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		svc := newAbandonedService(t, testservice.Setup{Opts: idempotency.Options{Wait: time.Minute}},
			func(ctx context.Context, _ idempotency.Operation) (*idempotency.Response, error) {
				time.Sleep(5 * time.Second)
				return nil, cmp.Or(ctx.Err(), errProvider)
			})
		ctx, leave := context.WithCancel(t.Context())
		var asking, waiting sync.WaitGroup
		asking.Go(func() { svc.Call("k", "b", testservice.WithContext(ctx)) })
		synctest.Wait()
		waiting.Go(func() { svc.Call("k", "b", testservice.WithContext(ctx)) })
		time.Sleep(time.Second)
		leave()
		waiting.Wait()
		require.Equal(t, idempotency.OutcomeClientLeft, svc.Journal.Last(t).Outcome)
		asking.Wait()
		require.ErrorIs(t, svc.Journal.Last(t).Err, errProvider)
	})
}

// plainStore is a store with the methods of Store alone.
type plainStore struct{ store idempotency.Store }

func (s plainStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	return s.store.Begin(ctx, key, request)
}

func TestReconcileNeedsARefusalAndAResolver(t *testing.T) {
	t.Parallel()
	memory := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	sealed := func(inner idempotency.Store) idempotency.Store {
		return testservice.MustSeal(t, inner, testservice.Sealing("1"))
	}
	for name, c := range map[string]struct {
		store idempotency.Store
		works bool
	}{
		"a resolver":               {memory, true},
		"behind a wrapper":         {wrapper{wrapper{memory}}, true},
		"sealed, behind a wrapper": {wrapper{sealed(wrapper{memory})}, true},
		"cached, behind a wrapper": {wrapper{cache.New(wrapper{memory}, cache.Options{})}, true},
		"none":                     {plainStore{memory}, false},
		"none behind a wrapper":    {wrapper{plainStore{memory}}, false},
		"none that is sealed":      {sealed(plainStore{memory}), false},
		"none that is cached":      {cache.New(wrapper{plainStore{memory}}, cache.Options{}), false},
		"nothing":                  {wrapper{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			opts := idempotency.RunnerOptions{Abandoned: idempotency.Refuse, Reconcile: reconcileAsNotHappened}
			_, err := idempotency.NewRunner(c.store, opts)
			if c.works {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, errors.ErrUnsupported)
			opts.Reconcile = nil
			_, err = idempotency.NewRunner(c.store, opts)
			require.NoError(t, err)
		})
	}
	_, err := idempotency.NewRunner(plainStore{memory}, idempotency.RunnerOptions{Reconcile: reconcileAsNotHappened})
	require.ErrorContains(t, err, "Reconcile without Abandoned: Refuse")
	require.ErrorIs(t, err, errors.ErrUnsupported)
}

// Stores in front of a Resolver, such as a cache, pass on the result of Reconcile.
func TestReconcileThroughOtherStores(t *testing.T) {
	t.Parallel()
	secret := seal.Options{Keys: []seal.Key{{ID: "1", Secret: make([]byte, 32)}}}
	for name, front := range map[string]func(*testing.T, idempotency.Store) idempotency.Store{
		"seal": func(t *testing.T, inner idempotency.Store) idempotency.Store {
			return testservice.MustSeal(t, inner, secret)
		},
		"cache of a seal, and a wrapper between": func(t *testing.T, inner idempotency.Store) idempotency.Store {
			return cache.New(wrapper{testservice.MustSeal(t, wrapper{inner}, secret)}, cache.Options{})
		},
	} {
		for body, reconcile := range map[string]reconcileFunc{"charged": reconcileAsCharged, "attempt 2": reconcileAsNotHappened} {
			t.Run(name+" "+body, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					spy := testservice.NewSpyStore()
					spy.Store = front(t, spy.Store)
					svc := newAbandonedService(t, testservice.Setup{Store: spy}, reconcile)
					for range 2 {
						require.Equal(t, body, svc.Call("k", "b").Body)
					}
				})
			})
		}
	}
}

// A released operation has failed for certain, so the Runner skips Reconcile.
func TestReconcileIsNotAskedAboutWhatFailed(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{Opts: idempotency.Options{
		Abandoned: idempotency.Refuse,
		Reconcile: func(context.Context, idempotency.Operation) (*idempotency.Response, error) {
			t.Error("asked")
			return nil, nil
		},
	}}.Guard(t, testservice.EchoOrFail)
	for range 3 {
		svc.Call("k", "fail")
	}
	require.EqualValues(t, 3, svc.Runs.Load())
}

// crashAttempt runs an attempt that panics, and waits until the lease has lapsed.
func (b *runnerBench) crashAttempt(t *testing.T) {
	t.Helper()
	require.Panics(t, func() {
		_, _, _ = b.doOperation(func(context.Context) (idempotency.Response, error) { panic("crash") })
	})
	time.Sleep(30 * time.Second)
}

func TestRunnerReconciles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, testservice.NewSpyStore(), idempotency.RunnerOptions{
			Abandoned: idempotency.Refuse,
			Reconcile: func(context.Context, idempotency.Operation) (*idempotency.Response, error) {
				return &idempotency.Response{Status: 200, Body: []byte("done before")}, nil
			},
		})
		b.crashAttempt(t)
		got, replayed, err := b.doOperation(mustNotWork(t))
		require.NoError(t, err)
		require.True(t, replayed)
		require.Equal(t, "done before", string(got.Body))
	})
}

// The Runner stores only responses that can be read back.
func TestWorkWhoseResponseCannotBeStored(t *testing.T) {
	t.Parallel()
	for name, resp := range map[string]idempotency.Response{
		"status below zero":   {Status: -1},
		"status of no answer": {Status: 7},
		"status too large":    {Status: 1000},
		"half a line":         {Header: "A: 1"},
		"empty line":          {Trailer: "\n"},
		"control character":   {Header: "A: \x00\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, client := testservice.NewMiniredis(t)
			b := newBench(t, &testservice.SpyStore{Store: idempotency.NewRedisStore(client, idempotency.RedisOptions{})}, idempotency.RunnerOptions{})
			_, _, err := b.doOperation(func(context.Context) (idempotency.Response, error) { return resp, nil })
			require.ErrorContains(t, err, "cannot be stored")
			require.NotErrorIs(t, err, idempotency.ErrRecordInvalid)
			require.True(t, b.journal.Last(t).Omitted)
			_, _, err = b.doOperation(mustNotWork(t))
			require.ErrorIs(t, err, idempotency.ErrNotReplayable)
		})
	}
}

// Each response of a valid resolution can be stored, and is replayed unchanged to each method.
func TestValidResolutionsAreReplayed(t *testing.T) {
	t.Parallel()
	forged := &testservice.ForgedStore{}
	svc := testservice.Setup{Store: forged, Opts: idempotency.Options{Methods: []string{"POST", "GET", "HEAD", "QUERY"}}}.
		Serve(t, testservice.Echo)
	random := rand.New(rand.NewPCG(1, 2))
	valid := 0
	for range 3000 {
		resp := generateResponse(random)
		if (idempotency.Resolution{Response: &resp, TTL: time.Hour}).Validate() != nil {
			continue
		}
		valid++
		stored, err := resp.MarshalBinary()
		require.NoError(t, err)
		var read idempotency.Response
		require.NoError(t, read.UnmarshalBinary(stored), "%+v", resp)
		forged.Response = &read
		for _, method := range []string{"POST", "GET", "HEAD", "QUERY"} {
			got := svc.Send("/payments", "k", "", func(r *http.Request) { r.Method = method })
			require.NoError(t, got.Err, "%s %+v", method, resp)
			if resp.Omitted {
				require.Equal(t, http.StatusConflict, got.Status, "%s %+v", method, resp)
				continue
			}
			require.Equal(t, resp.Status, got.Status, "%s %+v: %s", method, resp, got.Body)
			require.True(t, got.Replayed(), "%s %+v", method, resp)
			if method != "HEAD" {
				require.Equal(t, string(resp.Body), got.Body, "%s %+v", method, resp)
			}
			for name, values := range resp.Header.Header() {
				if len(values) > 0 && strings.Contains("Link X-Empty Etag Zz A", name) {
					require.Equal(t, values, got.Header[name], "%s %+v", method, resp)
				}
			}
		}
	}
	require.Greater(t, valid, 300)
}

// generateResponse returns a random response. Any of its parts may be invalid.
func generateResponse(random *rand.Rand) idempotency.Response {
	status := []int{200, 201, 204, 299, 304, 404, 500, 599, 999, 0, -1, 1, 100, 101, 199, 1000}
	lines := []string{
		"Content-Type: text/plain\n", "Link: </a>\nLink: </b>\n", "X-Empty: \n", "X-Deleted\n", "Etag: \"\\xe9\"\n",
		"Content-Length: 4\n", "Trailer: X-Sum\n", "Zz: 1\n", "A: 1\n",
		"Content-Length: 5\n", "Connection: close\n", "Transfer-Encoding: chunked\n", "Date: x\n",
		"Idempotent-Replayed: true\n", "\n", "A: 1", "no colon", ": x\n", "A: \x00\n", "A: é\n", "A: \\\n", "A:1\n", "A\\x3a: 1\n",
	}
	fields := func() idempotency.Fields {
		var all []string
		for range random.IntN(3) {
			all = append(all, lines[random.IntN(len(lines))])
		}
		if random.IntN(4) > 0 {
			slices.Sort(all)
		}
		return idempotency.Fields(strings.Join(all, ""))
	}
	resp := idempotency.Response{
		Status: status[random.IntN(len(status))], Header: fields(), Body: []byte([]string{"", "body"}[random.IntN(2)]),
		Omitted: random.IntN(8) == 0, Note: []string{"", "note", " note", "a\nb"}[random.IntN(4)],
	}
	if random.IntN(3) == 0 {
		resp.Trailer = fields()
	}
	if random.IntN(2) == 0 {
		resp.Status, resp.Note = 200, ""
	}
	return resp
}

// If Reconcile or an operator says that an operation has not happened, the operation may run again, including a step
// that began and whose result is unknown.
func TestStepRunsThatHasNotHappened(t *testing.T) {
	t.Parallel()
	says := map[string]func(*testing.T, idempotency.Resolver){
		"Reconcile": func(*testing.T, idempotency.Resolver) {},
		"an operator": func(t *testing.T, store idempotency.Resolver) {
			entry, err := store.Inspect(t.Context(), reconciledKey)
			require.NoError(t, err)
			require.NoError(t, store.Resolve(t.Context(), entry, idempotency.Resolution{TTL: time.Hour}))
		},
	}
	for who, resolve := range says {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				reconcile := reconcileFunc(reconcileAsNotHappened)
				if who != "Reconcile" {
					reconcile = nil
				}
				crashes := true
				ran := make(map[string]int)
				do := func(ctx context.Context, name string) error {
					_, err := step.AtMostOnce(ctx, name, func(context.Context) (int, error) {
						if crashes && name == "ship" {
							panic("crash")
						}
						ran[name]++
						return 1, nil
					}, nil)
					return err
				}
				store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
				svc := testservice.Setup{Store: store, Opts: idempotency.Options{Abandoned: idempotency.Refuse, Reconcile: reconcile}}.
					Guard(t, func(w http.ResponseWriter, r *http.Request) {
						for _, name := range []string{"charge", "ship"} {
							if err := do(r.Context(), name); err != nil {
								http.Error(w, err.Error(), http.StatusInternalServerError)
								return
							}
						}
					})
				require.Panics(t, func() { svc.Call("k", "b") })
				crashes = false
				time.Sleep(time.Minute)
				resolve(t, store)
				got := svc.Call("k", "b")
				require.Equal(t, http.StatusOK, got.Status, got.Body)
				require.Equal(t, map[string]int{"charge": 1, "ship": 1}, ran)
			})
		})
	}
}
