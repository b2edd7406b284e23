package idempotency_test

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/testservice"
)

var waiting = idempotency.RunnerOptions{Wait: time.Minute}

// own starts work that takes d, and returns when it has begun. What it returns waits for its end.
func (b *bench) own(d time.Duration, err error) (wait func()) {
	began, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		_, _, _ = b.do(func(ctx context.Context) (idempotency.Response, error) {
			close(began)
			time.Sleep(d)
			resp, _ := someWork(ctx)
			return resp, err
		})
	}()
	<-began
	return func() { <-ended }
}

func mustNotWork(t *testing.T) func(context.Context) (idempotency.Response, error) {
	return func(context.Context) (idempotency.Response, error) {
		t.Error("executed")
		return idempotency.Response{}, nil
	}
}

func TestDuplicateWaitsForTheAnswer(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		elsewhere bool // the owner is in another process
		within    time.Duration
	}{"same process": {false, 0}, "other process": {true, 320 * time.Millisecond}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				here := newBench(t, testservice.NewSpyStore(), waiting)
				owner := here
				if row.elsewhere {
					owner = newBench(t, here.store, waiting)
				}
				began := time.Now()
				wait := owner.own(10*time.Second, nil)
				resp, replayed, err := here.do(mustNotWork(t))
				require.NoError(t, err)
				require.True(t, replayed)
				require.Equal(t, "done", string(resp.Body))
				require.InDelta(t, 10*time.Second, time.Since(began), float64(row.within))
				require.Equal(t, idempotency.OutcomeReplayed, here.journal.Last(t).Outcome)
				require.Equal(t, time.Since(began), here.journal.Last(t).Waited)
				wait()
			})
		})
	}
}

func TestWaitEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, testservice.NewSpyStore(), waiting)
		wait := b.own(time.Hour, nil)
		began := time.Now()
		var group sync.WaitGroup
		for range 3 {
			group.Go(func() {
				_, _, err := b.do(mustNotWork(t))
				assert.ErrorIs(t, err, idempotency.ErrInProgress)
				assert.Equal(t, time.Minute, time.Since(began))
			})
		}
		group.Wait()
		require.Equal(t, idempotency.OutcomeInProgress, b.journal.Last(t).Outcome)
		require.Equal(t, time.Minute, b.journal.Last(t).Waited)
		wait()
	})
}

// The waiting requests of one user are bounded. Beyond that one is told at once that its key is in progress, while
// another user waits.
func TestHowManyRequestsOfAUserMayWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const most = 128
		finish := make(chan struct{})
		svc := testservice.Setup{
			User: func(r *http.Request) (string, error) { return r.Header.Get("X-User"), nil },
			Opts: idempotency.Options{Wait: time.Hour},
		}.Guard(t, func(http.ResponseWriter, *http.Request) { <-finish })
		alice, bob := testservice.WithHeader("X-User", "alice"), testservice.WithHeader("X-User", "bob")
		var group sync.WaitGroup
		for range 2 { // what was taken was given back
			key := rand.Text()
			for _, user := range []testservice.Edit{alice, bob} {
				group.Go(func() { svc.Call(key, "", user) })
				synctest.Wait()
			}
			for range most {
				group.Go(func() { assert.Equal(t, http.StatusOK, svc.Call(key, "", alice).Status) })
			}
			synctest.Wait()
			testservice.RequireProblem(t, svc.Call(key, "", alice), http.StatusConflict, "in-progress")
			group.Go(func() { assert.Equal(t, http.StatusOK, svc.Call(key, "", bob).Status) })
			synctest.Wait()
			close(finish)
			group.Wait()
			finish = make(chan struct{})
		}
	})
}

func TestManyWaitersAskTheStoreSeldom(t *testing.T) {
	t.Parallel()
	for name, elsewhere := range map[string]bool{"same process": false, "other process": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const waiters = 1000
				here := newBench(t, testservice.NewSpyStore(), waiting)
				owner := here
				if elsewhere {
					owner = newBench(t, here.store, waiting)
				}
				wait := owner.own(10*time.Second, nil)
				var group sync.WaitGroup
				for range waiters {
					group.Go(func() {
						_, replayed, err := here.do(mustNotWork(t))
						assert.NoError(t, err)
						assert.True(t, replayed)
					})
				}
				group.Wait()
				wait()
				// One look each, and one poller for all of them that looks four times a second at most.
				require.LessOrEqual(t, here.store.Begins.Load(), int64(1+waiters+50))
			})
		})
	}
}

func TestWaiterTakesOverThePolling(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		here, owner := newBench(t, testservice.NewSpyStore(), waiting), (*bench)(nil)
		owner = newBench(t, here.store, waiting)
		wait := owner.own(10*time.Second, nil)
		var group sync.WaitGroup
		for i := range 10 { // each of them leads for a second, and then its client hangs up
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Second+time.Millisecond)
			defer cancel()
			group.Go(func() {
				_, _, err := here.Do(ctx, someKey, []byte("payload"), mustNotWork(t))
				assert.ErrorIs(t, err, idempotency.ErrInProgress)
			})
			synctest.Wait()
		}
		began := time.Now()
		_, replayed, err := here.do(mustNotWork(t))
		require.NoError(t, err)
		require.True(t, replayed)
		require.InDelta(t, 10*time.Second, time.Since(began), float64(320*time.Millisecond))
		group.Wait()
		wait()
	})
}

func TestWaiterClaimsWhatTheOwnerReleased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, testservice.NewSpyStore(), waiting)
		wait := b.own(10*time.Second, errors.New("try again"))
		began := time.Now()
		executed := 0
		var group sync.WaitGroup
		for range 100 {
			group.Go(func() {
				_, _, err := b.do(func(ctx context.Context) (idempotency.Response, error) {
					assert.Equal(t, 10*time.Second, time.Since(began))
					executed++
					time.Sleep(time.Second)
					return someWork(ctx)
				})
				assert.NoError(t, err)
				assert.Equal(t, 11*time.Second, time.Since(began))
			})
		}
		group.Wait()
		wait()
		require.Equal(t, 1, executed)
		require.LessOrEqual(t, b.store.Begins.Load(), int64(1+100+60))
	})
}

func TestWaiterThatGaveUpDoesNotHoldTheKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, testservice.NewSpyStore(), waiting)
		wait := b.own(10*time.Second, errors.New("try again"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _, err := b.Do(ctx, someKey, []byte("payload"), mustNotWork(t))
		require.ErrorIs(t, err, idempotency.ErrInProgress)
		wait()
		_, replayed, err := b.do(someWork)
		require.NoError(t, err)
		require.False(t, replayed)
	})
}

func TestWaiterIsToldThatTheStoreFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testservice.NewSpyStore()
		open := waiting
		open.FailOpen = true // no excuse: another attempt may still be running
		b := newBench(t, store, open)
		store.OnBegin = func(_ context.Context, n int64, step func() error) error {
			if n > 4 {
				return testservice.ErrDown
			}
			return step()
		}
		wait := b.own(10*time.Second, nil)
		var group sync.WaitGroup
		for range 3 {
			group.Go(func() {
				_, _, err := b.do(mustNotWork(t))
				assert.ErrorIs(t, err, idempotency.ErrUnavailable)
				assert.ErrorIs(t, err, testservice.ErrDown)
			})
		}
		group.Wait()
		wait()
	})
}

func TestAnotherRequestDoesNotWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, testservice.NewSpyStore(), waiting)
		wait := b.own(10*time.Second, nil)
		began := time.Now()
		_, _, err := b.Do(t.Context(), someKey, []byte("other"), mustNotWork(t))
		require.ErrorIs(t, err, idempotency.ErrKeyReused)
		require.Zero(t, time.Since(began))
		wait()
	})
}

// FailOpen takes the risk that a key is held by somebody. It does not run what is known to be running.
func TestFailOpenDoesNotRunBesideTheAttemptThatItWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testservice.NewSpyStore()
		store.OnBegin = func(_ context.Context, n int64, step func() error) error {
			if n >= 3 {
				return testservice.ErrDown
			}
			return step()
		}
		opts := waiting
		opts.FailOpen = true
		b := newBench(t, store, opts)
		wait := b.own(time.Second, nil)
		_, _, err := b.do(mustNotWork(t))
		require.ErrorIs(t, err, idempotency.ErrUnavailable)
		require.Equal(t, idempotency.OutcomeUnavailable, b.journal.Last(t).Outcome)
		wait()
	})
}

// Of two requests that wait for a key, one asks the store. What it hears tells the other nothing about fingerprints.
func TestWaitersOfASecretiveStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := secretiveStore{testservice.NewSpyStore()}
		runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{Wait: time.Minute})
		require.NoError(t, err)
		do := func(payload string) chan error {
			ended := make(chan error, 1)
			go func() {
				_, _, err := runner.Do(t.Context(), testservice.NumberedKey(1), []byte(payload), func(context.Context) (idempotency.Response, error) {
					time.Sleep(10 * time.Second)
					return testservice.BodyOf(1), nil
				})
				ended <- err
			}()
			synctest.Wait()
			return ended
		}
		owner := do("payload")
		other, duplicate, another := do("other payload"), do("payload"), do("other payload") // the first one asks
		require.NoError(t, <-owner)
		require.ErrorIs(t, <-other, idempotency.ErrKeyReused)
		require.NoError(t, <-duplicate)
		require.ErrorIs(t, <-another, idempotency.ErrKeyReused)
	})
}

// secretiveStore tells no fingerprint of an attempt that runs, and a different one to each request that is another.
type secretiveStore struct{ *testservice.SpyStore }

func (s secretiveStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	record, claim, err := s.SpyStore.Begin(ctx, key, request)
	switch {
	case claim != nil:
	case record.LeaseLeft > 0:
		record.Fingerprint = idempotency.Fingerprint{}
	case record.Fingerprint != request.Fingerprint:
		record.Fingerprint = sha256.Sum256(request.Fingerprint[:])
	}
	return record, claim, err
}
