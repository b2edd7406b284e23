package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
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
	"github.com/idempotency-go/idempotency/proof/testservice"
)

func TestMemoryStoreConforms(t *testing.T) {
	t.Parallel()
	idempotencytest.Run(t, func(*testing.T) idempotency.Store {
		return idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	})
}

func TestMemoryStoreKeepsSteps(t *testing.T) {
	t.Parallel()
	idempotencytest.RunSteps(t, func(*testing.T) idempotency.Store {
		return idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	})
}

func TestMemoryStoreIsResolved(t *testing.T) {
	t.Parallel()
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	idempotencytest.RunResolver(t, func(*testing.T) idempotency.Store { return store })
	require.Equal(t, store.MeasuredUsage(), store.CountedUsage())
}

// oneUserStore returns a store without a limit for users, so that one user can fill the store.
func oneUserStore(limit int64) *idempotency.MemoryStore {
	return idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: limit, MaxUserBytes: limit})
}

// fillStore stores records with resp for ttl until the store is full, and returns the number of records.
func fillStore(t testing.TB, store idempotency.Store, resp idempotency.Response, ttl time.Duration) (n int) {
	t.Helper()
	for ; ; n++ {
		_, claim, err := store.Begin(t.Context(), testservice.NumberedKey(n), testservice.AttemptFor(ttl))
		if errors.Is(err, idempotency.ErrStoreFull) {
			return n
		}
		require.NoError(t, err)
		require.NoError(t, claim.Complete(t.Context(), resp.Clone(), ttl)) // a clone, because the store may keep the body
	}
}

func TestFullMemoryStoreKeepsEveryRecordUntilItsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := oneUserStore(256 << 10)
		running := testservice.NumberedKey(-1)
		claim := testservice.MustClaim(t, store, running, testservice.AttemptFor(time.Hour))
		n := fillStore(t, store, testservice.BodyOf(200), time.Hour)
		require.Greater(t, n, 100)

		time.Sleep(time.Hour - time.Nanosecond)
		_, _, err := store.Begin(t.Context(), testservice.NumberedKey(-2), testservice.AttemptFor(time.Hour))
		require.ErrorIs(t, err, idempotency.ErrStoreFull, "a new claim pushed out a record")
		for i := range n {
			require.NotNil(t, testservice.MustRead(t, store, testservice.NumberedKey(i)).Response, "record %d was forgotten", i)
		}
		record, _, err := store.Begin(t.Context(), running, idempotency.ClaimRequest{Lease: time.Minute, TTL: time.Hour})
		require.NoError(t, err)
		require.Equal(t, 1, record.Attempt, "the claim was dropped")

		require.NoError(t, claim.Extend(t.Context(), time.Minute), "a full store must not end a claim")
		require.NoError(t, claim.Complete(t.Context(), testservice.BodyOf(1<<20), time.Hour))
		require.Equal(t, &idempotency.Response{Status: http.StatusCreated, Omitted: true},
			testservice.MustRead(t, store, running).Response, "there was no room for this body")
	})
}

func TestFullMemoryStoreTakesNewRecordsAsOldOnesExpire(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := oneUserStore(1 << 20)
		n := fillStore(t, store, testservice.BodyOf(200), time.Hour)
		for range 3 {
			time.Sleep(time.Hour)
			require.Equal(t, n, fillStore(t, store, testservice.BodyOf(200), time.Hour), "expired records take up room")
		}
	})
}

// Every claim removes expired records, whatever their TTL, so that a store in use holds few expired records.
func TestMemoryStoreLetsGoOfExpiredRecords(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 10_000
		ttlOf := func(i int) time.Duration { return time.Duration(i*7919%240+1) * time.Second }
		store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
		var kept []weak.Pointer[idempotency.Response]
		for i := range n {
			ttl := ttlOf(i)
			claim := testservice.MustClaim(t, store, testservice.NumberedKey(i), testservice.AttemptFor(ttl))
			require.NoError(t, claim.Complete(t.Context(), testservice.BodyOf(8), ttl))
			kept = append(kept, weak.Make(testservice.MustRead(t, store, testservice.NumberedKey(i)).Response))
		}
		countLive := func() (n int) {
			runtime.GC()
			for _, p := range kept {
				if p.Value() != nil {
					n++
				}
			}
			return n
		}
		time.Sleep(2 * time.Minute) // half of the records expire
		require.Equal(t, n, countLive(), "nobody has claimed a key since")
		for i := range n {
			testservice.MustClaim(t, store, testservice.NumberedKey(n+i), testservice.AttemptFor(time.Hour))
		}
		require.InDelta(t, n/2, countLive(), n/100)
		for i := range n {
			if ttlOf(i) > 2*time.Minute {
				require.NotNil(t, testservice.MustRead(t, store, testservice.NumberedKey(i)).Response, "forgotten before its time")
			}
		}
	})
}

// The stored bodies, plus the least overhead of each record, never exceed the limit, even with concurrent claims and
// completions.
func TestMemoryStoreStaysWithinItsLimit(t *testing.T) {
	t.Parallel()
	const limit, keys, workers = 1 << 20, 4000, 8
	store := oneUserStore(limit)
	early := testservice.MustClaim(t, store, testservice.NumberedKey(keys), testservice.AttemptFor(time.Hour))
	var claimed, refused atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(w)))
			for i := w; i < keys; i += workers {
				_, claim, err := store.Begin(t.Context(), testservice.NumberedKey(i), testservice.AttemptFor(time.Hour))
				if errors.Is(err, idempotency.ErrStoreFull) {
					refused.Add(1)
					continue
				}
				claimed.Add(1)
				if err := claim.Complete(t.Context(), testservice.BodyOf(random.IntN(4<<10)), time.Hour); err != nil {
					t.Errorf("Complete: %v", err)
				}
			}
		})
	}
	wg.Wait()
	require.Positive(t, refused.Load(), "the limit was not reached")
	require.NoError(t, early.Complete(t.Context(), testservice.BodyOf(limit), time.Hour))
	claimed.Add(1)

	var size, found, omitted int64
	for i := range keys + 1 {
		record, _, err := store.Begin(t.Context(), testservice.NumberedKey(i), testservice.AttemptFor(time.Hour))
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

// The limit bounds real memory: a full store takes about as much of the heap as its limit says.
func TestMemoryStoreLimitIsNearTheRealSize(t *testing.T) { // not parallel: it measures the heap
	const header = "Cache-Control: no-store\nContent-Type: application/json\nLocation: /payments/1\nX-Request-Id: 7f3c1a52\n"
	for name, test := range map[string]struct {
		limit    int64
		response idempotency.Response
	}{
		"no body":      {16 << 20, idempotency.Response{Status: http.StatusNoContent}},
		"small body":   {16 << 20, idempotency.Response{Status: http.StatusCreated, Header: header, Body: make([]byte, 200)}},
		"large bodies": {16 << 20, idempotency.Response{Status: http.StatusOK, Header: header, Body: make([]byte, 20_000)}},
	} {
		t.Run(name, func(t *testing.T) {
			before := testservice.HeapInUse()
			store := oneUserStore(test.limit)
			n := fillStore(t, store, test.response, time.Hour)
			ratio := float64(testservice.HeapInUse()-before) / float64(test.limit)
			t.Logf("%d records of %d bytes each, %.2f times the estimate", n, test.limit/int64(n), ratio)
			require.InDelta(t, 1, ratio, 0.3)
			runtime.KeepAlive(store)
		})
	}
}

func TestFullMemoryStoreThroughTheMiddleware(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{Store: oneUserStore(4 << 10)}.Guard(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat("x", 8<<10))
	})
	first := svc.Call("first", "")
	require.Equal(t, http.StatusOK, first.Status)
	require.Len(t, first.Body, 8<<10, "the first client gets all of it")
	testservice.RequireProblem(t, svc.Call("first", ""), http.StatusConflict, "not-replayable")
	require.EqualValues(t, 1, svc.Runs.Load(), "executed again for want of a kept answer")

	accepted := int64(1)
	refusal := svc.Call("next", "")
	for ; refusal.Status == http.StatusOK && accepted < 100; accepted++ {
		refusal = svc.Call(fmt.Sprint("next", accepted), "")
	}
	testservice.RequireProblem(t, refusal, http.StatusServiceUnavailable, "store-unavailable")
	require.Equal(t, accepted, svc.Runs.Load(), "executed without a claim")
	require.ErrorIs(t, svc.Journal.Last(t).Err, idempotency.ErrStoreFull)
}

// A claim whose record has expired may restore the record, or fail. In both cases the store forgets the record at its
// expiry, like any other record.
func TestMemoryStoreForgetsARestoredRecord(t *testing.T) {
	t.Parallel()
	claimCalls := map[string]func(context.Context, idempotency.Claim) error{
		"Extend": func(ctx context.Context, c idempotency.Claim) error { return c.Extend(ctx, time.Minute) },
		"Release": func(ctx context.Context, c idempotency.Claim) error {
			return c.Release(ctx, idempotency.Release{TTL: time.Minute})
		},
		"Complete": func(ctx context.Context, c idempotency.Claim) error {
			return c.Complete(ctx, testservice.BodyOf(1), time.Minute)
		},
	}
	for first, callFirst := range claimCalls {
		for second, callAgain := range claimCalls {
			t.Run(first+", "+second, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
					claim := testservice.MustClaim(t, store, testservice.NumberedKey(1), testservice.AttemptFor(time.Minute))
					require.NoError(t, callFirst(t.Context(), claim))
					time.Sleep(time.Minute)
					err := callAgain(t.Context(), claim)
					switch {
					case first == "Complete" && second == "Complete":
						require.NoError(t, err, "a repetition")
					case first == "Extend" && second != "Release":
						require.ErrorIs(t, err, idempotency.ErrRestored)
					default:
						require.ErrorIs(t, err, idempotency.ErrClaimLost)
					}
					time.Sleep(time.Hour)
					again := testservice.MustClaim(t, store, testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
					require.NoError(t, again.Complete(t.Context(), testservice.BodyOf(1), time.Hour))
				})
			})
		}
	}
}

// Many callers share each key. The operation runs once, and the other callers get its answer.
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
				resp, _, err := runner.Do(t.Context(), testservice.NumberedKey(i), nil, func(context.Context) (idempotency.Response, error) {
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

// A large answer gets the room of expired records, even if each of these records is small. An answer that the store
// omits takes no room.
func TestLargeAnswerTakesTheRoomOfExpiredRecords(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := oneUserStore(8 << 20)
		waiting := testservice.MustClaim(t, store, testservice.NumberedKey(-1), testservice.AttemptFor(time.Hour))
		n := fillStore(t, store, testservice.BodyOf(0), time.Hour)
		require.Greater(t, n, 10_000)
		require.NoError(t, waiting.Complete(t.Context(), testservice.BodyOf(1<<20), time.Hour))
		require.True(t, testservice.MustRead(t, store, testservice.NumberedKey(-1)).Response.Omitted)

		time.Sleep(2 * time.Hour)
		claim := testservice.MustClaim(t, store, testservice.NumberedKey(-2), testservice.AttemptFor(time.Hour))
		require.NoError(t, claim.Complete(t.Context(), testservice.BodyOf(4<<20), time.Hour))
		require.False(t, testservice.MustRead(t, store, testservice.NumberedKey(-2)).Response.Omitted)

		time.Sleep(2 * time.Hour)
		testservice.MustClaim(t, store, testservice.NumberedKey(-1), testservice.AttemptFor(time.Hour))
		require.Equal(t, n, fillStore(t, store, testservice.BodyOf(0), time.Hour), "room was lost")
	})
}

// userKey returns the key of user with number n.
func userKey(user string, n int) idempotency.Key {
	return idempotency.Key{User: user, Endpoint: "POST /payments", ID: fmt.Sprintf("%036d", n)}
}

// completeUntilOmitted stores records of user with resp until the store omits an answer, and returns the number of stored
// answers.
func completeUntilOmitted(t testing.TB, store idempotency.Store, user string, resp idempotency.Response) (n int) {
	t.Helper()
	for ; ; n++ {
		testservice.MustComplete(t, store, userKey(user, n), resp.Clone())
		if testservice.MustRead(t, store, userKey(user, n)).Response.Omitted {
			return n
		}
	}
}

// claimUntilRefused claims keys of user until the store refuses, and returns the number of claims and the refusal.
func claimUntilRefused(t testing.TB, store idempotency.Store, user string) (n int, refusal error) {
	t.Helper()
	for ; ; n++ {
		_, claim, err := store.Begin(t.Context(), userKey(user, 1_000_000+n), testservice.AttemptFor(time.Hour))
		if err != nil {
			require.Nil(t, claim)
			return n, err
		}
	}
}

// claimSize is approximately the estimated size of a claim with a userKey.
const claimSize = 400

// Two accounts can leave no room for another user, because the default limit of a user is half of the store. With a limit
// of an eighth, this takes eight accounts.
func TestAccountsThatFillAMemoryStore(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	for accounts, opts := range map[int]idempotency.MemoryOptions{
		2: {MaxBytes: limit},
		8: {MaxBytes: limit, MaxUserBytes: limit / 8},
	} {
		store := idempotency.NewMemoryStore(opts)
		for i := range accounts {
			testservice.MustClaim(t, store, userKey("alice", i), testservice.AttemptFor(time.Hour))
			_, refusal := claimUntilRefused(t, store, fmt.Sprint("mallory ", i))
			require.Error(t, refusal)
		}
		_, _, err := store.Begin(t.Context(), userKey("alice", accounts), testservice.AttemptFor(time.Hour))
		require.ErrorIs(t, err, idempotency.ErrStoreFull, "%d accounts", accounts)
	}
}

func TestAnswersInMemoryLeaveRoomForClaims(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name              string
		limit, answerSize int
	}{
		{"large answers", 16 << 20, 1 << 20},
		{"small answers", 2 << 20, 200},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			store := oneUserStore(int64(test.limit))
			n := completeUntilOmitted(t, store, "alice", testservice.BodyOf(test.answerSize))
			require.GreaterOrEqual(t, n*(claimSize+test.answerSize), test.limit*3/4, "there was room for more")

			testservice.MustComplete(t, store, userKey("bob", 1), idempotency.Response{Status: http.StatusNoContent})
			require.False(t, testservice.MustRead(t, store, userKey("bob", 1)).Response.Omitted, "there was nothing to omit")
			claims, refusal := claimUntilRefused(t, store, "bob")
			require.ErrorIs(t, refusal, idempotency.ErrStoreFull)
			require.Greater(t, claims, test.limit/8/claimSize*9/10)
		})
	}
}

func TestUserHasAShareOfTheMemoryStore(t *testing.T) {
	t.Parallel()
	const limit = 4 << 20
	for _, test := range []struct {
		name        string
		opts        idempotency.MemoryOptions
		shareBytes  int
		wantRefusal error
	}{
		{"default", idempotency.MemoryOptions{MaxBytes: limit}, limit / 2, idempotency.ErrUserQuota},
		{"option is set", idempotency.MemoryOptions{MaxBytes: limit, MaxUserBytes: limit / 8}, limit / 8, idempotency.ErrUserQuota},
		{"whole store", idempotency.MemoryOptions{MaxBytes: limit, MaxUserBytes: limit}, limit, idempotency.ErrStoreFull},
		{"more than the store", idempotency.MemoryOptions{MaxBytes: limit, MaxUserBytes: math.MaxInt64}, limit, idempotency.ErrStoreFull},
	} {
		for name, answerSize := range map[string]int{"claims only": 0, "small answers": 200, "large answers": 64 << 10} {
			t.Run(test.name+", "+name, func(t *testing.T) {
				t.Parallel()
				store := idempotency.NewMemoryStore(test.opts)
				running := testservice.MustClaim(t, store, userKey("alice", -1), testservice.AttemptFor(time.Hour))
				var answers int
				if answerSize > 0 {
					answers = completeUntilOmitted(t, store, "alice", testservice.BodyOf(answerSize))
				}
				claims, refusal := claimUntilRefused(t, store, "alice")
				require.ErrorIs(t, refusal, test.wantRefusal)
				require.InEpsilon(t, test.shareBytes, answers*(claimSize+answerSize)+claims*claimSize, .1)
				require.Greater(t, claims, test.shareBytes/8/claimSize*9/10, "answers took the reserve of the user")

				require.NoError(t, running.Extend(t.Context(), time.Minute), "the share must not end a claim")
				require.NoError(t, running.Complete(t.Context(), testservice.BodyOf(1), time.Hour))
				require.True(t, testservice.MustRead(t, store, userKey("alice", -1)).Response.Omitted)

				if test.wantRefusal == idempotency.ErrUserQuota {
					require.NotErrorIs(t, refusal, idempotency.ErrStoreFull)
					testservice.MustComplete(t, store, userKey("bob", 1), testservice.BodyOf(1<<10))
					require.False(t, testservice.MustRead(t, store, userKey("bob", 1)).Response.Omitted)
				}
			})
		}
	}
}

// The expired records of a user make room within the share of the user, in any shard, and even if records of other users
// expire earlier.
func TestExpiredRecordsLeaveTheShareOfTheirUser(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: 4 << 20})
		for n := range 1000 {
			testservice.MustClaim(t, store, userKey("bob", n), testservice.AttemptFor(time.Hour))
		}
		n, _ := claimUntilRefused(t, store, "alice")
		require.Greater(t, n, 1000)
		for range 3 {
			time.Sleep(time.Hour)
			again, refusal := claimUntilRefused(t, store, "alice")
			require.ErrorIs(t, refusal, idempotency.ErrUserQuota)
			require.Equal(t, n, again, "expired records take up the share")
		}
		time.Sleep(time.Hour)
		testservice.MustComplete(t, store, userKey("alice", 1), testservice.BodyOf(1<<20))
		require.False(t, testservice.MustRead(t, store, userKey("alice", 1)).Response.Omitted, "expired records take up the share")
	})
}

func TestUserQuotaThroughTheMiddleware(t *testing.T) {
	t.Parallel()
	// FailOpen makes no difference, because the store works: a user who fills the store must not be able to bypass it.
	for _, failOpen := range []bool{false, true} {
		store := idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: 8 << 10})
		svc := testservice.Setup{Store: store, Opts: idempotency.Options{FailOpen: failOpen}}.Guard(t, testservice.Echo)
		accepted := 0
		refusal := svc.Call("0", "")
		for ; refusal.Status == http.StatusCreated && accepted < 100; refusal = svc.Call(fmt.Sprint(accepted), "") {
			accepted++
		}
		testservice.RequireProblem(t, refusal, http.StatusTooManyRequests, "quota-exceeded")
		require.EqualValues(t, accepted, svc.Runs.Load(), "executed without a claim")
		require.ErrorIs(t, svc.Journal.Last(t).Err, idempotency.ErrUserQuota)
	}
}

// In a full store an operator can resolve an operation if the record does not grow, or takes no more room than a claim.
func TestFullMemoryStoreIsResolved(t *testing.T) {
	t.Parallel()
	answer, tombstone := testservice.BodyOf(300), idempotency.Response{Status: 201, Omitted: true}
	for name, c := range map[string]struct {
		checkpointBytes int   // 0 for an operation without a checkpoint
		usedBytes       int64 // by all records
		resolution      idempotency.Resolution
		wantErr         error
	}{
		"tombstone that is smaller than the steps": {500, 3800, idempotency.Resolution{Response: &tombstone}, nil},
		"answer that is smaller than the steps":    {500, 3800, idempotency.Resolution{Response: &answer}, nil},
		"answer in the reserve for claims":         {0, 3800, idempotency.Resolution{Response: &answer}, idempotency.ErrStoreFull},
		"not happened, in the reserve for claims":  {0, 3800, idempotency.Resolution{}, nil},
		"tombstone in the reserve for claims":      {0, 3800, idempotency.Resolution{Response: &tombstone}, nil},
		"not happened, without any room":           {0, 3990, idempotency.Resolution{}, idempotency.ErrStoreFull},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := oneUserStore(4000)
				claim := testservice.MustClaim(t, store, testservice.NumberedKey(0), testservice.AttemptFor(time.Hour))
				if c.checkpointBytes > 0 {
					_, err := claim.(idempotency.Checkpointer).Checkpoint(t.Context(), "charge", make([]byte, c.checkpointBytes))
					require.NoError(t, err)
				}
				rest := c.usedBytes - store.CountedUsage().TotalBytes - 320
				testservice.MustClaim(t, store, idempotency.Key{ID: strings.Repeat("x", int(rest))}, testservice.AttemptFor(time.Hour))
				require.Equal(t, c.usedBytes, store.CountedUsage().TotalBytes)
				time.Sleep(time.Minute)
				c.resolution.TTL = time.Hour
				err := store.Resolve(t.Context(), testservice.MustInspect(t, store, testservice.NumberedKey(0)), c.resolution)
				require.Equal(t, c.wantErr, err)
				require.Equal(t, store.MeasuredUsage(), store.CountedUsage())
			})
		})
	}
}

func TestMemoryStoreReportsFaultsOfItsOptions(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		opts       idempotency.MemoryOptions
		wantFaults []string
	}{
		{idempotency.MemoryOptions{MaxBytes: -1}, []string{"idempotency: MaxBytes -1 is negative"}},
		{idempotency.MemoryOptions{MaxUserBytes: -2}, []string{"idempotency: MaxUserBytes -2 is negative"}},
		{idempotency.MemoryOptions{MaxBytes: -1, MaxUserBytes: -2}, []string{"MaxBytes -1", "MaxUserBytes -2"}},
	} {
		store := idempotency.NewMemoryStore(test.opts)
		record, claim, err := store.Begin(t.Context(), testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
		for _, fault := range test.wantFaults {
			require.ErrorContains(t, err, fault)
		}
		require.NotErrorIs(t, err, idempotency.ErrStoreFull)
		require.Nil(t, claim)
		require.Zero(t, record)
	}
}

// The store counts the bytes of each user exactly, during any sequence of calls. After the records have expired, the
// counts are zero.
func TestMemoryStoreCountsExactly(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { checkByteCounts(t, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

// checkByteCounts makes 3000 random calls, and compares the counted bytes with the records after each call.
func checkByteCounts(t *testing.T, random *rand.Rand) {
	const limit, share, users = 32 << 10, 10 << 10, 5
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: limit, MaxUserBytes: share})
	var claims []idempotency.Claim
	seen := map[string]int{}
	for range 3000 {
		var err error
		span := time.Duration(random.IntN(3)+1) * time.Second
		step := random.IntN(12)
		key := userKey(fmt.Sprint("user ", random.IntN(users)), random.IntN(50))
		if step < 4 || len(claims) == 0 {
			request := idempotency.ClaimRequest{Lease: span, TTL: 2 * span, TakeOver: random.IntN(2) == 0}
			var record idempotency.Record
			var claim idempotency.Claim
			record, claim, err = store.Begin(t.Context(), key, request)
			if claim != nil {
				claims = append(claims, claim)
				seen["taken over or released before"] += min(1, record.Attempt-1)
			}
			if record.Response != nil && record.Response.Omitted {
				seen["omitted"]++
			}
		} else {
			claim := claims[random.IntN(len(claims))] // possibly settled, or with an expired record
			switch step {
			case 4:
				time.Sleep(span / 8)
			case 5, 6:
				err = claim.Extend(t.Context(), span)
			case 7:
				err = claim.Release(t.Context(), idempotency.Release{TTL: span})
			case 8:
				name := []string{"charge", "charge?", "mail?"}[random.IntN(3)]
				_, err = claim.(idempotency.Checkpointer).Checkpoint(t.Context(), name, make([]byte, random.IntN(1<<10)))
			case 9:
				entry, _ := store.Inspect(t.Context(), key)
				entry.Key = key
				resolution := idempotency.Resolution{Reason: strings.Repeat("x", random.IntN(1000)), TTL: span}
				if random.IntN(2) == 0 {
					resp := testservice.BodyOf(random.IntN(1 << 10))
					resolution.Response = &resp
				}
				if err = store.Resolve(t.Context(), entry, resolution); err == nil {
					seen["resolved"]++
				}
			default:
				err = claim.Complete(t.Context(), testservice.BodyOf(random.IntN(4<<10)), span)
			}
		}
		if err != nil {
			seen[err.Error()]++
		}
		counted := store.CountedUsage()
		require.Equal(t, store.MeasuredUsage(), counted)
		require.LessOrEqual(t, counted.TotalBytes, int64(limit))
		for user, n := range counted.BytesByUser {
			require.LessOrEqual(t, n, int64(share), "%s", user)
		}
	}
	for _, err := range []error{
		idempotency.ErrUserQuota, idempotency.ErrStoreFull, idempotency.ErrRestored, idempotency.ErrClaimLost,
	} {
		require.Positive(t, seen[err.Error()], "%v", err)
	}
	require.Positive(t, seen["omitted"])
	require.Positive(t, seen["taken over or released before"])
	require.Positive(t, seen["resolved"])

	time.Sleep(time.Minute)
	requireNothingCounted(t, store, limit)
}

// requireNothingCounted requires that all counts are zero after the records have expired. A claim that is larger than
// limit makes the store remove all expired records.
func requireNothingCounted(t *testing.T, store *idempotency.MemoryStore, limit int) {
	t.Helper()
	_, _, err := store.Begin(t.Context(), idempotency.Key{ID: strings.Repeat("x", limit)}, testservice.AttemptFor(time.Hour))
	require.Error(t, err)
	require.Equal(t, idempotency.MemoryUsage{BytesByUser: map[string]int64{}}, store.CountedUsage())
	require.Equal(t, store.MeasuredUsage(), store.CountedUsage())
}

func TestMemoryStoreCountsExactlyUnderContention(t *testing.T) {
	t.Parallel()
	const limit, workers = 64 << 10, 8
	synctest.Test(t, func(t *testing.T) {
		store := idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: limit})
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() {
				random := rand.New(rand.NewPCG(2, uint64(w)))
				for n := range 2000 {
					key := userKey(fmt.Sprint("user ", random.IntN(3)), random.IntN(100))
					_, claim, _ := store.Begin(t.Context(), key, testservice.AttemptFor(time.Second))
					if claim == nil {
						continue
					}
					wg.Go(func() { _ = claim.Extend(t.Context(), time.Second) })
					if n%4 == 0 {
						time.Sleep(time.Second)
					}
					if n%3 == 0 {
						_ = claim.Release(t.Context(), idempotency.Release{TTL: time.Second})
					}
					_ = claim.Complete(t.Context(), testservice.BodyOf(random.IntN(4<<10)), time.Second)
				}
			})
		}
		wg.Wait()
		require.Equal(t, store.MeasuredUsage(), store.CountedUsage())
		require.LessOrEqual(t, store.CountedUsage().TotalBytes, int64(limit))
		time.Sleep(time.Minute)
		requireNothingCounted(t, store, limit)
	})
}

// A Complete may be repeated after the completed record has expired. The repetition succeeds and changes nothing, because
// the first Complete has taken effect.
func TestMemoryStoreRepeatedCompleteAfterExpiry(t *testing.T) {
	t.Parallel()
	t.Run("key is free", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
			claim := testservice.MustClaim(t, store, testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
			require.NoError(t, claim.Complete(t.Context(), testservice.BodyOf(1), time.Minute))
			time.Sleep(time.Minute)
			require.NoError(t, claim.Complete(t.Context(), testservice.BodyOf(1), time.Minute))
			testservice.MustClaim(t, store, testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
		})
	})
	t.Run("key is claimed again", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
			claim := testservice.MustClaim(t, store, testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
			require.NoError(t, claim.Complete(t.Context(), testservice.BodyOf(1), time.Minute))
			time.Sleep(time.Minute)
			next := testservice.MustClaim(t, store, testservice.NumberedKey(1), testservice.AttemptFor(time.Hour))
			require.NoError(t, claim.Complete(t.Context(), testservice.BodyOf(1), time.Minute))
			require.Nil(t, testservice.MustRead(t, store, testservice.NumberedKey(1)).Response)
			require.NoError(t, next.Complete(t.Context(), testservice.BodyOf(2), time.Minute))
			require.Len(t, testservice.MustRead(t, store, testservice.NumberedKey(1)).Response.Body, 2)
		})
	})
}

// An Extend after the end of its claim changes nothing, before and after the expiry of the record.
func TestMemoryStoreExtendAfterTheEndOfItsClaim(t *testing.T) {
	t.Parallel()
	for name, settle := range map[string]func(context.Context, idempotency.Claim) error{
		"Release": func(ctx context.Context, c idempotency.Claim) error {
			return c.Release(ctx, idempotency.Release{TTL: time.Minute})
		},
		"Complete": func(ctx context.Context, c idempotency.Claim) error {
			return c.Complete(ctx, testservice.BodyOf(1), time.Minute)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const limit = 64 << 10
				store := oneUserStore(limit)
				claim := testservice.MustClaim(t, store, testservice.NumberedKey(1), testservice.AttemptFor(time.Minute))
				require.NoError(t, settle(t.Context(), claim))
				before := store.CountedUsage()
				require.ErrorIs(t, claim.Extend(t.Context(), time.Hour), idempotency.ErrClaimLost)
				require.Equal(t, before, store.CountedUsage())

				time.Sleep(time.Minute)
				requireNothingCounted(t, store, limit)
				require.ErrorIs(t, claim.Extend(t.Context(), time.Hour), idempotency.ErrClaimLost)
				require.Zero(t, store.CountedUsage().TotalBytes, "the record is back")
				testservice.MustClaim(t, store, testservice.NumberedKey(1), testservice.AttemptFor(time.Minute))
			})
		})
	}
}

// An Extend may run while its claim is settled. The end of the claim holds in either order.
func TestMemoryStoreExtendAtTheEndOfItsClaim(t *testing.T) {
	t.Parallel()
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	for n := range 2000 {
		claim := testservice.MustClaim(t, store, testservice.NumberedKey(n), testservice.AttemptFor(time.Hour))
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := claim.Extend(t.Context(), time.Hour); err != nil && !errors.Is(err, idempotency.ErrClaimLost) {
				t.Errorf("Extend: %v", err)
			}
		})
		if n%2 == 0 {
			require.NoError(t, claim.Complete(t.Context(), testservice.BodyOf(1), time.Hour))
		} else {
			require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Hour}))
		}
		wg.Wait()
		record, next, err := store.Begin(t.Context(), testservice.NumberedKey(n), testservice.AttemptFor(time.Hour))
		require.NoError(t, err)
		if n%2 == 0 {
			require.NotNil(t, record.Response)
			require.Zero(t, record.LeaseLeft)
		} else {
			require.NotNil(t, next)
			require.Equal(t, 2, record.Attempt)
		}
	}
}

// A record may expire while its owner is suspended. If Complete restores the record and the response does not fit, the
// store omits the response and keeps the record.
func TestRecordRestoredInAFullMemoryStoreIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: 1000})
		claim := testservice.MustClaim(t, store, testservice.NumberedKey(1), testservice.AttemptFor(time.Minute))
		time.Sleep(time.Hour)
		require.ErrorIs(t, claim.Complete(t.Context(), testservice.BodyOf(1000), time.Hour), idempotency.ErrRestored)
		record, successor, err := store.Begin(t.Context(), testservice.NumberedKey(1), testservice.AttemptFor(time.Minute))
		require.NoError(t, err)
		require.Nil(t, successor, "claimed again")
		require.True(t, record.Response.Omitted)
	})
}

// A listing with a Limit begins with the same records as the whole listing.
func TestMemoryListOfMany(t *testing.T) {
	t.Parallel()
	const n = 3000
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	for i := range n {
		testservice.MustComplete(t, store, testservice.NumberedKey(i), testservice.BodyOf(i*7919%n)) // all sizes differ
	}
	for _, order := range []idempotency.ListOrder{idempotency.NewestFirst, idempotency.OldestFirst, idempotency.LargestFirst} {
		all, err := store.List(t.Context(), idempotency.ListRequest{Order: order, Limit: n})
		require.NoError(t, err)
		require.Len(t, all.Entries, n)
		for _, limit := range []int{1, 10, 999, 1000, 1001, 2500} {
			some, err := store.List(t.Context(), idempotency.ListRequest{Order: order, Limit: limit})
			require.NoError(t, err)
			require.Equal(t, listedOperations(all)[:limit], listedOperations(some))
			require.Equal(t, all.Totals, some.Totals)
		}
		if order == idempotency.LargestFirst {
			require.Greater(t, all.Entries[0].Size, all.Entries[n-1].Size+n-2)
		}
	}
}

// A record that Forget removes makes room for the next record.
func TestMemoryForgetMakesRoom(t *testing.T) {
	t.Parallel()
	store := oneUserStore(10_000)
	for range 100 {
		testservice.MustComplete(t, store, testservice.NumberedKey(0), testservice.BodyOf(5000))
		entry := testservice.MustInspect(t, store, testservice.NumberedKey(0))
		require.Len(t, entry.Response.Body, 5000, "there was no room for it")
		require.NoError(t, store.Forget(t.Context(), entry))
	}
}

func TestMemoryListEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := idempotency.NewMemoryStore(idempotency.MemoryOptions{}).List(ctx, idempotency.ListRequest{})
	require.ErrorIs(t, err, context.Canceled)
}

func TestInspectorReportsOptions(t *testing.T) {
	t.Parallel()
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: -1})
	_, err := store.Inspect(t.Context(), testservice.NumberedKey(0))
	require.ErrorContains(t, err, "MaxBytes")
	require.ErrorContains(t, store.Forget(t.Context(), idempotency.Entry{}), "MaxBytes")
	_, err = store.List(t.Context(), idempotency.ListRequest{})
	require.ErrorContains(t, err, "MaxBytes")
	_, client := testservice.NewMiniredis(t)
	for name, store := range map[string]idempotency.Inspector{
		"memory": idempotency.NewMemoryStore(idempotency.MemoryOptions{}),
		"redis":  idempotency.NewRedisStore(client, idempotency.RedisOptions{}),
	} {
		_, err := store.List(t.Context(), idempotency.ListRequest{Limit: -1, Scan: -2})
		require.ErrorContains(t, err, "Limit -1", name)
		require.ErrorContains(t, err, "Scan -2", name)
	}
}
