package dynamodbstore_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/dynamodbstore"
)

func passThrough(w http.ResponseWriter, r *http.Request, service http.Handler) {
	service.ServeHTTP(w, r)
}

// doBefore calls do before the service handles the request.
func doBefore(do func()) fault {
	return func(w http.ResponseWriter, r *http.Request, service http.Handler) {
		do()
		service.ServeHTTP(w, r)
	}
}

// A record may change between the request that reads the record and the request that writes the record.
func TestRecordChangesBeforeWrite(t *testing.T) {
	t.Parallel()
	takeover := request
	takeover.TakeOver = true
	ctx := context.Background()
	requireAttempt := func(t *testing.T, store idempotency.Store, want int) {
		t.Helper()
		record, claim, err := store.Begin(ctx, keyOf("key"), takeover)
		require.NoError(t, err)
		require.Equal(t, want > 0, claim != nil)
		if want > 0 {
			require.Equal(t, want, record.Attempt)
		}
	}
	for name, test := range map[string]func(t *testing.T, s *service, store, other *dynamodbstore.Store){
		"takeover, and the owner renews": func(t *testing.T, s *service, store, _ *dynamodbstore.Store) {
			owner := claimAndLapse(t, store, "key")
			s.injectFaults("UpdateItem", passThrough, doBefore(func() { require.NoError(t, owner.Extend(ctx, time.Minute)) }))
			requireAttempt(t, store, 0)
			require.NoError(t, owner.Complete(ctx, answer, time.Hour))
		},
		"takeover, and the owner completes": func(t *testing.T, s *service, store, _ *dynamodbstore.Store) {
			owner := claimAndLapse(t, store, "key")
			s.injectFaults("UpdateItem", passThrough, doBefore(func() { require.NoError(t, owner.Complete(ctx, answer, time.Hour)) }))
			requireAttempt(t, store, 0)
			requireReplay(t, store, "key", answer)
		},
		"claim after a release, and another claims": func(t *testing.T, s *service, store, other *dynamodbstore.Store) {
			_, claim := claimKey(t, store, "key")
			require.NoError(t, claim.Release(ctx, idempotency.Release{TTL: time.Hour}))
			s.injectFaults("UpdateItem", passThrough, doBefore(func() { claimKey(t, other, "key") }))
			requireAttempt(t, store, 0)
		},
		"claim after a release, and another claims and releases": func(t *testing.T, s *service, store, other *dynamodbstore.Store) {
			_, claim := claimKey(t, store, "key")
			require.NoError(t, claim.Release(ctx, idempotency.Release{TTL: time.Hour}))
			s.injectFaults("UpdateItem", passThrough, doBefore(func() {
				_, claim := claimKey(t, other, "key")
				require.NoError(t, claim.Release(ctx, idempotency.Release{TTL: time.Hour}))
			}))
			requireAttempt(t, store, 3)
		},
		"completion of what was lost, and another claims": func(t *testing.T, s *service, store, other *dynamodbstore.Store) {
			_, claim := claimKey(t, store, "key")
			s.deleteItem("key")
			s.injectFaults("UpdateItem", passThrough, doBefore(func() { claimKey(t, other, "key") }))
			require.ErrorIs(t, claim.Complete(ctx, answer, time.Hour), idempotency.ErrClaimLost)
		},
		"renewal of what was lost, and another claims": func(t *testing.T, s *service, store, other *dynamodbstore.Store) {
			_, claim := claimKey(t, store, "key")
			s.deleteItem("key")
			s.injectFaults("UpdateItem", passThrough, passThrough, doBefore(func() { claimKey(t, other, "key") }))
			require.ErrorIs(t, claim.Extend(ctx, time.Minute), idempotency.ErrClaimLost)
		},
		"forget, and another claims and releases": func(t *testing.T, s *service, store, other *dynamodbstore.Store) {
			_, claim := claimKey(t, store, "key")
			require.NoError(t, claim.Release(ctx, idempotency.Release{TTL: time.Hour}))
			entry, err := store.Inspect(ctx, keyOf("key"))
			require.NoError(t, err)
			s.injectFaults("DeleteItem", doBefore(func() {
				_, claim := claimKey(t, other, "key")
				require.NoError(t, claim.Release(ctx, idempotency.Release{TTL: time.Hour}))
			}))
			require.ErrorIs(t, store.Forget(ctx, entry), idempotency.ErrEntryChanged)
			require.NotNil(t, s.readItem("key"))
		},
		"forget, and the owner renews": func(t *testing.T, s *service, store, _ *dynamodbstore.Store) {
			owner := claimAndLapse(t, store, "key")
			entry, err := store.Inspect(ctx, keyOf("key"))
			require.NoError(t, err)
			s.injectFaults("DeleteItem", doBefore(func() { require.NoError(t, owner.Extend(ctx, time.Minute)) }))
			require.ErrorIs(t, store.Forget(ctx, entry), idempotency.ErrInProgress)
		},
		"resolution, and the owner completes": func(t *testing.T, s *service, store, _ *dynamodbstore.Store) {
			owner := claimAndLapse(t, store, "key")
			entry, err := store.Inspect(ctx, keyOf("key"))
			require.NoError(t, err)
			s.injectFaults("UpdateItem", doBefore(func() { require.NoError(t, owner.Complete(ctx, answer, time.Hour)) }))
			not := idempotency.Resolution{Operator: "bob", Reason: "no charge", TTL: time.Hour}
			require.ErrorIs(t, store.Resolve(ctx, entry, not), idempotency.ErrEntryChanged)
			requireReplay(t, store, "key", answer)
		},
		"resolution, and the owner stores a step": func(t *testing.T, s *service, store, _ *dynamodbstore.Store) {
			owner := claimAndLapse(t, store, "key")
			storeStep(t, owner, "first", "1")
			entry, err := store.Inspect(ctx, keyOf("key"))
			require.NoError(t, err)
			s.injectFaults("UpdateItem", doBefore(func() { storeStep(t, owner, "second", "2") }))
			require.NoError(t, store.Resolve(ctx, entry, idempotency.Resolution{Operator: "bob", Reason: "no charge", TTL: time.Hour}))
			entry, err = store.Inspect(ctx, keyOf("key"))
			require.NoError(t, err)
			require.Len(t, entry.Steps, 2)
			require.Equal(t, "no charge", entry.Resolved.Reason)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			test(t, s, dynamodbstore.New(s.client, testOptions), dynamodbstore.New(s.client, testOptions))
		})
	}
}

// storeStep stores the result of a new step.
func storeStep(t testing.TB, claim idempotency.Claim, name, data string) {
	t.Helper()
	stored, err := claim.(idempotency.Checkpointer).Checkpoint(context.Background(), name, []byte(data))
	require.NoError(t, err)
	require.Equal(t, data, string(stored))
}

// After a failed checkpoint, the claim does not know the stored steps. Later checkpoints keep all steps.
func TestFailedCheckpointKeepsOtherSteps(t *testing.T) {
	t.Parallel()
	store, s := newStore(t)
	_, claim := claimKey(t, store, "key")
	storeStep(t, claim, "first", "1")
	s.injectFaults("UpdateItem", applyThenFail, applyThenFail, applyThenFail, applyThenFail)
	_, err := claim.(idempotency.Checkpointer).Checkpoint(t.Context(), "second", []byte("2"))
	require.Error(t, err)
	storeStep(t, claim, "third", "3")
	require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Hour}))

	_, claim = claimKey(t, store, "key")
	storeStep(t, claim, "fourth", "4")
	all, err := claim.(idempotency.Checkpointer).Checkpoints(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[string][]byte{"first": []byte("1"), "second": []byte("2"), "third": []byte("3"), "fourth": []byte("4")}, all)
	require.Contains(t, s.readItem("key"), "steps")
	require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
	require.NotContains(t, s.readItem("key"), "steps")
	require.NotContains(t, s.readItem("key"), "steps_size")
}

// A slow claim is renewed before Begin returns, because the lease has begun before the request.
func TestSlowClaim(t *testing.T) {
	t.Parallel()
	store, s := newStore(t)
	completeKey(t, store, "warm")
	s.takeCalls()
	short := request
	short.Lease = 50 * time.Millisecond
	var late time.Time
	s.injectFaults("UpdateItem", doBefore(func() {
		time.Sleep(short.Lease / 5) // makes the claim slow
		late = time.Now()
	}))
	_, claim, err := store.Begin(t.Context(), keyOf("key"), short)
	require.NoError(t, err)
	require.NotNil(t, claim)
	require.Equal(t, "UpdateItem UpdateItem", s.takeCalls())
	require.GreaterOrEqual(t, s.readNumber(t, "key", "lease"), late.Add(short.Lease).UnixMicro())
}
