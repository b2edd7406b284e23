package idempotency_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/step"
)

// runnerBench is a Runner on the store, and the journal of its events.
type runnerBench struct {
	*idempotency.Runner
	store   *testservice.SpyStore
	journal testservice.Journal
}

// newBench returns a bench that is shut down at the end of the test.
func newBench(t *testing.T, store *testservice.SpyStore, opts idempotency.RunnerOptions) *runnerBench {
	t.Helper()
	b := &runnerBench{store: store}
	opts.Observer, opts.Logger = b.journal.Observe, slog.New(slog.DiscardHandler)
	var err error
	b.Runner, err = idempotency.NewRunner(store, opts)
	require.NoError(t, err)
	testservice.ShutdownAtEnd(t, b)
	return b
}

var (
	someKey  = idempotency.Key{User: "u", Endpoint: "e", ID: "k"}
	someWork = func(context.Context) (idempotency.Response, error) {
		return idempotency.Response{Status: 200, Body: []byte("done")}, nil
	}
)

// doOperation calls Do with someKey and always the same payload.
func (b *runnerBench) doOperation(work func(context.Context) (idempotency.Response, error)) (idempotency.Response, bool, error) {
	return b.Do(context.Background(), someKey, []byte("payload"), work)
}

func TestLeaseIsRenewedWhileTheHandlerRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, testservice.NewSpyStore(), idempotency.RunnerOptions{Lease: time.Minute})
		go func() {
			for range 119 {
				time.Sleep(30 * time.Second)
				_, _, err := b.doOperation(someWork)
				assert.ErrorIs(t, err, idempotency.ErrInProgress)
			}
		}()
		_, _, err := b.doOperation(func(ctx context.Context) (idempotency.Response, error) {
			time.Sleep(time.Hour - time.Second)
			assert.NoError(t, ctx.Err())
			return someWork(ctx)
		})
		require.NoError(t, err)
		require.EqualValues(t, 179, b.store.Extends.Load()) // every 20 s
		require.Equal(t, idempotency.OutcomeExecuted, b.journal.Last(t).Outcome)

		time.Sleep(time.Hour)
		synctest.Wait()
		require.EqualValues(t, 179, b.store.Extends.Load(), "renewed after the handler had returned")
		_, replayed, err := b.doOperation(someWork)
		require.NoError(t, err)
		require.True(t, replayed)
	})
}

// A handler may return without a word because its claim may be lost. Such a return does not count as a 200.
func TestHandlerThatGivesUpHasNotAnswered(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		policy  idempotency.Abandoned
		outcome idempotency.Outcome
		again   int
	}{
		"re-execute": {idempotency.ReExecute, idempotency.OutcomeReleased, http.StatusCreated},
		"refuse":     {idempotency.Refuse, idempotency.OutcomeAbandoned, http.StatusConflict},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := testservice.NewSpyStore()
				store.OnExtend = testservice.Failing(testservice.Always, testservice.ErrDown)
				svc := testservice.Setup{Store: store, Opts: idempotency.Options{Lease: time.Minute, Abandoned: c.policy}}.Guard(t,
					func(w http.ResponseWriter, r *http.Request) {
						if op, _ := idempotency.FromContext(r.Context()); op.Attempt == 1 {
							w.Header().Set("X-Left-Behind", "1")
							<-r.Context().Done()
							return
						}
						w.WriteHeader(http.StatusCreated)
					})
				first := svc.Call("k", "b")
				require.NotContains(t, first.Header, "X-Left-Behind")
				testservice.RequireProblem(t, first, http.StatusConflict, "in-progress")
				require.Equal(t, c.outcome, svc.Journal.Last(t).Outcome)
				time.Sleep(time.Minute)
				require.Equal(t, c.again, svc.Call("k", "b").Status)
			})
		})
	}
}

// All leases of a Runner share one timer. Each lease is renewed when due, even if the Runner hears of a later lease
// first, and while leases begin and end.
func TestEachLeaseIsRenewedWhenItIsDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testservice.NewSpyStore()
		store.OnBegin = func(_ context.Context, n int64, step func() error) error {
			if n%3 == 0 {
				time.Sleep(4500 * time.Millisecond)
			}
			return step()
		}
		b := newBench(t, store, idempotency.RunnerOptions{Lease: time.Minute})
		var mu sync.Mutex
		renewed := make(map[any][]time.Duration)
		store.OnExtend = func(ctx context.Context, _ int64, step func() error) error {
			mu.Lock()
			defer mu.Unlock()
			began := ctx.Value(someKey).(time.Time)
			renewed[began] = append(renewed[began], time.Since(began))
			return step()
		}
		var group sync.WaitGroup
		for i := range 60 {
			group.Go(func() {
				ctx := context.WithValue(t.Context(), someKey, time.Now())
				_, _, err := b.Do(ctx, testservice.NumberedKey(i), nil, func(ctx context.Context) (idempotency.Response, error) {
					time.Sleep(time.Duration(i%7) * 15 * time.Second)
					return someWork(ctx)
				})
				assert.NoError(t, err)
			})
			time.Sleep(time.Second)
		}
		group.Wait()
		require.NotEmpty(t, renewed)
		for _, times := range renewed {
			for i, after := range times {
				require.Equal(t, time.Duration(i+1)*20*time.Second, after)
			}
		}
	})
}

// The context of a handler ends in time when its lease may be lost, and not earlier.
func TestHandlerIsCancelledWhenItsLeaseIsLost(t *testing.T) {
	t.Parallel()
	const lapses = time.Minute - time.Minute/16 // ends a margin before another attempt may take over
	for _, row := range []struct {
		name  string
		begin time.Duration // how long Begin takes to answer
		fault testservice.Hook
		after time.Duration // when the context ends, from the call of Begin; zero: never
	}{
		{"lost at once", 0, testservice.Failing(testservice.Always, idempotency.ErrClaimLost), 20 * time.Second},
		{"lost at the third renewal", 0, func(_ context.Context, n int64, step func() error) error {
			if n == 3 {
				return idempotency.ErrClaimLost
			}
			return step()
		}, time.Minute},
		{"renewals fail", 0, testservice.Failing(testservice.Always, testservice.ErrDown), lapses},
		{"renewals fail behind a slow claim", 4 * time.Second, testservice.Failing(testservice.Always, testservice.ErrDown), lapses},
		{"renewals are not answered", 0, func(ctx context.Context, _ int64, _ func() error) error {
			<-ctx.Done()
			return ctx.Err()
		}, lapses},
		{"renewals take no notice of their context", 0, func(context.Context, int64, func() error) error {
			time.Sleep(time.Hour)
			return nil
		}, lapses},
		{"renewals fail after a while", 0, func(_ context.Context, n int64, step func() error) error {
			if n > 6 {
				return testservice.ErrDown
			}
			return step()
		}, 2*time.Minute + lapses},
		{"some renewals fail", 0, func(_ context.Context, n int64, step func() error) error {
			if n%4 != 0 {
				return testservice.ErrDown
			}
			return step()
		}, 0},
		{"record restored", 0, func(_ context.Context, _ int64, step func() error) error {
			return errors.Join(step(), idempotency.ErrRestored)
		}, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := testservice.NewSpyStore()
				store.OnExtend = row.fault
				store.OnBegin = func(_ context.Context, _ int64, step func() error) error {
					defer time.Sleep(row.begin)
					return step()
				}
				b := newBench(t, store, idempotency.RunnerOptions{Lease: time.Minute})
				began := time.Now()
				_, _, err := b.doOperation(func(ctx context.Context) (idempotency.Response, error) {
					select {
					case <-ctx.Done():
						assert.Equal(t, row.after, time.Since(began))
						assert.Equal(t, idempotency.ErrClaimLost, context.Cause(ctx))
					case <-time.After(time.Hour):
						assert.Zero(t, row.after)
					}
					return someWork(ctx)
				})
				require.NoError(t, err, "no attempt has taken over, so the answer counts")
				time.Sleep(2 * time.Hour) // until no renewal is under way
			})
		})
	}
}

func TestRestoredLeaseIsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testservice.NewSpyStore()
		store.OnExtend = func(_ context.Context, n int64, step func() error) error {
			if n == 1 {
				return errors.Join(step(), idempotency.ErrRestored)
			}
			return step()
		}
		b := newBench(t, store, idempotency.RunnerOptions{Lease: time.Minute})
		_, _, err := b.doOperation(func(ctx context.Context) (idempotency.Response, error) {
			time.Sleep(time.Hour)
			return someWork(ctx)
		})
		require.NoError(t, err)
		require.Equal(t, idempotency.OutcomeRestored, b.journal.Last(t).Outcome)
		require.ErrorIs(t, b.journal.Last(t).Err, idempotency.ErrRestored)
	})
}

func TestRenewalUnderWayDoesNotHoldUpTheAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testservice.NewSpyStore()
		store.OnExtend = func(ctx context.Context, _ int64, _ func() error) error {
			<-ctx.Done()
			return ctx.Err()
		}
		b := newBench(t, store, idempotency.RunnerOptions{Lease: time.Minute})
		began := time.Now()
		var kept context.Context
		_, _, err := b.doOperation(func(ctx context.Context) (idempotency.Response, error) {
			time.Sleep(21 * time.Second)
			kept = ctx
			return someWork(ctx)
		})
		require.NoError(t, err)
		require.Equal(t, 21*time.Second, time.Since(began))
		require.Equal(t, context.Canceled, context.Cause(kept), "the claim was not lost")
		require.EqualValues(t, 1, store.Extends.Load())
		require.EqualValues(t, 1, store.Completes.Load())
	})
}

// Renewals end with the completion of the claim.
func TestNoRenewalAfterTheCompletion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for range 300 {
			store := testservice.NewSpyStore()
			var completed atomic.Bool
			store.OnExtend = func(_ context.Context, _ int64, step func() error) error {
				assert.False(t, completed.Load())
				return step()
			}
			_, _, err := newBench(t, store, idempotency.RunnerOptions{Lease: time.Minute}).doOperation(
				func(ctx context.Context) (idempotency.Response, error) {
					time.Sleep(20*time.Second - 1) // before a renewal is due
					return someWork(ctx)
				})
			completed.Store(true)
			require.NoError(t, err)
			time.Sleep(time.Minute)
			synctest.Wait()
		}
	})
}

// The answer does not wait for a renewal under way, because a driver may ignore the end of its context.
func TestCompletionDoesNotWaitForARenewalUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testservice.NewSpyStore()
		store.OnExtend = func(_ context.Context, _ int64, step func() error) error {
			time.Sleep(time.Hour)
			return step()
		}
		b := newBench(t, store, idempotency.RunnerOptions{Lease: time.Minute})
		began := time.Now()
		var kept context.Context
		_, _, err := b.doOperation(func(ctx context.Context) (idempotency.Response, error) {
			time.Sleep(30 * time.Second)
			kept = ctx
			return someWork(ctx)
		})
		require.NoError(t, err)
		require.Equal(t, 30*time.Second, time.Since(began))
		time.Sleep(2 * time.Hour)
		require.Equal(t, context.Canceled, context.Cause(kept), "the claim was not lost")
		_, replayed, err := b.doOperation(mustNotWork(t))
		require.NoError(t, err)
		require.True(t, replayed)
	})
}

// A slow reply to a claim may make the lease due before leases that the Runner knows already, although they began
// later. The late lease is renewed in time.
func TestLateLeaseIsRenewedInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testservice.NewSpyStore()
		store.OnBegin = func(_ context.Context, n int64, step func() error) error {
			if n == 1 {
				defer time.Sleep(45 * time.Second) // three quarters of the lease
			}
			return step()
		}
		b := newBench(t, store, idempotency.RunnerOptions{Lease: time.Minute, StoreTimeout: time.Minute})
		var group sync.WaitGroup
		run := func(i int) {
			group.Go(func() {
				_, _, err := b.Do(t.Context(), testservice.NumberedKey(i), nil, func(ctx context.Context) (idempotency.Response, error) {
					time.Sleep(5 * time.Minute)
					assert.NoError(t, ctx.Err())
					return someWork(ctx)
				})
				assert.NoError(t, err)
			})
		}
		run(0)
		time.Sleep(40 * time.Second)
		run(1) // known before the late lease, and due after the late lease
		for range 25 {
			time.Sleep(10 * time.Second)
			_, _, err := b.Do(t.Context(), testservice.NumberedKey(0), nil, mustNotWork(t))
			require.ErrorIs(t, err, idempotency.ErrInProgress)
		}
		group.Wait()
	})
}

// A silent connection costs one renewal. The next renewal comes in time to keep the lease.
func TestSilentConnectionDoesNotCostTheLease(t *testing.T) {
	t.Parallel()
	for _, opts := range []idempotency.RunnerOptions{
		{}, {Lease: time.Second}, {Lease: 4 * time.Second, StoreTimeout: 4 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := testservice.NewSpyStore()
			store.OnExtend = func(ctx context.Context, n int64, step func() error) error {
				if n == 1 {
					<-ctx.Done()
					return ctx.Err()
				}
				return step()
			}
			b := newBench(t, store, opts)
			_, _, err := b.doOperation(func(ctx context.Context) (idempotency.Response, error) {
				time.Sleep(time.Minute)
				assert.NoError(t, ctx.Err())
				return someWork(ctx)
			})
			require.NoError(t, err)
			require.Equal(t, idempotency.OutcomeExecuted, b.journal.Last(t).Outcome)
		})
	}
}

// After a standstill of the process, leases may have lapsed before their renewal. The contexts of their owners end
// with ErrClaimLost. The test uses the real clock, because in a bubble of synctest a late timer cannot be stopped any
// more.
func TestAttemptsAreCancelledAfterAStandstill(t *testing.T) {
	t.Parallel()
	store := testservice.NewSpyStore()
	b := newBench(t, store, idempotency.RunnerOptions{Lease: time.Minute})
	for i := range 100 {
		_, claim, err := store.Begin(t.Context(), testservice.NumberedKey(i), testservice.AttemptFor(time.Hour))
		require.NoError(t, err)
		owner := b.RenewLate(t.Context(), claim, time.Minute)
		require.Eventually(t, func() bool { return owner.Err() != nil }, 10*time.Second, time.Millisecond)
		require.Equal(t, idempotency.ErrClaimLost, context.Cause(owner))
	}
}

// standstillStore makes the process stand still for two leases, once, while the reply to a call for checkpoints is on
// its way.
type standstillStore struct {
	idempotency.Store
	lease time.Duration
	after string // the kind of the call, "read" or "write"; cleared after the standstill
}

func (s *standstillStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	record, claim, err := s.Store.Begin(ctx, key, request)
	if claim != nil {
		claim = &standstillClaim{claim.(idempotency.Checkpointer), s}
	}
	return record, claim, err
}

// standstillClaim is a claim of a standstillStore.
type standstillClaim struct {
	idempotency.Checkpointer
	store *standstillStore
}

// simulateStandstill stops the timers of the attempt and sleeps for two leases, if the store waits for a call of the
// kind after.
func (c *standstillClaim) simulateStandstill(ctx context.Context, after string) {
	if c.store.after == after {
		c.store.after = ""
		idempotency.StopTimers(ctx)
		time.Sleep(2 * c.store.lease)
	}
}

func (c *standstillClaim) Checkpoint(ctx context.Context, name string, data []byte) ([]byte, error) {
	defer c.simulateStandstill(ctx, "write")
	return c.Checkpointer.Checkpoint(ctx, name, data)
}

func (c *standstillClaim) Checkpoints(ctx context.Context) (map[string][]byte, error) {
	defer c.simulateStandstill(ctx, "read")
	return c.Checkpointer.Checkpoints(ctx)
}

// After a standstill during a call for checkpoints, a step fails before its effect, even if the timers are late and
// the context is still live.
func TestStepDoesNotBeginAfterAStandstill(t *testing.T) {
	t.Parallel()
	type call = func(context.Context) (int, error)
	for name, c := range map[string]struct {
		after string
		run   func(ctx context.Context, send call) (int, error)
	}{
		"Do":         {"read", func(ctx context.Context, send call) (int, error) { return step.Do(ctx, "mail", send) }},
		"AtMostOnce": {"write", func(ctx context.Context, send call) (int, error) { return step.AtMostOnce(ctx, "mail", send, send) }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &standstillStore{idempotency.NewMemoryStore(idempotency.MemoryOptions{}), time.Minute, ""}
				runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{
					Lease: store.lease, Logger: slog.New(slog.DiscardHandler),
				})
				require.NoError(t, err)
				attempt := func(run func(ctx context.Context)) {
					_, _, _ = runner.Do(t.Context(), someKey, nil, func(ctx context.Context) (idempotency.Response, error) {
						run(ctx)
						return idempotency.Response{}, testservice.ErrDown // an error, so that there is a next attempt
					})
				}
				attempt(func(context.Context) {})
				store.after = c.after
				var sent []int // numbers of the attempts that have sent
				sending := func(ctx context.Context) {
					_, err := c.run(ctx, func(ctx context.Context) (int, error) {
						op, _ := idempotency.FromContext(ctx)
						sent = append(sent, op.Attempt)
						return 1, nil
					})
					if op, _ := idempotency.FromContext(ctx); op.Attempt == 2 {
						assert.ErrorIs(t, err, idempotency.ErrClaimLost)
						assert.NoError(t, ctx.Err(), "the timers are late")
					}
				}
				attempt(sending)
				attempt(sending)
				require.Equal(t, []int{3}, sent)
			})
		})
	}
}

// The context of a handler ends with the lease, before a second attempt can begin.
func TestAttemptIsCancelledBeforeATakeover(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testservice.NewSpyStore()
		store.OnExtend = func(context.Context, int64, func() error) error {
			time.Sleep(10 * time.Minute) // a driver that ignores its context
			return testservice.ErrDown
		}
		b := newBench(t, store, idempotency.RunnerOptions{})
		var told atomic.Bool
		go func() {
			_, _, _ = b.doOperation(func(ctx context.Context) (idempotency.Response, error) {
				<-ctx.Done()
				assert.Equal(t, idempotency.ErrClaimLost, context.Cause(ctx))
				told.Store(true)
				time.Sleep(time.Minute)
				return idempotency.Response{}, ctx.Err()
			})
		}()
		synctest.Wait()
		for {
			time.Sleep(time.Millisecond)
			_, _, err := b.doOperation(func(ctx context.Context) (idempotency.Response, error) {
				assert.True(t, told.Load())
				return someWork(ctx)
			})
			if err == nil {
				break
			}
			require.ErrorIs(t, err, idempotency.ErrInProgress)
		}
		time.Sleep(time.Hour) // until no renewal is under way
	})
}

// After a standstill of the process, all leases are due at once. The number of concurrent renewals is bounded,
// because the store must not get all requests at once.
func TestRenewalsAfterAStallAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const claims, most = 1000, 64
		store := testservice.NewSpyStore()
		var under, peak atomic.Int64
		store.OnExtend = func(_ context.Context, _ int64, step func() error) error {
			defer under.Add(-1)
			for n := under.Add(1); ; {
				if seen := peak.Load(); n <= seen || peak.CompareAndSwap(seen, n) {
					break
				}
			}
			time.Sleep(10 * time.Millisecond)
			return step()
		}
		b := newBench(t, store, idempotency.RunnerOptions{})
		var group sync.WaitGroup
		for i := range claims { // all begin, and are due, at the same time
			group.Go(func() {
				_, _, err := b.Do(t.Context(), testservice.NumberedKey(i), nil, func(ctx context.Context) (idempotency.Response, error) {
					time.Sleep(time.Minute)
					assert.NoError(t, ctx.Err())
					return someWork(ctx)
				})
				assert.NoError(t, err)
			})
		}
		group.Wait()
		time.Sleep(time.Minute) // until no renewal is under way
		require.EqualValues(t, most, peak.Load())
	})
}

// A claim whose lease may have lapsed on arrival is released, even with Refuse, because the handler has not run.
func TestClaimGrantedTooLateIsReleased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testservice.NewSpyStore()
		store.OnBegin = func(_ context.Context, n int64, step func() error) error {
			if n == 1 {
				defer time.Sleep(time.Minute)
			}
			return step()
		}
		b := newBench(t, store, idempotency.RunnerOptions{Lease: time.Minute, Abandoned: idempotency.Refuse})
		_, _, err := b.doOperation(mustNotWork(t))
		require.ErrorIs(t, err, idempotency.ErrClaimLost)
		require.ErrorAs(t, err, new(*idempotency.Error))
		require.Equal(t, []idempotency.Outcome{idempotency.OutcomeClaimLost}, b.journal.Outcomes())
		_, replayed, err := b.doOperation(someWork)
		require.NoError(t, err, "nothing has run")
		require.False(t, replayed)
	})
}

// A renewal may succeed after the completion of the claim. This renewal is the last.
func TestRenewalThatEndsAfterTheCompletionIsTheLast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testservice.NewSpyStore()
		store.OnExtend = func(context.Context, int64, func() error) error {
			time.Sleep(10 * time.Second) // although the context has ended
			return nil
		}
		b := newBench(t, store, idempotency.RunnerOptions{Lease: time.Minute})
		_, _, err := b.doOperation(func(ctx context.Context) (idempotency.Response, error) {
			time.Sleep(25 * time.Second) // 5 s into the renewal
			return someWork(ctx)
		})
		require.NoError(t, err)
		time.Sleep(time.Hour)
		require.EqualValues(t, 1, store.Extends.Load())
	})
}

// The owner counts its lease from the request for the renewal, because the store may have renewed the lease at that
// moment.
func TestLeaseIsCountedFromTheRequestForIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testservice.NewSpyStore()
		store.OnExtend = func(_ context.Context, n int64, step func() error) error {
			if n > 1 {
				return testservice.ErrDown
			}
			err := step()
			time.Sleep(10 * time.Second) // the reply is on its way
			return err
		}
		b := newBench(t, store, idempotency.RunnerOptions{Lease: time.Minute})
		began := time.Now()
		_, _, err := b.doOperation(func(ctx context.Context) (idempotency.Response, error) {
			<-ctx.Done()
			assert.Equal(t, idempotency.ErrClaimLost, context.Cause(ctx))
			assert.Equal(t, 20*time.Second+time.Minute-time.Minute/16, time.Since(began))
			return idempotency.Response{}, testservice.ErrDown
		})
		require.Equal(t, testservice.ErrDown, err)
	})
}
