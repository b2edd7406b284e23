package idempotency_test

import (
	"bytes"
	"cmp"
	"context"
	"log/slog"
	"net/http"
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
	"github.com/idempotency-go/idempotency/internal/servertest"
)

// outage is the hook of a store that does not work from one moment to another, counted from the start of the test.
func outage(from, to time.Duration) hook {
	start := time.Now()
	return func(ctx context.Context, _ int64, step func() error) error {
		if since := time.Since(start); since >= from && since < to {
			return errDown
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
			store := newSpyStore()
			store.onComplete, store.onExtend, store.onBegin = outage(0, down), outage(0, down), outage(1, down)
			svc := setup{store: store, opts: idempotency.Options{StoreTimeout: 2 * time.Second}}.guard(t, attemptNumber)
			began := time.Now()
			first := svc.call("k", "b")
			require.Equal(t, "attempt 1", first.body)
			require.LessOrEqual(t, time.Since(began), 2*time.Second, "the client has its answer in time")
			require.Equal(t, []idempotency.Outcome{idempotency.OutcomeUnrecorded}, svc.journal.outcomes())
			time.Sleep(down - time.Since(began) + time.Second)
			require.Equal(t, []idempotency.Outcome{idempotency.OutcomeUnrecorded, idempotency.OutcomeRecorded}, svc.journal.outcomes())
			require.Equal(t, svc.journal.all()[0].Operation, svc.journal.all()[1].Operation)
			requireReplay(t, first, svc.call("k", "b"))
			require.EqualValues(t, 1, svc.runs.Load(), name)
		})
	}
}

// While the answer is not stored, the lease is renewed.
func TestLeaseOfAnAnswerThatIsNotStoredIsRenewed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newSpyStore()
		store.onComplete = outage(0, 10*time.Minute) // but Extend works
		svc := setup{store: store}.guard(t, echo)
		first := svc.call("k", "b")
		for range 19 {
			time.Sleep(30 * time.Second)
			requireProblem(t, svc.call("k", "b"), http.StatusConflict, "in-progress")
		}
		time.Sleep(30 * time.Second)
		requireReplay(t, first, svc.call("k", "b"))
		renewed := store.extends.Load()
		time.Sleep(time.Hour)
		require.Equal(t, renewed, store.extends.Load(), "renewed after it was stored")
	})
}

// The answer that the store does not take is in a buffer, which serves the next request.
func TestAnswerThatIsNotStoredYetKeepsItsBody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newSpyStore()
		store.onComplete = func(ctx context.Context, n int64, step func() error) error {
			if n == 1 {
				<-ctx.Done()
				return ctx.Err()
			}
			return step()
		}
		svc := setup{store: store}.guard(t, echo)
		first := svc.call("k", "the first answer")
		for range 10 {
			svc.call(numberedKey(1).ID, "another answer, and longer")
		}
		time.Sleep(time.Minute)
		requireReplay(t, first, svc.call("k", "the first answer"))
	})
}

// Another attempt has taken over while the store was down. Its answer counts, and the late one is not stored.
func TestLateAnswerOfALostClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newSpyStore()
		var mu sync.Mutex
		cutOff := true
		store.onComplete = func(_ context.Context, n int64, step func() error) error {
			mu.Lock()
			defer mu.Unlock()
			if cutOff {
				return errDown
			}
			return step()
		}
		store.onExtend = failing(always, errDown)
		svc := setup{store: store}.guard(t, attemptNumber)
		require.Equal(t, "attempt 1", svc.call("k", "b").body)
		time.Sleep(30 * time.Second)
		other := setup{store: store.Store}.guard(t, attemptNumber) // another process
		second := other.call("k", "b")
		require.Equal(t, "attempt 2", second.body)
		mu.Lock()
		cutOff = false
		mu.Unlock()
		time.Sleep(time.Minute)
		require.Equal(t, []idempotency.Outcome{idempotency.OutcomeUnrecorded, idempotency.OutcomeClaimLost}, svc.journal.outcomes())
		requireReplay(t, second, svc.call("k", "b"))
	})
}

func TestShutdownWaitsForWhatIsNotSettled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newSpyStore()
		store.onComplete = outage(0, time.Minute)
		b := newBench(t, store, idempotency.RunnerOptions{})
		require.NoError(t, b.Shutdown(t.Context()), "nothing to wait for")

		b = newBench(t, store, idempotency.RunnerOptions{})
		_, _, err := b.do(someWork)
		require.NoError(t, err)
		began := time.Now()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		b2 := newBench(t, store, idempotency.RunnerOptions{})
		_, _, err = b2.Do(t.Context(), numberedKey(1), nil, someWork)
		require.NoError(t, err)
		err = b2.Shutdown(short)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "1 operations are not settled")
		require.NoError(t, b2.Shutdown(t.Context()), "it was given up")

		require.NoError(t, b.Shutdown(t.Context()))
		require.GreaterOrEqual(t, time.Since(began), 50*time.Second)
		require.Equal(t, idempotency.OutcomeRecorded, b.journal.last(t).Outcome)
		_, replayed, err := b.do(mustNotWork(t))
		require.NoError(t, err)
		require.True(t, replayed)
	})
}

// After Shutdown nothing goes on in the background.
func TestNothingIsPutOffAfterShutdown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newSpyStore()
		store.onComplete = failing(always, errDown)
		b := newBench(t, store, idempotency.RunnerOptions{})
		require.NoError(t, b.Shutdown(t.Context()))
		_, _, err := b.do(someWork)
		require.NoError(t, err)
		require.Equal(t, idempotency.OutcomeUnrecorded, b.journal.last(t).Outcome)
		completes, extends := store.completes.Load(), store.extends.Load()
		time.Sleep(time.Hour)
		require.Equal(t, completes, store.completes.Load())
		require.Equal(t, extends, store.extends.Load())
	})
}

// keyOfMany returns the key of one of ten users, whose turn it is.
func keyOfMany(n int) idempotency.Key {
	key := numberedKey(n)
	key.User = strconv.Itoa(n % 10)
	return key
}

// A store that is down for long must not fill the memory: beyond a limit, answers are not put off.
func TestBacklogIsBounded(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ answers, size, kept int }{
		"number": {1200, 1, 1024}, "bytes": {40, 1 << 20, 32},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newSpyStore()
				store.onComplete = outage(0, 5*time.Second)
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
				for _, outcome := range b.journal.outcomes() {
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
				store := newSpyStore()
				store.onBegin = func(_ context.Context, n int64, step func() error) error {
					err := step()
					if n > 1 && n <= 1+hostile {
						return idempotency.ErrStoreBusy // but the claim may have been granted
					}
					return err
				}
				store.onComplete, store.onExtend, store.onRelease = outage(0, down), outage(0, down), outage(0, down)
				var svc *service
				refused := sync.OnceFunc(func() {
					for i := range hostile {
						svc.call(numberedKey(i).ID, "b")
					}
				})
				opts := idempotency.Options{StoreTimeout: time.Millisecond}
				svc = setup{store: store, opts: opts}.guard(t, func(w http.ResponseWriter, r *http.Request) {
					refused()
					attemptNumber(w, r)
				})
				first := svc.call("honest", "b")
				require.Equal(t, "attempt 1", first.body)
				time.Sleep(down + 2*time.Second)
				requireReplay(t, first, svc.call("honest", "b"))
				require.EqualValues(t, 1, svc.runs.Load())
			})
		})
	}
}

// Releases are bounded, too. A claim beyond the limit lapses with its lease, and what was released makes room.
func TestReleasesAreBounded(t *testing.T) {
	t.Parallel()
	const most, calls = 1024, 1100
	synctest.Test(t, func(t *testing.T) {
		store := newSpyStore()
		store.onRelease = func(_ context.Context, _ int64, step func() error) error {
			if time.Now().Second() < 5 { // synctest begins at midnight
				return errDown
			}
			return step()
		}
		lossy := lossyStore{store, 2 * calls}
		opts := idempotency.RunnerOptions{Lease: time.Hour, Logger: slog.New(slog.DiscardHandler)}
		r, err := idempotency.NewRunner(lossy, opts)
		require.NoError(t, err)
		giveUpAtTheEnd(t, r)
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
	*spyStore
	n int64
}

func (s lossyStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	rec, claim, err := s.spyStore.Begin(ctx, key, request)
	if s.begins.Load() <= s.n && err == nil {
		return idempotency.Record{}, claim, errDown
	}
	return rec, claim, err
}

// Nobody knows of a claim whose reply was lost. It must not block its key, nor leave an outcome that nobody knows.
func TestClaimWhoseReplyWasLostIsReleased(t *testing.T) {
	t.Parallel()
	for _, policy := range []idempotency.Abandoned{idempotency.ReExecute, idempotency.Refuse} {
		synctest.Test(t, func(t *testing.T) {
			store := lossyStore{newSpyStore(), 1}
			store.onRelease = outage(0, 10*time.Second)
			svc := setup{store: store, opts: idempotency.Options{Abandoned: policy}}.guard(t, attemptNumber)
			requireProblem(t, svc.call("k", "b"), http.StatusServiceUnavailable, "store-unavailable")
			require.Zero(t, svc.runs.Load())
			time.Sleep(11 * time.Second)
			require.Equal(t, http.StatusOK, svc.call("k", "b").status)
			require.EqualValues(t, 1, svc.runs.Load())
		})
	}
}

// With Refuse, a claim that nobody knows of blocks its key until the record expires. So long it is tried to release it.
func TestClaimWhoseReplyWasLostInALongOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := lossyStore{newSpyStore(), 1}
		store.onRelease = outage(0, time.Hour)
		svc := setup{store: store, opts: idempotency.Options{Abandoned: idempotency.Refuse}}.guard(t, attemptNumber)
		requireProblem(t, svc.call("k", "b"), http.StatusServiceUnavailable, "store-unavailable")
		time.Sleep(time.Minute)
		requireProblem(t, svc.call("k", "b"), http.StatusConflict, "outcome-unknown")
		time.Sleep(time.Hour)
		require.Equal(t, http.StatusOK, svc.call("k", "b").status)
	})
}

// The request for a claim may be on its way for longer than we wait. It is released when it has arrived.
func TestClaimThatArrivesLateIsReleased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newSpyStore()
		var released atomic.Int64
		store.onRelease = func(_ context.Context, n int64, step func() error) error {
			if n <= 3 {
				return idempotency.ErrClaimLost // it is not there yet
			}
			released.Add(1)
			return step()
		}
		svc := setup{store: lossyStore{store, 1}}.guard(t, attemptNumber)
		requireProblem(t, svc.call("k", "b"), http.StatusServiceUnavailable, "store-unavailable")
		time.Sleep(3 * time.Second)
		require.EqualValues(t, 1, released.Load())
		require.Equal(t, http.StatusOK, svc.call("k", "b").status)
	})
}

// A claim that was never granted is not asked for until its record would have expired.
func TestClaimThatWasNeverGrantedIsForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newSpyStore()
		store.onRelease = failing(always, idempotency.ErrClaimLost)
		svc := setup{store: lossyStore{store, 1}, opts: idempotency.Options{Abandoned: idempotency.Refuse}}.guard(t, attemptNumber)
		svc.call("k", "b")
		time.Sleep(time.Minute)
		asked := store.releases.Load()
		require.Positive(t, asked)
		time.Sleep(time.Hour)
		require.Equal(t, asked, store.releases.Load())
	})
}

// FailOpen runs the handler. A claim that was granted unknown to us then keeps others away for a lease.
func TestFailOpenDoesNotReleaseTheClaimThatIsUnknown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := lossyStore{newSpyStore(), 1}
		svc := setup{store: store, opts: idempotency.Options{FailOpen: true}}.guard(t, func(w http.ResponseWriter, r *http.Request) {
			op, ok := idempotency.FromContext(r.Context())
			assert.True(t, ok)
			assert.Zero(t, op.Attempt)
			echo(w, r)
		})
		require.Equal(t, http.StatusCreated, svc.call("k", "b").status)
		require.Equal(t, []idempotency.Outcome{idempotency.OutcomeUnprotected}, svc.journal.outcomes())
		time.Sleep(10 * time.Second)
		requireProblem(t, svc.call("k", "b"), http.StatusConflict, "in-progress")
		require.Zero(t, store.releases.Load())
	})
}

// An answer that outgrows what is stored is sent although the store does not work. The lease is renewed while the
// handler goes on, and the record is made at the end.
func TestAnswerOutgrowsItsLimitWhileTheStoreIsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newSpyStore()
		store.onComplete = outage(0, time.Minute)
		svc := setup{store: store, opts: idempotency.Options{MaxResponse: 8}}.guard(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte("over the limit"))
			for range 20 {
				time.Sleep(30 * time.Second)
				assert.NoError(t, r.Context().Err())
			}
		})
		answers := make(chan answer, 1)
		go func() { answers <- svc.call("k", "b") }()
		for range 19 {
			time.Sleep(30 * time.Second)
			requireProblem(t, svc.call("k", "b"), http.StatusConflict, "in-progress")
		}
		require.Equal(t, "over the limit", (<-answers).body)
		requireProblem(t, svc.call("k", "b"), http.StatusConflict, "not-replayable")
		require.EqualValues(t, 1, svc.runs.Load())
		require.Contains(t, svc.journal.outcomes(), idempotency.OutcomeExecuted)
	})
}

// A Shutdown that comes too late finds nothing to complain of if everything is settled.
func TestShutdownAfterItsTimeWithNothingToSettle(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		require.NoError(t, newBench(t, newSpyStore(), idempotency.RunnerOptions{}).Shutdown(ctx))
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
		store := &stalledStore{Store: newSpyStore(), until: time.Now().Add(20 * time.Second)}
		r, err := idempotency.NewRunner(store, idempotency.RunnerOptions{
			Lease: time.Minute, StoreTimeout: time.Second, Logger: slog.New(slog.DiscardHandler),
		})
		require.NoError(t, err)
		giveUpAtTheEnd(t, r)
		_, _, err = r.Do(t.Context(), someKey, nil, mustNotWork(t))
		require.ErrorIs(t, err, idempotency.ErrUnavailable)
		time.Sleep(24 * time.Second)
		require.NotNil(t, store.claim)
		_, replayed, err := r.Do(t.Context(), someKey, nil, someWork)
		require.NoError(t, err)
		require.False(t, replayed)
	})
}

// What was settled makes room.
func TestBacklogHasRoomAgain(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ answers, size int }{"number": {1024, 1}, "bytes": {4, 8 << 20}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store, began := newSpyStore(), time.Now()
				store.onComplete = func(_ context.Context, _ int64, step func() error) error {
					if time.Since(began)%time.Minute < 5*time.Second { // at the beginning of each round
						return errDown
					}
					return step()
				}
				b := newBench(t, store, idempotency.RunnerOptions{Lease: time.Hour, StoreTimeout: time.Millisecond})
				body := make([]byte, test.size)
				for round := range 2 {
					for i := range test.answers {
						_, _, err := b.Do(t.Context(), keyOfMany(round*test.answers+i), nil, func(context.Context) (idempotency.Response, error) {
							return idempotency.Response{Body: body}, nil
						})
						require.NoError(t, err)
					}
					time.Sleep(time.Minute)
				}
				recorded := 0
				for _, outcome := range b.journal.outcomes() {
					if outcome == idempotency.OutcomeRecorded {
						recorded++
					}
				}
				require.Equal(t, 2*test.answers, recorded)
			})
		})
	}
}

// Who waits for the operation is told at once that its answer is stored at last.
func TestWaiterHearsOfALateAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newSpyStore()
		opts := waiting
		opts.StoreTimeout = time.Millisecond
		b := newBench(t, store, opts)
		store.onComplete = outage(0, 5*time.Second)
		_, _, err := b.do(someWork)
		require.NoError(t, err)
		_, replayed, err := b.do(mustNotWork(t))
		require.NoError(t, err)
		require.True(t, replayed)
		events := b.journal.all()
		recorded, waiter := events[len(events)-2], events[len(events)-1]
		require.Equal(t, idempotency.OutcomeRecorded, recorded.Outcome)
		require.Equal(t, recorded.Total, waiter.Waited) // both began at the same moment
	})
}

// What cannot be stored at all is reported once.
func TestAnswerThatCanNeverBeStoredIsReportedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, began := newSpyStore(), time.Now()
		store.onComplete = func(context.Context, int64, func() error) error {
			if time.Since(began) < 30*time.Second {
				return errDown
			}
			return idempotency.ErrRecordInvalid
		}
		svc := setup{store: store}.guard(t, echo)
		svc.call("k", "b")
		time.Sleep(time.Hour)
		require.Equal(t, []idempotency.Outcome{idempotency.OutcomeUnrecorded}, svc.journal.outcomes())
	})
}

// byUser names the caller of a request of a test.
func byUser(r *http.Request) (string, error) { return r.Header.Get("X-User"), nil }

var (
	asMallory = withHeader("X-User", "mallory")
	asAlice   = withHeader("X-User", "alice")
)

// One user does not take the place of the answers of others, whether by their number or by their size.
func TestAnswersOfOneUserLeaveRoomForOthers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		user        idempotency.UserFunc
		calls       int
		body, field string
		kept        int
	}{
		"number":      {byUser, 1100, "x", "", 128},
		"body":        {byUser, 40, strings.Repeat("x", 1<<20-200), "", 4},
		"fields":      {byUser, 200, "x", strings.Repeat("x", 30<<10), 68},
		"single user": {idempotency.SingleUser, 1000, "x", "", 1000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newSpyStore()
				store.onComplete = outage(0, 5*time.Second)
				opts := idempotency.Options{StoreTimeout: time.Millisecond}
				svc := setup{store: store, user: test.user, opts: opts}.guard(t, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Trailer", "X-Trailer")
					w.Header().Set("X-Header", test.field)
					_, _ = w.Write([]byte(test.body))
					w.Header().Set("X-Trailer", test.field)
				})
				for i := range test.calls {
					require.Equal(t, http.StatusOK, svc.call(numberedKey(i).ID, "b", asMallory).status)
				}
				first := svc.call("honest", "b", asAlice)
				time.Sleep(time.Minute)
				recorded := 0
				for _, outcome := range svc.journal.outcomes() {
					if outcome == idempotency.OutcomeRecorded || outcome == idempotency.OutcomeRestored {
						recorded++
					}
				}
				require.Equal(t, test.kept+1, recorded)
				require.True(t, svc.call("honest", "b", asAlice).replayed(), first.status)
				require.Zero(t, svc.usersCounted(), "users who hold nothing")
			})
		})
	}
}

// Whoever calls a Runner is of the service itself: a consumer of messages may have one user only, or none.
func TestAnswersInARunnerHaveNoShares(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const calls = 1000
		store := newSpyStore()
		store.onComplete = outage(0, 5*time.Second)
		var events journal
		runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{
			StoreTimeout: time.Millisecond, Observer: events.observe, Logger: slog.New(slog.DiscardHandler),
		})
		require.NoError(t, err)
		for i := range calls {
			_, _, err := runner.Do(t.Context(), numberedKey(i), nil, func(context.Context) (idempotency.Response, error) {
				return bodyOf(8), nil
			})
			require.NoError(t, err)
		}
		time.Sleep(time.Minute)
		recorded := 0
		for _, outcome := range events.outcomes() {
			if outcome == idempotency.OutcomeRecorded || outcome == idempotency.OutcomeRestored {
				recorded++
			}
		}
		require.Equal(t, calls, recorded)
	})
}

// With Refuse, a claim that nobody releases blocks its key until the record expires. One user must not bring that about
// for others.
func TestReleasesOfOneUserLeaveRoomForOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const hostile, share = 1100, 128
		store := newSpyStore()
		store.onRelease = outage(0, 5*time.Second)
		opts := idempotency.Options{Abandoned: idempotency.Refuse}
		svc := setup{store: lossyStore{store, hostile + 1}, user: byUser, opts: opts}.guard(t, echo)
		for i := range hostile {
			svc.call(numberedKey(i).ID, "b", asMallory)
		}
		requireProblem(t, svc.call("honest", "b", asAlice), http.StatusServiceUnavailable, "store-unavailable")
		time.Sleep(time.Hour)
		require.Equal(t, http.StatusCreated, svc.call("honest", "b", asAlice).status)
		require.Equal(t, http.StatusCreated, svc.call(numberedKey(share-1).ID, "b", asMallory).status)
		requireProblem(t, svc.call(numberedKey(share).ID, "b", asMallory), http.StatusConflict, "outcome-unknown")
		require.Zero(t, svc.usersCounted(), "users who hold nothing")
	})
}

// An answer may be larger than the share of a user: if that holds nothing else, there is room for it.
func TestAnswerThatIsLargerThanAShare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newSpyStore()
		store.onComplete = outage(0, 5*time.Second)
		svc := setup{store: store, user: byUser, opts: idempotency.Options{MaxResponse: 8 << 20}}.guard(t,
			func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(make([]byte, 8<<20)) })
		first := svc.call("k", "b", asAlice)
		time.Sleep(time.Minute)
		requireReplay(t, first, svc.call("k", "b", asAlice))
	})
}

// pickyStore works, but takes no answer with a body.
type pickyStore struct{ idempotency.Store }

func (s pickyStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	record, claim, err := s.Store.Begin(ctx, key, request)
	if claim != nil {
		claim = pickyClaim{claim}
	}
	return record, claim, err
}

type pickyClaim struct{ idempotency.Claim }

func (c pickyClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	if len(resp.Body) > 0 {
		return errDown
	}
	return c.Claim.Complete(ctx, resp, ttl)
}

// An answer that the store never takes is not offered to it for a day: the operation ends without it.
func TestAnswerThatTheStoreNeverTakes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		svc := setup{store: pickyStore{newSpyStore()}}.guard(t, echo)
		require.Equal(t, http.StatusCreated, svc.call("k", "b").status)
		time.Sleep(20 * time.Second)
		requireProblem(t, svc.call("k", "b"), http.StatusConflict, "in-progress")
		time.Sleep(40 * time.Second)
		p := requireProblem(t, svc.call("k", "b"), http.StatusConflict, "not-replayable")
		require.Equal(t, http.StatusCreated, p.OriginalStatus)
		require.EqualValues(t, 1, svc.runs.Load())
		require.Contains(t, svc.journal.outcomes(), idempotency.OutcomeRecorded)
		require.Zero(t, svc.usersCounted())
	})
}

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
							return cmp.Or(test.err, errDown)
						}
						return step()
					}
					store := newSpyStore()
					if store.onComplete = outage; !test.extends {
						store.onExtend = outage
					}
					svc := setup{store: store}.guard(t, echo)
					first := svc.call("k", "b")
					time.Sleep(2 * time.Minute)
					requireReplay(t, first, svc.call("k", "b"))
				})
			}
		})
	}
}

// A server may have a limit for the size of a value, which no setting of the client shows.
func TestAnswerThatIsTooLargeForRedis(t *testing.T) {
	t.Parallel()
	client := newRedisClient(t, servertest.Redis(t, "--proto-max-bulk-len", "1mb").Addr())
	opts := idempotency.Options{Lease: 6 * time.Second, StoreTimeout: 2 * time.Second}
	svc := setup{store: idempotency.NewRedisStore(client, idempotency.RedisOptions{}), opts: opts}.guard(t,
		func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(make([]byte, 1<<20)) })
	require.Equal(t, http.StatusOK, svc.call("k", "b").status)
	require.Eventually(t, func() bool {
		return svc.journal.last(t).Outcome == idempotency.OutcomeRecorded
	}, time.Minute, 10*time.Millisecond)
	require.Error(t, svc.journal.last(t).Err, "it says why the answer is not kept")
	requireProblem(t, svc.call("k", "b"), http.StatusConflict, "not-replayable")
	require.EqualValues(t, 1, svc.runs.Load())
}
