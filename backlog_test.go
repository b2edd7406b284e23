package idempotency_test

import (
	"bytes"
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"strconv"
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

// outage is the hook of a store that does not work from one moment to another, counted from the start of the test.
func outage(from, to time.Duration) testservice.Hook {
	start := time.Now()
	return func(ctx context.Context, _ int64, step func() error) error {
		if since := time.Since(start); since >= from && since < to {
			return testservice.ErrDown
		}
		return step()
	}
}

// The process has the answer, and the store comes back before the lease is over or after: nobody else runs the
// operation in the meantime.
func TestAnswerIsStoredWhenTheStoreIsBack(t *testing.T) {
	t.Parallel()
	for name, down := range map[string]time.Duration{"within the lease": 6 * time.Second, "after the lease": time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			store := testservice.NewSpyStore()
			store.OnComplete, store.OnExtend, store.OnBegin = outage(0, down), outage(0, down), outage(1, down)
			svc := testservice.Setup{Store: store, Opts: idempotency.Options{StoreTimeout: 2 * time.Second}}.Guard(t, testservice.AttemptNumber)
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

// While the answer is not stored, the lease is renewed.
func TestLeaseOfAnAnswerThatIsNotStoredIsRenewed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testservice.NewSpyStore()
		store.OnComplete = outage(0, 10*time.Minute) // but Extend works
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
		require.Equal(t, renewed, store.Extends.Load(), "renewed after it was stored")
	})
}

// The answer that the store does not take is in a buffer, which serves the next request.
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

// Another attempt has taken over while the store was down. Its answer counts, and the late one is not stored.
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
		store.OnComplete = outage(0, time.Minute)
		b := newBench(t, store, idempotency.RunnerOptions{})
		require.NoError(t, b.Shutdown(t.Context()), "nothing to wait for")

		b = newBench(t, store, idempotency.RunnerOptions{})
		_, _, err := b.do(someWork)
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
		require.NoError(t, b2.Shutdown(t.Context()), "it was given up")

		require.NoError(t, b.Shutdown(t.Context()))
		require.GreaterOrEqual(t, time.Since(began), 50*time.Second)
		require.Equal(t, idempotency.OutcomeRecorded, b.journal.Last(t).Outcome)
		_, replayed, err := b.do(mustNotWork(t))
		require.NoError(t, err)
		require.True(t, replayed)
	})
}

// After Shutdown nothing goes on in the background.
func TestNothingIsPutOffAfterShutdown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testservice.NewSpyStore()
		store.OnComplete = testservice.Failing(testservice.Always, testservice.ErrDown)
		b := newBench(t, store, idempotency.RunnerOptions{})
		require.NoError(t, b.Shutdown(t.Context()))
		_, _, err := b.do(someWork)
		require.NoError(t, err)
		require.Equal(t, idempotency.OutcomeUnrecorded, b.journal.Last(t).Outcome)
		completes, extends := store.Completes.Load(), store.Extends.Load()
		time.Sleep(time.Hour)
		require.Equal(t, completes, store.Completes.Load())
		require.Equal(t, extends, store.Extends.Load())
	})
}

// keyOfMany returns the key of one of ten users, whose turn it is.
func keyOfMany(n int) idempotency.Key {
	key := testservice.NumberedKey(n)
	key.User = strconv.Itoa(n % 10)
	return key
}

// A store that is down for long must not fill the memory: beyond a limit, answers are not put off.
func TestBacklogIsBounded(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ answers, size, kept int }{
		"number": {2100, 1, 2048}, "bytes": {40, 1 << 20, 32},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := testservice.NewSpyStore()
				store.OnComplete = outage(0, 5*time.Second)
				b := newBench(t, store, idempotency.RunnerOptions{StoreTimeout: time.Millisecond})
				body := bytes.Repeat([]byte("x"), test.size)
				for i := range test.answers {
					_, _, err := b.Do(t.Context(), keyOfMany(i), nil, func(context.Context) (idempotency.Response, error) {
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

// Claims that are to be released do not take the place of answers: anybody can cause as many as they like.
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
				store.OnComplete, store.OnExtend, store.OnRelease = outage(0, down), outage(0, down), outage(0, down)
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

// Releases are bounded, too. A claim beyond the limit lapses with its lease, and what was released makes room.
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
		lossy := lossyStore{store, 2 * calls}
		opts := idempotency.RunnerOptions{Lease: time.Hour, Logger: slog.New(slog.DiscardHandler)}
		r, err := idempotency.NewRunner(lossy, opts)
		require.NoError(t, err)
		testservice.GiveUpAtTheEnd(t, r)
		for round := range 2 {
			for i := range calls {
				_, _, err := r.Do(t.Context(), keyOfMany(round*calls+i), nil, mustNotWork(t))
				require.ErrorIs(t, err, idempotency.ErrUnavailable)
			}
			time.Sleep(time.Minute)
		}
		free := 0
		for i := range 2 * calls {
			if _, _, err := r.Do(t.Context(), keyOfMany(i), nil, someWork); err == nil {
				free++
			}
		}
		require.Equal(t, 2*most, free)
	})
}

// lossyStore grants a claim and loses its own reply, for the first n calls of Begin.
type lossyStore struct {
	*testservice.SpyStore
	n int64
}

func (s lossyStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	rec, claim, err := s.SpyStore.Begin(ctx, key, request)
	if s.Begins.Load() <= s.n && err == nil {
		return idempotency.Record{}, claim, testservice.ErrDown
	}
	return rec, claim, err
}

// Nobody knows of a claim whose reply was lost. It must not block its key, nor leave an outcome that nobody knows.
func TestClaimWhoseReplyWasLostIsReleased(t *testing.T) {
	t.Parallel()
	for _, policy := range []idempotency.Abandoned{idempotency.ReExecute, idempotency.Refuse} {
		synctest.Test(t, func(t *testing.T) {
			store := lossyStore{testservice.NewSpyStore(), 1}
			store.OnRelease = outage(0, 10*time.Second)
			svc := testservice.Setup{Store: store, Opts: idempotency.Options{Abandoned: policy}}.Guard(t, testservice.AttemptNumber)
			testservice.RequireProblem(t, svc.Call("k", "b"), http.StatusServiceUnavailable, "store-unavailable")
			require.Zero(t, svc.Runs.Load())
			time.Sleep(11 * time.Second)
			require.Equal(t, http.StatusOK, svc.Call("k", "b").Status)
			require.EqualValues(t, 1, svc.Runs.Load())
		})
	}
}

// With Refuse, a claim that nobody knows of blocks its key until the record expires. So long it is tried to release it.
func TestClaimWhoseReplyWasLostInALongOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := lossyStore{testservice.NewSpyStore(), 1}
		store.OnRelease = outage(0, time.Hour)
		svc := testservice.Setup{Store: store, Opts: idempotency.Options{Abandoned: idempotency.Refuse}}.Guard(t, testservice.AttemptNumber)
		testservice.RequireProblem(t, svc.Call("k", "b"), http.StatusServiceUnavailable, "store-unavailable")
		time.Sleep(time.Minute)
		testservice.RequireProblem(t, svc.Call("k", "b"), http.StatusConflict, "outcome-unknown")
		time.Sleep(time.Hour)
		require.Equal(t, http.StatusOK, svc.Call("k", "b").Status)
	})
}

// The request for a claim may be on its way for longer than we wait. It is released when it has arrived.
func TestClaimThatArrivesLateIsReleased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testservice.NewSpyStore()
		var released atomic.Int64
		store.OnRelease = func(_ context.Context, n int64, step func() error) error {
			if n <= 3 {
				return idempotency.ErrClaimLost // it is not there yet
			}
			released.Add(1)
			return step()
		}
		svc := testservice.Setup{Store: lossyStore{store, 1}}.Guard(t, testservice.AttemptNumber)
		testservice.RequireProblem(t, svc.Call("k", "b"), http.StatusServiceUnavailable, "store-unavailable")
		time.Sleep(3 * time.Second)
		require.EqualValues(t, 1, released.Load())
		require.Equal(t, http.StatusOK, svc.Call("k", "b").Status)
	})
}

// A claim that was never granted is not asked for until its record would have expired, nor even for a lease.
func TestClaimThatWasNeverGrantedIsForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testservice.NewSpyStore()
		store.OnRelease = testservice.Failing(testservice.Always, idempotency.ErrClaimLost)
		svc := testservice.Setup{Store: lossyStore{store, 1}, Opts: idempotency.Options{Abandoned: idempotency.Refuse}}.Guard(t, testservice.AttemptNumber)
		svc.Call("k", "b")
		time.Sleep(10 * time.Second) // well within a lease, which a Shutdown must not wait for
		asked := store.Releases.Load()
		require.Positive(t, asked)
		time.Sleep(time.Hour)
		require.Equal(t, asked, store.Releases.Load())
	})
}

// FailOpen runs the handler. A claim that was granted unknown to us then keeps others away for a lease.
func TestFailOpenDoesNotReleaseTheClaimThatIsUnknown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := lossyStore{testservice.NewSpyStore(), 1}
		svc := testservice.Setup{Store: store, Opts: idempotency.Options{FailOpen: true}}.Guard(t, func(w http.ResponseWriter, r *http.Request) {
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

// An answer that outgrows what is stored is sent although the store does not work. The lease is renewed while the
// handler goes on, and the record is made at the end.
func TestAnswerOutgrowsItsLimitWhileTheStoreIsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testservice.NewSpyStore()
		store.OnComplete = outage(0, time.Minute)
		svc := testservice.Setup{Store: store, Opts: idempotency.Options{MaxResponse: 8}}.Guard(t, func(w http.ResponseWriter, r *http.Request) {
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

// A Shutdown that comes too late finds nothing to complain of if everything is settled.
func TestShutdownAfterItsTimeWithNothingToSettle(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		require.NoError(t, newBench(t, testservice.NewSpyStore(), idempotency.RunnerOptions{}).Shutdown(ctx))
	}
}

// stalledStore answers nothing for a while. What was asked meanwhile it takes afterwards: a release before its claim.
type stalledStore struct {
	idempotency.Store
	until time.Time
	claim func() // takes the request for the claim
}

func (s *stalledStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	if s.claim != nil {
		return s.Store.Begin(ctx, key, request)
	}
	c := &stalledClaim{store: s}
	s.claim = func() { _, c.Claim, _ = s.Store.Begin(context.Background(), key, request) }
	<-ctx.Done()
	return idempotency.Record{}, c, ctx.Err()
}

type stalledClaim struct {
	idempotency.Claim
	store *stalledStore
}

func (c *stalledClaim) Release(ctx context.Context, ttl time.Duration) error {
	switch {
	case time.Now().Before(c.store.until):
		<-ctx.Done()
		return ctx.Err()
	case c.Claim == nil:
		c.store.claim()
		return idempotency.ErrClaimLost
	}
	return c.Claim.Release(ctx, ttl)
}

// A claim that is granted behind its own release, long after it was asked for, is released as well.
func TestClaimThatAStoreGrantsAfterAStallIsReleased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &stalledStore{Store: testservice.NewSpyStore(), until: time.Now().Add(20 * time.Second)}
		r, err := idempotency.NewRunner(store, idempotency.RunnerOptions{
			Lease: time.Minute, StoreTimeout: time.Second, Logger: slog.New(slog.DiscardHandler),
		})
		require.NoError(t, err)
		testservice.GiveUpAtTheEnd(t, r)
		_, _, err = r.Do(t.Context(), someKey, nil, mustNotWork(t))
		require.ErrorIs(t, err, idempotency.ErrUnavailable)
		time.Sleep(24 * time.Second)
		require.NotNil(t, store.claim)
		_, replayed, err := r.Do(t.Context(), someKey, nil, someWork)
		require.NoError(t, err)
		require.False(t, replayed)
	})
}

// Who waits for the operation is told at once that its answer is stored at last.
func TestWaiterHearsOfALateAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testservice.NewSpyStore()
		opts := waiting
		opts.StoreTimeout = time.Millisecond
		b := newBench(t, store, opts)
		store.OnComplete = outage(0, 5*time.Second)
		_, _, err := b.do(someWork)
		require.NoError(t, err)
		_, replayed, err := b.do(mustNotWork(t))
		require.NoError(t, err)
		require.True(t, replayed)
		events := b.journal.All()
		recorded, waiter := events[len(events)-2], events[len(events)-1]
		require.Equal(t, idempotency.OutcomeRecorded, recorded.Outcome)
		require.Equal(t, recorded.Total, waiter.Waited) // both began at the same moment
	})
}

// What cannot be stored at all is reported once.
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

// byUser names the caller of a request of a test.
func byUser(r *http.Request) (string, error) { return r.Header.Get("X-User"), nil }

var (
	asMallory = testservice.WithHeader("X-User", "mallory")
	asAlice   = testservice.WithHeader("X-User", "alice")
)

// An outage says nothing about the answer. It is stored whole when the store is back, even if that is in the middle of a
// step.
func TestAnswerIsStoredWholeAfterAnOutage(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		patience time.Duration // of the driver, which tries again on its own; zero: it waits for a reply that is lost
		extends  bool          // leases are renewed all the time
		err      error         // nil: errDown
	}{
		"replies are lost":                      {},
		"replies are lost, but not to renewals": {extends: true},
		"connections are refused":               {patience: time.Second},
		"no connection is free, but for renewals": {
			patience: time.Second, extends: true, err: idempotency.ErrStoreBusy,
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
						case down() && test.patience == 0:
							<-ctx.Done()
							return ctx.Err()
						case down():
							time.Sleep(test.patience)
						}
						if down() {
							return cmp.Or(test.err, testservice.ErrDown)
						}
						return step()
					}
					store := testservice.NewSpyStore()
					if store.OnComplete = outage; !test.extends {
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
