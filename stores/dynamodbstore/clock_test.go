package dynamodbstore_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/dynamodbstore"
)

// ahead has the service tell a time that is by so much ahead of this machine's.
func (s *service) ahead(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.date = func() string { return time.Now().Add(d).UTC().Format(http.TimeFormat) }
}

// A process whose clock is far from that of the service claims nothing, replays nothing that may have expired, and tells
// operators nothing. What it has claimed before, it completes.
func TestClockIsWrong(t *testing.T) {
	t.Parallel()
	for _, off := range []time.Duration{-time.Hour, -6 * time.Second, 6 * time.Second, time.Hour} {
		t.Run(off.String(), func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			s.ahead(0)
			store := dynamodbstore.New(s.client, dynamodbstore.Options{})
			completed(t, store, "before")
			_, claim := begun(t, store, "running")

			s.ahead(off)
			store.CheckClockAgain()
			for _, id := range []string{"before", "new"} {
				_, other, err := store.Begin(t.Context(), keyOf(id), request)
				require.ErrorIs(t, err, dynamodbstore.ErrClock)
				require.Nil(t, other)
			}
			require.Nil(t, s.item("new"))
			_, err := store.Inspect(t.Context(), keyOf("before"))
			require.ErrorIs(t, err, dynamodbstore.ErrClock)
			_, err = store.List(t.Context(), idempotency.ListRequest{})
			require.ErrorIs(t, err, dynamodbstore.ErrClock)
			require.ErrorIs(t, store.Check(t.Context()), dynamodbstore.ErrClock)
			require.NoError(t, claim.Extend(t.Context(), time.Minute))
			require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))

			s.ahead(0)
			store.CheckClockAgain()
			requireReplay(t, store, "running", answer)
		})
	}
}

// A new process does not claim a key before it has compared the clocks.
func TestClockIsWrongFromTheStart(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.ahead(-time.Minute)
	store := dynamodbstore.New(s.client, dynamodbstore.Options{})
	_, _, err := store.Begin(t.Context(), keyOf("key"), request)
	require.ErrorIs(t, err, dynamodbstore.ErrClock)
	require.Equal(t, "GetItem", s.taken())
	store.CheckClockAgain()
	s.inject("GetItem", fails(400, "InvalidSignatureException"))
	_, _, err = store.Begin(t.Context(), keyOf("key"), request)
	require.ErrorIs(t, err, dynamodbstore.ErrClock)
	require.ErrorContains(t, err, "InvalidSignatureException")
	s.ahead(2 * time.Second) // which Skew allows for
	store = dynamodbstore.New(s.client, dynamodbstore.Options{})
	begun(t, store, "key")
}

// After its machine was suspended, a process compares the clocks before it claims anything.
func TestClockAfterSuspension(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.ahead(0)
	store := dynamodbstore.New(s.client, dynamodbstore.Options{})
	completed(t, store, "before")
	s.taken()
	store.Suspend(0)
	begun(t, store, "at once")
	require.Equal(t, "UpdateItem", s.taken())
	s.ahead(time.Minute) // the clock of the machine was not set when it went on
	store.Suspend(time.Minute)
	_, _, err := store.Begin(t.Context(), keyOf("after"), request)
	require.ErrorIs(t, err, dynamodbstore.ErrClock)
	require.Equal(t, "GetItem", s.taken())
}

// However short Skew is, a second is allowed for: a server may send a Date that it has made before.
func TestOldDate(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.ahead(-time.Second)
	store := dynamodbstore.New(s.client, local)
	begun(t, store, "key")
	s.ahead(-3 * time.Second)
	store.CheckClockAgain()
	_, _, err := store.Begin(t.Context(), keyOf("key"), request)
	require.ErrorIs(t, err, dynamodbstore.ErrClock)
}

// An answer that is an error has a Date, too.
func TestClockOfErrors(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.ahead(0)
	store := dynamodbstore.New(s.client, dynamodbstore.Options{})
	completed(t, store, "key")
	s.ahead(time.Hour)
	requireReplay(t, store, "key", answer) // the answer is an error, and the first that tells
	_, _, err := store.Begin(t.Context(), keyOf("key"), request)
	require.ErrorIs(t, err, dynamodbstore.ErrClock)
}

// A lease, and a record, lasts for Skew longer than was asked for: whoever is ahead by that much does not take it over. Its
// owner is told of what it has asked for, also when it learns only by a second request that it has the claim.
func TestSkewIsWaitedFor(t *testing.T) {
	t.Parallel()
	s := newService(t)
	const skew = time.Hour
	store := dynamodbstore.New(s.client, dynamodbstore.Options{Skew: skew})
	before := time.Now()
	s.inject("UpdateItem", failLate)
	record, claim, err := store.Begin(t.Context(), keyOf("key"), request)
	require.NoError(t, err)
	require.LessOrEqual(t, record.LeaseLeft, request.Lease)
	over := request
	over.TakeOver = true
	record, other, err := store.Begin(t.Context(), keyOf("key"), over)
	require.NoError(t, err)
	require.Nil(t, other)
	require.InDelta(t, request.Lease+skew, record.LeaseLeft, float64(time.Minute))
	require.GreaterOrEqual(t, s.number(t, "key", "lease"), before.Add(request.Lease+skew).UnixMicro())
	require.GreaterOrEqual(t, s.number(t, "key", "expires"), before.Add(request.TTL+skew).UnixMicro())
	require.NoError(t, claim.Complete(t.Context(), answer, 2*time.Hour))
	require.GreaterOrEqual(t, s.number(t, "key", "expires"), before.Add(2*time.Hour+skew).UnixMicro())
	require.Greater(t, s.number(t, "key", "remove_at"), s.number(t, "key", "expires")/1e6, "seconds")
}

// Of two processes whose clocks differ by Skew or less, neither takes over before the lease of the other one is over, nor
// executes again what is kept. If they differ by more, it may: that is why a process whose clock is wrong claims nothing.
func TestClocksDiffer(t *testing.T) {
	t.Parallel()
	const skew = 10 * time.Second
	for _, tt := range []struct {
		owner, other time.Duration // how far the clocks are ahead
		takeover     time.Duration // when the other one takes over, after the last renewal
	}{
		{0, 0, request.Lease + skew},
		{-skew / 2, skew / 2, request.Lease},
		{skew / 2, -skew / 2, request.Lease + 2*skew},
		{-skew, skew, request.Lease - skew},
	} {
		t.Run(fmt.Sprint(tt.owner, tt.other), func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			start := time.Now()
			passed := time.Duration(0)
			clocked := func(ahead time.Duration) *dynamodbstore.Store {
				store := dynamodbstore.New(s.client, dynamodbstore.Options{Skew: skew})
				store.SetTime(func() time.Time { return start.Add(passed + ahead) })
				return store
			}
			owner, other := clocked(tt.owner), clocked(tt.other)
			_, claim := begun(t, owner, "key")
			over := request
			over.TakeOver = true
			taken := func() bool {
				record, claim, err := other.Begin(t.Context(), keyOf("key"), over)
				require.NoError(t, err)
				require.Nil(t, record.Response)
				return claim != nil
			}
			for ; passed < 10*request.Lease; passed += request.Lease / 3 {
				require.False(t, taken(), "after %s", passed)
				require.NoError(t, claim.Extend(t.Context(), request.Lease))
			}
			renewed := passed - request.Lease/3
			for !taken() {
				passed += time.Second
			}
			require.Equal(t, tt.takeover, passed-renewed)
			require.ErrorIs(t, claim.Complete(t.Context(), answer, time.Hour), idempotency.ErrClaimLost)

			passed = 0
			completed(t, owner, "kept")
			passed = time.Hour + skew + tt.owner - tt.other - time.Second
			requireReplay(t, other, "kept", answer)
			passed += time.Second
			begun(t, other, "kept")
		})
	}
}
