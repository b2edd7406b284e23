package testservice

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/resolve"
)

// OpenBounded opens a store without records whose option MaxUserRecords is bound. The store runs by the real clock.
type OpenBounded func(t *testing.T, bound int) idempotency.Store

// Suite is a test of the contract of stores, from package idempotencytest, which this package cannot import.
type Suite = func(t *testing.T, newStore func(*testing.T) idempotency.Store)

// TestUserRecords tests the bound on the records of a user, in stores that open opens. Stores that are far from the bound must
// keep the contract in suites.
func (open OpenBounded) TestUserRecords(t *testing.T, suites ...Suite) {
	for _, run := range suites {
		run(t, func(t *testing.T) idempotency.Store { return open(t, 10_000) })
	}
	for name, test := range map[string]func(*testing.T, OpenBounded){
		"records in each state":        testCountedStates,
		"records that expire":          testCountedExpiry,
		"records that are kept longer": testCountedExtension,
		"records that are removed":     testCountedRemoval,
		"requests over HTTP":           testCountedRequests,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open)
		})
	}
}

// keyOfUser returns a key of user. Keys with different IDs have different endpoints.
func keyOfUser(user, id string) idempotency.Key {
	return idempotency.Key{User: user, Endpoint: "POST /" + id, ID: id}
}

// briefTTL is how long brief records are kept: long enough for the calls that must find them.
const briefTTL = 3 * time.Second

// briefAttempt is a claim whose record soon expires.
var briefAttempt = idempotency.ClaimRequest{
	Fingerprint: idempotency.Fingerprint{1}, Lease: briefTTL, TTL: briefTTL, TakeOver: true,
}

// isQuotaUsedUp reports whether store refuses a new key of alice. If the store grants the claim, the key stays claimed.
func isQuotaUsedUp(t *testing.T, store idempotency.Store, id string) bool {
	t.Helper()
	record, claim, err := store.Begin(t.Context(), keyOfUser("alice", id), AttemptFor(time.Hour))
	if errors.Is(err, idempotency.ErrUserQuota) {
		require.Nil(t, claim)
		require.Zero(t, record)
		return true
	}
	require.NoError(t, err)
	require.NotNil(t, claim)
	return false
}

// Records in all states count. A key with a record is never refused, and other users have records of their own.
func testCountedStates(t *testing.T, open OpenBounded) {
	store, key := open(t, 5), func(id string) idempotency.Key { return keyOfUser("alice", id) }
	running := MustClaim(t, store, key("running"), AttemptFor(time.Hour))
	MustComplete(t, store, key("completed"), BodyOf(10))
	MustComplete(t, store, key("tombstone"), idempotency.Response{Status: http.StatusCreated, Omitted: true})
	released := MustClaim(t, store, key("released"), AttemptFor(time.Hour))
	require.NoError(t, released.Release(t.Context(), idempotency.Release{TTL: time.Hour}))
	lapsing := AttemptFor(time.Hour)
	lapsing.Lease = time.Millisecond
	MustClaim(t, store, key("abandoned"), lapsing)
	Until(t, func() bool { return MustInspect(t, store, key("abandoned")).State == idempotency.StateAbandoned })

	require.True(t, isQuotaUsedUp(t, store, "new"))
	require.True(t, isQuotaUsedUp(t, store, "new as well"))
	_, err := store.(idempotency.Inspector).Inspect(t.Context(), key("new"))
	require.ErrorIs(t, err, idempotency.ErrNoRecord)
	require.Positive(t, MustRead(t, store, key("running")).LeaseLeft)
	require.Len(t, MustRead(t, store, key("completed")).Response.Body, 10)
	require.True(t, MustRead(t, store, key("tombstone")).Response.Omitted)
	for _, id := range []string{"released", "abandoned"} {
		record, claim, err := store.Begin(t.Context(), key(id), AttemptFor(time.Hour))
		require.NoError(t, err)
		require.NotNil(t, claim)
		require.Equal(t, 2, record.Attempt)
		require.NoError(t, claim.Complete(t.Context(), BodyOf(1), time.Hour))
	}
	require.NoError(t, running.Extend(t.Context(), time.Minute))
	require.NoError(t, running.Release(t.Context(), idempotency.Release{}))
	MustClaim(t, store, key("running"), AttemptFor(time.Hour)) // the rest of a freed key is a record of the key
	require.True(t, isQuotaUsedUp(t, store, "new"))
	for _, user := range []string{"bob", "alice ", "Alice", ""} {
		MustClaim(t, store, keyOfUser(user, "running"), AttemptFor(time.Hour))
	}
}

// A record counts until it expires, also if a release lets it expire earlier.
func testCountedExpiry(t *testing.T, open OpenBounded) {
	freed := AttemptFor(time.Hour) // a freed key is kept for two leases
	freed.Lease = briefTTL / 2
	for name, record := range map[string]struct {
		request idempotency.ClaimRequest
		settle  func(context.Context, idempotency.Claim) error
	}{
		"claimed": {briefAttempt, func(context.Context, idempotency.Claim) error { return nil }},
		"completed": {briefAttempt, func(ctx context.Context, claim idempotency.Claim) error {
			return claim.Complete(ctx, BodyOf(1), briefTTL)
		}},
		"released": {AttemptFor(time.Hour), func(ctx context.Context, claim idempotency.Claim) error {
			return claim.Release(ctx, idempotency.Release{TTL: briefTTL})
		}},
		"freed": {freed, func(ctx context.Context, claim idempotency.Claim) error {
			return claim.Release(ctx, idempotency.Release{})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := open(t, 2)
			MustClaim(t, store, keyOfUser("alice", "lasting"), AttemptFor(time.Hour))
			require.NoError(t, record.settle(t.Context(), MustClaim(t, store, keyOfUser("alice", "brief"), record.request)))
			require.True(t, isQuotaUsedUp(t, store, "new"))
			Until(t, func() bool { return !isQuotaUsedUp(t, store, "new") })
			require.True(t, isQuotaUsedUp(t, store, "another"))
		})
	}
}

// A record still counts if a renewal, an answer or a further attempt keeps the record for longer than its first claim.
func testCountedExtension(t *testing.T, open OpenBounded) {
	store, key := open(t, 3), func(id string) idempotency.Key { return keyOfUser("alice", id) }
	renewed, completed := MustClaim(t, store, key("renewed"), briefAttempt), MustClaim(t, store, key("completed"), briefAttempt)
	retried := MustClaim(t, store, key("retried"), briefAttempt)
	require.NoError(t, retried.Release(t.Context(), idempotency.Release{TTL: briefTTL}))
	MustClaim(t, store, key("retried"), AttemptFor(time.Hour))
	require.NoError(t, renewed.Extend(t.Context(), time.Hour))
	require.NoError(t, completed.Complete(t.Context(), BodyOf(1), time.Hour))

	last := keyOfUser("bob", "last to expire")
	MustClaim(t, store, last, briefAttempt)
	Until(t, func() bool {
		_, err := store.(idempotency.Inspector).Inspect(t.Context(), last)
		return errors.Is(err, idempotency.ErrNoRecord)
	})
	for range 3 {
		require.True(t, isQuotaUsedUp(t, store, "new"))
	}
}

// Records that an operator removes, or lets expire earlier, leave room for others.
func testCountedRemoval(t *testing.T, open OpenBounded) {
	store, key := open(t, 3), func(id string) idempotency.Key { return keyOfUser("alice", id) }
	inspector := store.(idempotency.Resolver)
	for _, id := range []string{"1", "2", "3"} {
		MustComplete(t, store, key(id), BodyOf(1))
	}
	require.True(t, isQuotaUsedUp(t, store, "4"))
	require.NoError(t, inspector.Forget(t.Context(), MustInspect(t, store, key("2"))))
	MustComplete(t, store, key("4"), BodyOf(1))
	require.True(t, isQuotaUsedUp(t, store, "5"))

	erased, err := resolve.EraseUser(t.Context(), inspector, "alice", resolve.EraseOptions{})
	require.NoError(t, err)
	require.Equal(t, 3, erased.Erased)
	lapsing := AttemptFor(time.Hour)
	lapsing.Lease = time.Millisecond
	MustClaim(t, store, key("5"), lapsing)
	MustComplete(t, store, key("6"), BodyOf(1))
	MustComplete(t, store, key("7"), BodyOf(1))
	require.True(t, isQuotaUsedUp(t, store, "8"))
	Until(t, func() bool { return MustInspect(t, store, key("5")).State == idempotency.StateAbandoned })
	notHappened := idempotency.Resolution{Operator: "bob", Reason: "no charge", TTL: briefTTL}
	require.NoError(t, inspector.Resolve(t.Context(), MustInspect(t, store, key("5")), notHappened))
	Until(t, func() bool { return !isQuotaUsedUp(t, store, "8") })
}

// A user at the bound gets the refusal of a memory store that is full, also with FailOpen, and keeps its answers.
func testCountedRequests(t *testing.T, open OpenBounded) {
	for _, failOpen := range []bool{false, true} {
		svc := Setup{Store: open(t, 2), Opts: idempotency.Options{FailOpen: failOpen}}.Serve(t, Echo)
		first := svc.Post("1", "body 1")
		require.Equal(t, http.StatusCreated, svc.Post("2", "body 2").Status)
		RequireProblem(t, svc.Post("3", "body 3"), http.StatusTooManyRequests, "quota-exceeded")
		require.Equal(t, idempotency.OutcomeQuotaExceeded, svc.Journal.Last(t).Outcome)
		RequireReplay(t, first, svc.Post("1", "body 1"))
		require.EqualValues(t, 2, svc.Runs.Load())
	}
}

// RequireConcurrentBound requires that claims of one user at the same time, on new keys, exceed the bound by excess
// records at most, and that all other claims are refused. The stores have the same records: none.
func RequireConcurrentBound(t *testing.T, stores []idempotency.Store, bound, claims, excess int) {
	t.Helper()
	var granted atomic.Int64
	var claiming sync.WaitGroup
	begin := make(chan struct{})
	errs := make([]error, claims)
	for i := range claims {
		claiming.Go(func() {
			<-begin
			store := stores[i%len(stores)]
			_, claim, err := store.Begin(t.Context(), keyOfUser("alice", fmt.Sprint(i)), AttemptFor(time.Hour))
			if claim != nil {
				granted.Add(1)
			} else if !errors.Is(err, idempotency.ErrUserQuota) {
				errs[i] = fmt.Errorf("claim %d is not granted: %w", i, err)
			}
		})
	}
	close(begin)
	claiming.Wait()
	require.NoError(t, errors.Join(errs...))
	require.GreaterOrEqual(t, int(granted.Load()), bound)
	require.LessOrEqual(t, int(granted.Load()), bound+excess)
	require.True(t, isQuotaUsedUp(t, stores[0], "later"))
}

// CompareUserRecords measures first executions in the store counted, which has the option MaxUserRecords, against those
// in the store plain, in turns. Each user has up to 100 records, and then up to 1000.
func CompareUserRecords(b *testing.B, plain, counted idempotency.Store) {
	for _, records := range []int{100, 1000} {
		b.Run(fmt.Sprint("records=", records), func(b *testing.B) { compareUserRecords(b, plain, counted, records) })
	}
}

func compareUserRecords(b *testing.B, plain, counted idempotency.Store, records int) {
	run := time.Now().UnixNano() // tells the users of this run from those of others
	execute := func(store idempotency.Store, n int) time.Duration {
		began := time.Now()
		key := idempotency.Key{User: fmt.Sprint(run, n/records), Endpoint: "POST /payments", ID: fmt.Sprint(n)}
		_, claim, err := store.Begin(b.Context(), key, AttemptFor(time.Hour))
		require.NoError(b, err)
		require.NoError(b, claim.Complete(b.Context(), BodyOf(200), time.Hour))
		return time.Since(began)
	}
	var plainTime, countedTime time.Duration
	n := 0
	for b.Loop() {
		plainTime += execute(plain, n)
		countedTime += execute(counted, n)
		n++
	}
	b.ReportMetric(float64(n)/plainTime.Seconds(), "without/s")
	b.ReportMetric(float64(n)/countedTime.Seconds(), "with/s")
	b.ReportMetric(plainTime.Seconds()/countedTime.Seconds(), "with:without")
	b.ReportMetric(0, "ns/op") // of a pair: of no interest
}
