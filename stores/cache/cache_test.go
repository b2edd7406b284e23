package cache_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/stores/cache"
)

func newCache(inner idempotency.Store) *cache.Store {
	return cache.New(inner, cache.Options{})
}

func TestCacheConforms(t *testing.T) {
	t.Parallel()
	conforms := func(t *testing.T, name string, newInner func(*testing.T) idempotency.Store) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			idempotencytest.Run(t, func(t *testing.T) idempotency.Store { return newCache(newInner(t)) })
		})
	}
	memory := func(*testing.T) idempotency.Store { return idempotency.NewMemoryStore(idempotency.MemoryOptions{}) }
	conforms(t, "memory", memory)
	conforms(t, "another cache", func(t *testing.T) idempotency.Store { return newCache(memory(t)) })
	conforms(t, "sealed", func(t *testing.T) idempotency.Store {
		return testservice.MustSeal(t, memory(t), testservice.Sealing("1"))
	})
	t.Run("inside of a seal", func(t *testing.T) {
		t.Parallel()
		idempotencytest.Run(t, func(t *testing.T) idempotency.Store {
			return testservice.MustSeal(t, newCache(memory(t)), testservice.Sealing("1"))
		})
	})
	t.Run("each step by another process", func(t *testing.T) {
		t.Parallel()
		idempotencytest.Run(t, func(t *testing.T) idempotency.Store {
			inner := memory(t)
			return &inTurn{stores: []idempotency.Store{newCache(inner), newCache(inner), newCache(inner)}}
		})
	})
	t.Run("servers", func(t *testing.T) {
		t.Parallel()
		_, fake := testservice.NewMiniredis(t)
		client := testservice.NewRedisClient(t, servertest.Redis(t).Addr())
		conforms(t, "miniredis", func(*testing.T) idempotency.Store {
			return idempotency.NewRedisStore(fake, idempotency.RedisOptions{})
		})
		conforms(t, "redis", func(*testing.T) idempotency.Store {
			return idempotency.NewRedisStore(client, idempotency.RedisOptions{})
		})
	})
}

func TestCachedStepsConform(t *testing.T) {
	t.Parallel()
	memory := func() idempotency.Store { return idempotency.NewMemoryStore(idempotency.MemoryOptions{}) }
	for name, newStore := range map[string]func(*testing.T) idempotency.Store{
		"memory": func(*testing.T) idempotency.Store { return newCache(memory()) },
		"sealed": func(t *testing.T) idempotency.Store {
			return newCache(testservice.MustSeal(t, memory(), testservice.Sealing("1")))
		},
		"inside of a seal": func(t *testing.T) idempotency.Store {
			return testservice.MustSeal(t, newCache(memory()), testservice.Sealing("1"))
		},
		"each step by another process": func(*testing.T) idempotency.Store {
			inner := memory()
			return &inTurn{stores: []idempotency.Store{newCache(inner), newCache(inner), newCache(inner)}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			idempotencytest.RunSteps(t, newStore)
			if _, ok := newStore(t).(idempotency.Resolver); ok {
				idempotencytest.RunResolver(t, newStore)
			}
		})
	}
	without := newCache(testservice.WithoutSteps{Store: memory()})
	claim := testservice.MustClaim(t, without, testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
	_, ok := claim.(idempotency.Checkpointer)
	require.False(t, ok, "the inner claim is none")
}

// inTurn asks its stores in turn, as a load balancer does with processes.
type inTurn struct {
	mu     sync.Mutex
	n      int
	stores []idempotency.Store
}

func (s *inTurn) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	s.mu.Lock()
	s.n++
	store := s.stores[s.n%len(s.stores)]
	s.mu.Unlock()
	return store.Begin(ctx, key, request)
}

// asks says whether Begin asks the inner store, and returns the record.
func asks(
	t *testing.T, cached *cache.Store, inner *testservice.SpyStore, key idempotency.Key, want bool,
) idempotency.Record {
	t.Helper()
	before := inner.Begins.Load()
	record := testservice.MustRead(t, cached, key)
	require.Equal(t, want, inner.Begins.Load() > before, "the store was asked")
	return record
}

func TestCacheReplaysWhileTheStoreIsDown(t *testing.T) {
	t.Parallel()
	inner := testservice.NewSpyStore()
	svc := testservice.Setup{Store: newCache(inner)}.Guard(t, testservice.Echo)
	first := svc.Call("key", "a")
	inner.OnBegin = testservice.Failing(testservice.Always, errors.New("down"))
	testservice.RequireReplay(t, first, svc.Call("key", "a"))
	testservice.RequireProblem(t, svc.Call("key", "b"), http.StatusConflict, "key-reused")
	testservice.RequireProblem(t, svc.Call("other", "a"), http.StatusServiceUnavailable, "store-unavailable")
	require.Equal(t, first.Body, svc.Call("key", "a").Body, "again")
	require.EqualValues(t, 1, svc.Runs.Load())
}

// A record is kept for as long as the store keeps it, or for MaxAge if that is shorter. Both count from before the
// step, which takes a second here.
func TestCacheForgets(t *testing.T) {
	t.Parallel()
	const step = time.Second
	fill := map[string]func(t *testing.T, cached *cache.Store, inner *testservice.SpyStore, ttl time.Duration){
		"own completion": func(t *testing.T, cached *cache.Store, _ *testservice.SpyStore, ttl time.Duration) {
			claim := testservice.MustClaim(t, cached, testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
			require.NoError(t, claim.Complete(t.Context(), testservice.BodyOf(1), ttl))
		},
		"replay": func(t *testing.T, cached *cache.Store, inner *testservice.SpyStore, ttl time.Duration) {
			claim := testservice.MustClaim(t, inner.Store, testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
			require.NoError(t, claim.Complete(t.Context(), testservice.BodyOf(1), ttl+2*time.Minute))
			time.Sleep(2 * time.Minute)
			asks(t, cached, inner, testservice.NumberedKey(1), true)
		},
	}
	for name, test := range map[string]struct{ ttl, maxAge, kept time.Duration }{
		"expired":              {ttl: 20 * time.Second, kept: 20 * time.Second},
		"aged":                 {ttl: time.Hour, kept: time.Minute},
		"aged, as set":         {ttl: time.Hour, maxAge: 5 * time.Second, kept: 5 * time.Second},
		"kept for ever":        {ttl: 290 * 365 * 24 * time.Hour, maxAge: time.Hour, kept: time.Hour},
		"gone in the meantime": {ttl: step},
	} {
		for from, fill := range fill {
			t.Run(name+", "+from, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					inner := testservice.NewSpyStore()
					inner.Store = asked{inner.Store}
					slow := func(_ context.Context, _ int64, do func() error) error {
						err := do()
						time.Sleep(step)
						return err
					}
					inner.OnBegin, inner.OnComplete = slow, slow
					cached := cache.New(inner, cache.Options{MaxAge: test.maxAge})
					fill(t, cached, inner, test.ttl)
					if test.kept == 0 {
						_, claim, err := cached.Begin(t.Context(), testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
						require.NoError(t, err)
						require.NotNil(t, claim, "it has expired")
						return
					}
					time.Sleep(test.kept - step - 1)
					record := asks(t, cached, inner, testservice.NumberedKey(1), false)
					require.Equal(t, test.ttl-test.kept+1, record.Remaining)
					require.Equal(t, testservice.BodyOf(1), *record.Response)
					time.Sleep(time.Nanosecond)
					before := inner.Begins.Load()
					_, claim, err := cached.Begin(t.Context(), testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
					require.NoError(t, err)
					require.Equal(t, before+1, inner.Begins.Load(), "the store was not asked")
					require.Equal(t, test.kept == test.ttl, claim != nil)
				})
			})
		}
	}
}

// asked is a store that tells how long a record is kept only if it is asked for it.
type asked struct{ idempotency.Store }

func (s asked) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	record, claim, err := s.Store.Begin(ctx, key, request)
	if !request.Remaining {
		record.Remaining = 0
	}
	return record, claim, err
}

// What was deleted in the store is replayed for up to MaxAge, and no longer.
func TestCacheOfADeletedRecord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inner := testservice.NewSpyStore()
		cached := newCache(inner)
		testservice.MustComplete(t, cached, testservice.NumberedKey(1), testservice.BodyOf(1))
		inner.Store = testservice.NewSpyStore()
		time.Sleep(time.Minute - 1)
		asks(t, cached, inner, testservice.NumberedKey(1), false)
		time.Sleep(time.Nanosecond)
		testservice.MustComplete(t, cached, testservice.NumberedKey(1), testservice.BodyOf(2))
		require.Len(t, asks(t, cached, inner, testservice.NumberedKey(1), false).Response.Body, 2)
	})
}

func TestCacheDoesNotKeepWhatIsUncertain(t *testing.T) {
	t.Parallel()
	down := errors.New("down")
	lostReply := func(_ context.Context, n int64, step func() error) error {
		if err := step(); n > 1 || err != nil {
			return err
		}
		return down
	}
	answering := func(err error) testservice.Hook {
		return func(_ context.Context, _ int64, step func() error) error { return errors.Join(step(), err) }
	}
	for name, test := range map[string]struct {
		onComplete testservice.Hook
		want       []error // of each attempt to complete
	}{
		"down":                   {testservice.Failing(testservice.Always, down), []error{down, down}},
		"reply lost":             {lostReply, []error{down, nil}},
		"restored":               {answering(idempotency.ErrRestored), []error{idempotency.ErrRestored}},
		"somebody else's by now": {testservice.Failing(testservice.Always, idempotency.ErrClaimLost), []error{idempotency.ErrClaimLost}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inner := testservice.NewSpyStore()
			inner.OnComplete = test.onComplete
			cached := newCache(inner)
			claim := testservice.MustClaim(t, cached, testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
			for n, want := range test.want {
				require.ErrorIs(t, claim.Complete(t.Context(), testservice.BodyOf(n), time.Hour), want)
			}
			record := asks(t, cached, inner, testservice.NumberedKey(1), true)
			if record.Response != nil {
				require.Empty(t, record.Response.Body, "the first response counts")
			}
		})
	}
}

// A repetition of what has taken effect succeeds, and changes neither response nor expiry.
func TestCacheOfARepeatedComplete(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inner := testservice.NewSpyStore()
		cached := newCache(inner)
		claim := testservice.MustClaim(t, cached, testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
		require.NoError(t, claim.Complete(t.Context(), testservice.BodyOf(1), 10*time.Second+999*time.Microsecond))
		time.Sleep(5 * time.Second)
		require.NoError(t, claim.Complete(t.Context(), testservice.BodyOf(2), 10*time.Second))
		record := asks(t, cached, inner, testservice.NumberedKey(1), false)
		require.Len(t, record.Response.Body, 1)
		require.Equal(t, 5*time.Second, record.Remaining, "in whole milliseconds")
	})
}

func TestCacheOfAnOvertakenOwner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inner := testservice.NewSpyStore()
		cached := newCache(inner)
		claim := testservice.MustClaim(t, cached, testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
		time.Sleep(time.Minute)
		testservice.MustComplete(t, inner.Store, testservice.NumberedKey(1), testservice.BodyOf(2))
		require.ErrorIs(t, claim.Complete(t.Context(), testservice.BodyOf(1), time.Hour), idempotency.ErrClaimLost)
		record := asks(t, cached, inner, testservice.NumberedKey(1), true)
		require.Equal(t, 2, record.Attempt)
		require.Equal(t, record.Response, asks(t, cached, inner, testservice.NumberedKey(1), false).Response)
	})
}

// A reply that comes late does not take the place of what came after it.
func TestCacheOfALateReply(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inner := testservice.NewSpyStore()
		claim := testservice.MustClaim(t, inner.Store, testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
		require.NoError(t, claim.Complete(t.Context(), testservice.BodyOf(1), 10*time.Second))
		inner.OnBegin = func(_ context.Context, n int64, step func() error) error {
			err := step()
			if n == 1 {
				time.Sleep(30 * time.Second)
			}
			return err
		}
		cached := newCache(inner)
		var late idempotency.Record
		var asking sync.WaitGroup
		asking.Go(func() { late = testservice.MustRead(t, cached, testservice.NumberedKey(1)) })
		time.Sleep(10 * time.Second)
		testservice.MustComplete(t, cached, testservice.NumberedKey(1), testservice.BodyOf(2))
		asking.Wait()
		require.Len(t, late.Response.Body, 1, "it was so when the store was asked")
		require.Len(t, asks(t, cached, inner, testservice.NumberedKey(1), false).Response.Body, 2)
	})
}

func TestCacheOfAStoreThatDoesNotTellWhatIsLeft(t *testing.T) {
	t.Parallel()
	inner := testservice.NewSpyStore()
	inner.Store = &testservice.AlteredStore{Store: inner.Store, Alter: func(record *idempotency.Record) { record.Remaining = 0 }}
	cached := newCache(inner)
	testservice.MustComplete(t, inner.Store, testservice.NumberedKey(1), testservice.BodyOf(1))
	asks(t, cached, inner, testservice.NumberedKey(1), true)
	asks(t, cached, inner, testservice.NumberedKey(1), true)
	testservice.MustComplete(t, cached, testservice.NumberedKey(2), testservice.BodyOf(1))
	asks(t, cached, inner, testservice.NumberedKey(2), false)
}

// A store that keeps fingerprints secret shows each request another one. It is kept if it tells what was asked for.
func TestCacheJudgesEachRequest(t *testing.T) {
	t.Parallel()
	inner := testservice.NewSpyStore()
	inner.Store = &testservice.AlteredStore{Store: inner.Store, Alter: func(record *idempotency.Record) {
		if record.Fingerprint != (idempotency.Fingerprint{1}) {
			record.Fingerprint = idempotency.Fingerprint{9}
		}
	}}
	cached := newCache(inner)
	request := func(content byte) idempotency.ClaimRequest {
		return idempotency.ClaimRequest{Fingerprint: idempotency.Fingerprint{content}, Lease: time.Minute, TTL: time.Hour}
	}
	claim := testservice.MustClaim(t, inner.Store, testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
	require.NoError(t, claim.Complete(t.Context(), testservice.BodyOf(1), time.Hour))
	for n, content := range []byte{2, 3, 1, 2, 1} {
		record, _, err := cached.Begin(t.Context(), testservice.NumberedKey(1), request(content))
		require.NoError(t, err)
		require.Equal(t, content == 1, record.Fingerprint == request(content).Fingerprint)
		require.EqualValues(t, min(n+1, 3), inner.Begins.Load())
	}
}

func TestCacheIsBounded(t *testing.T) {
	t.Parallel()
	inner := testservice.NewSpyStore()
	cached := cache.New(inner, cache.Options{MaxBytes: 64 << 10})
	testservice.MustComplete(t, cached, testservice.NumberedKey(0), testservice.BodyOf(8<<10))
	asks(t, cached, inner, testservice.NumberedKey(0), true)
	asks(t, cached, inner, testservice.NumberedKey(0), true)
	const most = 64 / 4
	for n := range 100 {
		testservice.MustComplete(t, cached, testservice.NumberedKey(n+1), testservice.BodyOf(3<<10))
		asks(t, cached, inner, testservice.NumberedKey(n+1), false)
	}
	kept := 0
	for n := range 100 {
		before := inner.Begins.Load()
		inner.OnBegin = testservice.Failing(testservice.Always, idempotency.ErrStoreBusy)
		if _, _, err := cached.Begin(t.Context(), testservice.NumberedKey(n+1), testservice.AttemptFor(time.Hour)); err == nil {
			kept++
			require.Equal(t, before, inner.Begins.Load())
			require.GreaterOrEqual(t, n, 100-2*most, "the first to come are the first to go")
		}
	}
	require.InDelta(t, most, kept, 3)
}

// What is no longer used goes when more comes, so that the memory is that of MaxAge.
func TestCacheGivesBackWhatHasAged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cached := newCache(idempotency.NewMemoryStore(idempotency.MemoryOptions{}))
		for n := range 1000 {
			testservice.MustComplete(t, cached, testservice.NumberedKey(n), testservice.BodyOf(1))
			time.Sleep(time.Second)
		}
		require.LessOrEqual(t, cached.Len(), 61)
	})
}

func TestMemoryOfACache(t *testing.T) { // not parallel: it measures the memory of the process
	const limit = 16 << 20
	for name, size := range map[string]int{"small bodies": 200, "large bodies": 20_000} {
		t.Run(name, func(t *testing.T) {
			cached := cache.New(discarding{}, cache.Options{MaxBytes: limit})
			before := testservice.HeapInUse()
			for n := range 2 * limit / size {
				testservice.MustComplete(t, cached, testservice.NumberedKey(n), testservice.BodyOf(size))
			}
			ratio := float64(testservice.HeapInUse()-before) / limit
			t.Logf("%d records, %.2f times the estimate", cached.Len(), ratio)
			require.InDelta(t, 1, ratio, 0.3)
			runtime.KeepAlive(cached)
		})
	}
}

// discarding is a store that grants and completes everything, and has nothing.
type discarding struct{ idempotency.Claim }

func (d discarding) Begin(
	_ context.Context, _ idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	return idempotency.Record{Attempt: 1, Fingerprint: request.Fingerprint}, d, nil
}

func (discarding) Complete(context.Context, idempotency.Response, time.Duration) error { return nil }

func TestCacheOptions(t *testing.T) {
	t.Parallel()
	_, _, err := cache.New(nil, cache.Options{MaxBytes: -1, MaxAge: -1}).
		Begin(t.Context(), testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
	for _, fault := range []string{"Store is nil", "MaxBytes -1 is negative", "MaxAge -1ns is negative"} {
		require.ErrorContains(t, err, fault)
	}
}

func TestCacheIsLikeItsStore(t *testing.T) {
	t.Parallel()
	memory := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	require.True(t, newCache(memory).Immediate())
	require.False(t, newCache(testservice.NewSpyStore()).Immediate())
}

// Several processes with a cache each do random steps. Whenever one of them is told that an operation is completed, the
// store says the same at that moment.
func TestCacheSaysWhatTheStoreSays(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			some := func(most time.Duration) time.Duration { return time.Duration(random.Int64N(int64(most))) + 1 }
			store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
			opening := testservice.MustSeal(t, store, testservice.OnlyOpening(testservice.Sealing("1")))
			caches := []idempotency.Store{newCache(store), newCache(store), newCache(opening)}
			var claims []idempotency.Claim
			for n := range 200 {
				key := testservice.NumberedKey(random.IntN(3))
				request := testservice.AttemptFor(some(time.Minute))
				request.Fingerprint, request.Lease = idempotency.Fingerprint{byte(random.IntN(2) + 1)}, some(20*time.Second)
				record, claim, err := caches[random.IntN(len(caches))].Begin(t.Context(), key, request)
				require.NoError(t, err)
				switch {
				case claim != nil:
					claims = append(claims, claim)
				case record.Response != nil:
					stored, claim, err := store.Begin(t.Context(), key, request)
					require.NoError(t, err)
					require.Nil(t, claim, "seed %d, step %d: it has expired", seed, n)
					require.LessOrEqual(t, record.Remaining, stored.Remaining)
					require.Less(t, stored.Remaining-record.Remaining, time.Millisecond)
					record.Remaining, record.FromCache = stored.Remaining, false
					require.Equal(t, stored, record, "seed %d, step %d", seed, n)
				}
				if len(claims) > 0 {
					claim, ttl := claims[random.IntN(len(claims))], some(2*time.Minute)
					switch random.IntN(4) {
					case 0:
						_ = claim.Release(t.Context(), idempotency.Release{TTL: ttl})
					case 1:
						_ = claim.Extend(t.Context(), some(20*time.Second))
					default:
						_ = claim.Complete(t.Context(), testservice.BodyOf(n), ttl)
					}
				}
				time.Sleep(some(10 * time.Second))
			}
		})
	}
}

// BenchmarkCache replays an answer of 200 bytes from a store in memory, and from a cached, in turns. It reports the
// median of the ratios. The cache stands in front of Redis: the steps of a Runner would have a deadline there.
func BenchmarkCache(b *testing.B) {
	memory := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	cached := newCache(idempotency.NewRedisStore(testservice.NewRedisClient(b, servertest.Redis(b).Addr()), idempotency.RedisOptions{}))
	b.Run("store", func(b *testing.B) {
		replay := func(store idempotency.Store) func() {
			request := testservice.AttemptFor(time.Hour)
			testservice.MustComplete(b, store, testservice.NumberedKey(b.N), testservice.BodyOf(200))
			key := testservice.NumberedKey(b.N)
			return func() {
				if record, _, err := store.Begin(b.Context(), key, request); err != nil || record.Response == nil {
					b.Fatal(record, err)
				}
			}
		}
		inTurns(b, replay(memory), replay(cached))
	})
	b.Run("runner", func(b *testing.B) {
		replay := func(store idempotency.Store) func() {
			runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{})
			require.NoError(b, err)
			work := func(context.Context) (idempotency.Response, error) { return testservice.BodyOf(200), nil }
			do := func() (replayed bool, err error) {
				_, replayed, err = runner.Do(b.Context(), idempotency.Key{ID: "runner"}, nil, work)
				return replayed, err
			}
			_, err = do()
			require.NoError(b, err)
			return func() {
				if replayed, err := do(); err != nil || !replayed {
					b.Fatal(replayed, err)
				}
			}
		}
		inTurns(b, replay(memory), replay(cached))
	})
}

// inTurns reports what subject takes in comparison with control, and what it allocates.
func inTurns(b *testing.B, control, subject func()) {
	const batch = 200
	timed := func(f func()) time.Duration {
		start := time.Now()
		for range batch {
			f()
		}
		return time.Since(start)
	}
	var ratios []float64
	var times [2][]float64
	for b.Loop() {
		c, s := timed(control), timed(subject)
		ratios = append(ratios, float64(s)/float64(c))
		times[0], times[1] = append(times[0], float64(c)/batch), append(times[1], float64(s)/batch)
	}
	median := func(x []float64) float64 {
		slices.Sort(x)
		return x[len(x)/2]
	}
	b.ReportMetric(median(ratios), "x-memory")
	b.ReportMetric(median(times[0]), "ns-memory")
	b.ReportMetric(median(times[1]), "ns-cache")
	b.ReportMetric(testing.AllocsPerRun(1000, control), "allocs-memory")
	b.ReportMetric(testing.AllocsPerRun(1000, subject), "allocs-cache")
}

// partStore replays a body that is a part of something larger, as a reply of Redis is.
type partStore struct{ whole []byte }

func (s partStore) Begin(_ context.Context, _ idempotency.Key, request idempotency.ClaimRequest) (
	idempotency.Record, idempotency.Claim, error,
) {
	return idempotency.Record{
		Attempt: 1, Fingerprint: request.Fingerprint, Remaining: time.Hour,
		Response: &idempotency.Response{Status: http.StatusOK, Body: s.whole[1:2]},
	}, nil, nil
}

// What is kept is what is counted, not the memory around it.
func TestCacheKeepsNothingAroundARecord(t *testing.T) {
	t.Parallel()
	store := partStore{make([]byte, 3)}
	cached := newCache(store)
	key := testservice.NumberedKey(1)
	first, kept := testservice.MustRead(t, cached, key), testservice.MustRead(t, cached, key)
	require.Same(t, &store.whole[1], &first.Response.Body[0], "the store has replayed it")
	require.Equal(t, first.Response.Body, kept.Response.Body)
	require.NotSame(t, &store.whole[1], &kept.Response.Body[0])
}
