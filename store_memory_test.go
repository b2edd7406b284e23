package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
)

func TestMemoryStoreConforms(t *testing.T) {
	t.Parallel()
	idempotencytest.Run(t, func(*testing.T) idempotency.Store {
		return idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	})
}

// Keys are found by a hash, and told apart by themselves.
func TestMemoryStoreConformsThoughHashesCollide(t *testing.T) {
	t.Parallel()
	store := idempotency.CollidingMemoryStore()
	idempotencytest.Run(t, func(*testing.T) idempotency.Store { return store })
}

// numberedKey returns the n-th of many keys.
func numberedKey(n int) idempotency.Key {
	return idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: fmt.Sprintf("%036d", n)}
}

// attemptFor returns an attempt with a lease of a minute.
func attemptFor(ttl time.Duration) idempotency.ClaimRequest {
	return idempotency.ClaimRequest{Fingerprint: idempotency.Fingerprint{1}, Lease: time.Minute, TTL: ttl, TakeOver: true}
}

// bodyOf returns a response with a body of n bytes.
func bodyOf(n int) idempotency.Response {
	return idempotency.Response{Status: http.StatusCreated, Body: make([]byte, n)}
}

// mustClaim claims a free key.
func mustClaim(
	t testing.TB, store idempotency.Store, key idempotency.Key, request idempotency.ClaimRequest,
) idempotency.Claim {
	t.Helper()
	_, claim, err := store.Begin(t.Context(), key, request)
	require.NoError(t, err)
	require.NotNil(t, claim, "the key is held by somebody else")
	return claim
}

// mustComplete claims a free key and completes its record.
func mustComplete(t testing.TB, store idempotency.Store, key idempotency.Key, resp idempotency.Response) {
	t.Helper()
	require.NoError(t, mustClaim(t, store, key, attemptFor(time.Hour)).Complete(t.Context(), resp, time.Hour))
}

// mustRead returns the record that holds the key.
func mustRead(t testing.TB, store idempotency.Store, key idempotency.Key) idempotency.Record {
	t.Helper()
	record, claim, err := store.Begin(t.Context(), key, attemptFor(time.Hour))
	require.NoError(t, err)
	require.Nil(t, claim, "nobody holds the key")
	return record
}

// fillStore completes records with resp for ttl until the store is full, and returns their number.
func fillStore(t testing.TB, store idempotency.Store, resp idempotency.Response, ttl time.Duration) (n int) {
	t.Helper()
	for ; ; n++ {
		_, claim, err := store.Begin(t.Context(), numberedKey(n), attemptFor(ttl))
		if errors.Is(err, idempotency.ErrStoreFull) {
			return n
		}
		require.NoError(t, err)
		require.NoError(t, claim.Complete(t.Context(), resp.Clone(), ttl)) // which the store may keep
	}
}

func TestFullMemoryStoreKeepsEveryRecordUntilItsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: 256 << 10})
		running := numberedKey(-1)
		claim := mustClaim(t, store, running, attemptFor(time.Hour))
		n := fillStore(t, store, bodyOf(200), time.Hour)
		require.Greater(t, n, 100)

		time.Sleep(time.Hour - time.Nanosecond)
		_, _, err := store.Begin(t.Context(), numberedKey(-2), attemptFor(time.Hour))
		require.ErrorIs(t, err, idempotency.ErrStoreFull, "a new claim pushed out a record")
		for i := range n {
			require.NotNil(t, mustRead(t, store, numberedKey(i)).Response, "record %d was forgotten", i)
		}
		record, _, err := store.Begin(t.Context(), running, idempotency.ClaimRequest{Lease: time.Minute, TTL: time.Hour})
		require.NoError(t, err)
		require.Equal(t, 1, record.Attempt, "the claim was dropped")

		require.NoError(t, claim.Extend(t.Context(), time.Minute), "a full store must not end a claim")
		require.NoError(t, claim.Complete(t.Context(), bodyOf(1<<20), time.Hour))
		require.Equal(t, &idempotency.Response{Status: http.StatusCreated, Omitted: true},
			mustRead(t, store, running).Response, "there was no room for this body")
	})
}

func TestFullMemoryStoreTakesNewRecordsAsOldOnesExpire(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: 1 << 20})
		n := fillStore(t, store, bodyOf(200), time.Hour)
		for range 3 {
			time.Sleep(time.Hour)
			require.Equal(t, n, fillStore(t, store, bodyOf(200), time.Hour), "expired records take up room")
		}
	})
}

// Every claim removes expired records, whatever TTL they had, so that a store in use holds few of them.
func TestMemoryStoreLetsGoOfExpiredRecords(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 10_000
		store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
		var kept []weak.Pointer[idempotency.Response]
		for i := range n {
			ttl := time.Duration(i%4+1) * time.Minute
			require.NoError(t, mustClaim(t, store, numberedKey(i), attemptFor(ttl)).Complete(t.Context(), bodyOf(8), ttl))
			kept = append(kept, weak.Make(mustRead(t, store, numberedKey(i)).Response))
		}
		alive := func() (n int) {
			runtime.GC()
			for _, p := range kept {
				if p.Value() != nil {
					n++
				}
			}
			return n
		}
		time.Sleep(2 * time.Minute) // the time of every second record is over
		require.Equal(t, n, alive(), "nobody has claimed a key since")
		for i := range n {
			mustClaim(t, store, numberedKey(n+i), attemptFor(time.Hour))
		}
		require.InDelta(t, n/2, alive(), n/100)
		for i := range n {
			if i%4 >= 2 {
				require.NotNil(t, mustRead(t, store, numberedKey(i)).Response, "forgotten before its time")
			}
		}
	})
}

// The bytes of what the store keeps, with the least that a record can take beyond them, never exceed the limit, also
// when many claim and complete at once.
func TestMemoryStoreStaysWithinItsLimit(t *testing.T) {
	t.Parallel()
	const limit, keys, workers = 1 << 20, 4000, 8
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: limit})
	early := mustClaim(t, store, numberedKey(keys), attemptFor(time.Hour))
	var claimed, refused atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(w)))
			for i := w; i < keys; i += workers {
				_, claim, err := store.Begin(t.Context(), numberedKey(i), attemptFor(time.Hour))
				if errors.Is(err, idempotency.ErrStoreFull) {
					refused.Add(1)
					continue
				}
				claimed.Add(1)
				if err := claim.Complete(t.Context(), bodyOf(random.IntN(4<<10)), time.Hour); err != nil {
					t.Errorf("Complete: %v", err)
				}
			}
		})
	}
	wg.Wait()
	require.Positive(t, refused.Load(), "the limit was not reached")
	require.NoError(t, early.Complete(t.Context(), bodyOf(limit), time.Hour))
	claimed.Add(1)

	var size, found, omitted int64
	for i := range keys + 1 {
		record, _, err := store.Begin(t.Context(), numberedKey(i), attemptFor(time.Hour))
		if err == nil && record.Response != nil {
			found++
			size += 300 + int64(len(record.Response.Body))
			if record.Response.Omitted {
				omitted++
			}
		}
	}
	require.Equal(t, claimed.Load(), found, "a claimed operation has no record")
	require.Positive(t, omitted, "there is no room for the answer of the early claim")
	require.LessOrEqual(t, size, int64(limit))
	require.Greater(t, size, int64(limit*8/10), "there was room for more")
}

// The limit is one on real memory: what the heap holds for a full store is near to it.
func TestMemoryStoreLimitIsNearTheRealSize(t *testing.T) { // not parallel: it measures the heap
	const header = "Cache-Control: no-store\nContent-Type: application/json\nLocation: /payments/1\nX-Request-Id: 7f3c1a52\n"
	for name, test := range map[string]struct {
		limit int64
		resp  idempotency.Response
	}{
		"no body":      {16 << 20, idempotency.Response{Status: http.StatusNoContent}},
		"small body":   {16 << 20, idempotency.Response{Status: http.StatusCreated, Header: header, Body: make([]byte, 200)}},
		"large bodies": {16 << 20, idempotency.Response{Status: http.StatusOK, Header: header, Body: make([]byte, 20_000)}},
	} {
		t.Run(name, func(t *testing.T) {
			before := heapInUse()
			store := idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: test.limit})
			n := fillStore(t, store, test.resp, time.Hour)
			ratio := float64(heapInUse()-before) / float64(test.limit)
			t.Logf("%d records of %d bytes each, %.2f times the estimate", n, test.limit/int64(n), ratio)
			require.InDelta(t, 1, ratio, 0.3)
			runtime.KeepAlive(store)
		})
	}
}

func heapInUse() int64 {
	runtime.GC()
	runtime.GC() // what the first one moved out of the pools
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

func TestFullMemoryStoreThroughTheMiddleware(t *testing.T) {
	t.Parallel()
	svc := setup{
		store: idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: 4 << 10}),
	}.guard(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat("x", 8<<10))
	})
	first := svc.call("first", "")
	require.Equal(t, http.StatusOK, first.status)
	require.Len(t, first.body, 8<<10, "the first client gets all of it")
	requireProblem(t, svc.call("first", ""), http.StatusConflict, "not-replayable")
	require.EqualValues(t, 1, svc.runs.Load(), "executed again for want of a kept answer")

	accepted := int64(1)
	refusal := svc.call("next", "")
	for ; refusal.status == http.StatusOK && accepted < 100; accepted++ {
		refusal = svc.call(fmt.Sprint("next", accepted), "")
	}
	requireProblem(t, refusal, http.StatusServiceUnavailable, "store-unavailable")
	require.Equal(t, accepted, svc.runs.Load(), "executed without a claim")
	require.ErrorIs(t, svc.journal.last(t).Err, idempotency.ErrStoreFull)
}

// A record that its claim makes again after it has expired, or tries to, is forgotten in its time like any other.
func TestMemoryStoreForgetsARestoredRecord(t *testing.T) {
	t.Parallel()
	uses := map[string]func(context.Context, idempotency.Claim) error{
		"Extend":  func(ctx context.Context, c idempotency.Claim) error { return c.Extend(ctx, time.Minute) },
		"Release": func(ctx context.Context, c idempotency.Claim) error { return c.Release(ctx) },
		"Complete": func(ctx context.Context, c idempotency.Claim) error {
			return c.Complete(ctx, bodyOf(1), time.Minute)
		},
	}
	for first, settle := range uses {
		for second, use := range uses {
			t.Run(first+", "+second, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
					claim := mustClaim(t, store, numberedKey(1), attemptFor(time.Minute))
					require.NoError(t, settle(t.Context(), claim))
					time.Sleep(time.Minute)
					if err := use(t.Context(), claim); !errors.Is(err, idempotency.ErrRestored) {
						require.ErrorIs(t, err, idempotency.ErrClaimLost)
					}
					time.Sleep(time.Hour)
					again := mustClaim(t, store, numberedKey(1), attemptFor(time.Hour))
					require.NoError(t, again.Complete(t.Context(), bodyOf(1), time.Hour))
				})
			})
		}
	}
}

// A handful of keys, many callers: each key is executed once, and everybody else gets what came of it.
func TestMemoryStoreUnderContention(t *testing.T) {
	t.Parallel()
	const keys, callers = 200, 16
	runner, err := idempotency.NewRunner(idempotency.NewMemoryStore(idempotency.MemoryOptions{}),
		idempotency.RunnerOptions{Wait: time.Minute})
	require.NoError(t, err)
	var executions [keys]atomic.Int32
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for i := range keys {
				resp, _, err := runner.Do(t.Context(), numberedKey(i), nil, func(context.Context) (idempotency.Response, error) {
					n := executions[i].Add(1)
					return idempotency.Response{Status: 200, Body: fmt.Append(nil, i, " ", n)}, nil
				})
				if err != nil || string(resp.Body) != fmt.Sprint(i, " ", 1) {
					t.Errorf("key %d: got %q, %v", i, resp.Body, err)
				}
			}
		})
	}
	wg.Wait()
	for i := range executions {
		require.EqualValues(t, 1, executions[i].Load(), "key %d", i)
	}
}

// However small the records are that have expired, a large answer has their room. An answer that was left out takes none.
func TestLargeAnswerTakesTheRoomOfExpiredRecords(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: 8 << 20})
		waiting := mustClaim(t, store, numberedKey(-1), attemptFor(time.Hour))
		n := fillStore(t, store, bodyOf(0), time.Hour)
		require.Greater(t, n, 10_000)
		require.NoError(t, waiting.Complete(t.Context(), bodyOf(1<<20), time.Hour))
		require.True(t, mustRead(t, store, numberedKey(-1)).Response.Omitted)

		time.Sleep(2 * time.Hour)
		claim := mustClaim(t, store, numberedKey(-2), attemptFor(time.Hour))
		require.NoError(t, claim.Complete(t.Context(), bodyOf(4<<20), time.Hour))
		require.False(t, mustRead(t, store, numberedKey(-2)).Response.Omitted)

		time.Sleep(2 * time.Hour)
		mustClaim(t, store, numberedKey(-1), attemptFor(time.Hour))
		require.Equal(t, n, fillStore(t, store, bodyOf(0), time.Hour), "room was lost")
	})
}
