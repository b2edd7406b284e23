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

// setDateAhead makes the Date of the service differ from the clock of this machine by d.
func (s *service) setDateAhead(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dateHeader = func() string { return time.Now().Add(d).UTC().Format(http.TimeFormat) }
}

// A process with a wrong clock claims nothing, replays nothing, and answers no operator. The process completes its earlier
// claims.
func TestClockIsWrong(t *testing.T) {
	t.Parallel()
	for _, off := range []time.Duration{-time.Hour, -6 * time.Second, 6 * time.Second, time.Hour} {
		t.Run(off.String(), func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			s.setDateAhead(0)
			store := dynamodbstore.New(s.client, dynamodbstore.Options{})
			completeKey(t, store, "before")
			_, claim := claimKey(t, store, "running")

			s.setDateAhead(off)
			store.CheckClockAgain()
			for _, id := range []string{"before", "new"} {
				_, other, err := store.Begin(t.Context(), keyOf(id), request)
				require.ErrorIs(t, err, dynamodbstore.ErrClock)
				require.Nil(t, other)
			}
			require.Nil(t, s.readItem("new"))
			_, err := store.Inspect(t.Context(), keyOf("before"))
			require.ErrorIs(t, err, dynamodbstore.ErrClock)
			_, err = store.List(t.Context(), idempotency.ListRequest{})
			require.ErrorIs(t, err, dynamodbstore.ErrClock)
			require.ErrorIs(t, store.Check(t.Context()), dynamodbstore.ErrClock)
			require.NoError(t, claim.Extend(t.Context(), time.Minute))
			require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))

			s.setDateAhead(0)
			store.CheckClockAgain()
			requireReplay(t, store, "running", answer)
		})
	}
}

// A new process compares the clocks before the first claim.
func TestClockIsWrongFromTheStart(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.setDateAhead(-time.Minute)
	store := dynamodbstore.New(s.client, dynamodbstore.Options{})
	_, _, err := store.Begin(t.Context(), keyOf("key"), request)
	require.ErrorIs(t, err, dynamodbstore.ErrClock)
	require.Equal(t, "GetItem", s.takeCalls())
	store.CheckClockAgain()
	s.injectFaults("GetItem", failWith(400, "InvalidSignatureException"))
	_, _, err = store.Begin(t.Context(), keyOf("key"), request)
	require.ErrorIs(t, err, dynamodbstore.ErrClock)
	require.ErrorContains(t, err, "InvalidSignatureException")
	s.setDateAhead(2 * time.Second) // within Skew
	store = dynamodbstore.New(s.client, dynamodbstore.Options{})
	claimKey(t, store, "key")
}

// After a suspension of the machine, a process compares the clocks before the next claim.
func TestClockAfterSuspension(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.setDateAhead(0)
	store := dynamodbstore.New(s.client, dynamodbstore.Options{})
	completeKey(t, store, "before")
	s.takeCalls()
	store.SimulateSuspend(0)
	claimKey(t, store, "at once")
	require.Equal(t, "UpdateItem", s.takeCalls())
	s.setDateAhead(time.Minute) // the clock of the machine was not corrected after the suspension
	store.SimulateSuspend(time.Minute)
	_, _, err := store.Begin(t.Context(), keyOf("after"), request)
	require.ErrorIs(t, err, dynamodbstore.ErrClock)
	require.Equal(t, "GetItem", s.takeCalls())
}

// A difference of one second is tolerated for every Skew, because a server may send a Date that was formatted for an earlier
// reply.
func TestShortSkewToleratesOneSecond(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.setDateAhead(-time.Second)
	store := dynamodbstore.New(s.client, testOptions)
	claimKey(t, store, "key")
	s.setDateAhead(-3 * time.Second)
	store.CheckClockAgain()
	_, _, err := store.Begin(t.Context(), keyOf("key"), request)
	require.ErrorIs(t, err, dynamodbstore.ErrClock)
}

// Replies with errors have a Date as well.
func TestErrorRepliesHaveDate(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.setDateAhead(0)
	store := dynamodbstore.New(s.client, dynamodbstore.Options{})
	completeKey(t, store, "key")
	s.setDateAhead(time.Hour)
	requireReplay(t, store, "key", answer) // the reply is a failed condition, and the first reply with the new Date
	_, _, err := store.Begin(t.Context(), keyOf("key"), request)
	require.ErrorIs(t, err, dynamodbstore.ErrClock)
}

// Leases and records last longer by Skew than requested, so a process whose clock is ahead by Skew does not take over. The
// owner gets the requested lease, even if a second request finds the claim after a lost reply.
func TestRecordsLastLongerBySkew(t *testing.T) {
	t.Parallel()
	s := newService(t)
	const skew = time.Hour
	store := dynamodbstore.New(s.client, dynamodbstore.Options{Skew: skew})
	before := time.Now()
	s.injectFaults("UpdateItem", applyThenFail)
	record, claim, err := store.Begin(t.Context(), keyOf("key"), request)
	require.NoError(t, err)
	require.LessOrEqual(t, record.LeaseLeft, request.Lease)
	takeover := request
	takeover.TakeOver = true
	record, other, err := store.Begin(t.Context(), keyOf("key"), takeover)
	require.NoError(t, err)
	require.Nil(t, other)
	require.InDelta(t, request.Lease+skew, record.LeaseLeft, float64(time.Minute))
	require.GreaterOrEqual(t, s.readNumber(t, "key", "lease"), before.Add(request.Lease+skew).UnixMicro())
	require.GreaterOrEqual(t, s.readNumber(t, "key", "expires"), before.Add(request.TTL+skew).UnixMicro())
	require.NoError(t, claim.Complete(t.Context(), answer, 2*time.Hour))
	require.GreaterOrEqual(t, s.readNumber(t, "key", "expires"), before.Add(2*time.Hour+skew).UnixMicro())
	require.Greater(t, s.readNumber(t, "key", "remove_at"), s.readNumber(t, "key", "expires")/1e6, "seconds")
}

// If the clocks of two processes differ by at most Skew, no process takes over before the end of the lease, or repeats a
// completed operation before the end of the record. If the clocks differ by more, a process may do both. Therefore a process
// with a wrong clock claims nothing.
func TestClocksDiffer(t *testing.T) {
	t.Parallel()
	const skew = 10 * time.Second
	for _, tt := range []struct {
		owner, other time.Duration // how far the clocks are ahead
		takeover     time.Duration // from the last renewal to the takeover
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
			_, claim := claimKey(t, owner, "key")
			takeover := request
			takeover.TakeOver = true
			takesOver := func() bool {
				record, claim, err := other.Begin(t.Context(), keyOf("key"), takeover)
				require.NoError(t, err)
				require.Nil(t, record.Response)
				return claim != nil
			}
			for ; passed < 10*request.Lease; passed += request.Lease / 3 {
				require.False(t, takesOver(), "after %s", passed)
				require.NoError(t, claim.Extend(t.Context(), request.Lease))
			}
			renewed := passed - request.Lease/3
			for !takesOver() {
				passed += time.Second
			}
			require.Equal(t, tt.takeover, passed-renewed)
			require.ErrorIs(t, claim.Complete(t.Context(), answer, time.Hour), idempotency.ErrClaimLost)

			passed = 0
			completeKey(t, owner, "kept")
			passed = time.Hour + skew + tt.owner - tt.other - time.Second
			requireReplay(t, other, "kept", answer)
			passed += time.Second
			claimKey(t, other, "kept")
		})
	}
}
