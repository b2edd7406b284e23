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

func pass(w http.ResponseWriter, r *http.Request, service http.Handler) { service.ServeHTTP(w, r) }

// behind has the service work after somebody else has done something.
func behind(do func()) fault {
	return func(w http.ResponseWriter, r *http.Request, service http.Handler) {
		do()
		service.ServeHTTP(w, r)
	}
}

// Between the request that has seen a record, and the one that changes it, somebody else may change it.
func TestRecordChangesInBetween(t *testing.T) {
	t.Parallel()
	over := request
	over.TakeOver = true
	ctx := context.Background()
	claims := func(t *testing.T, store idempotency.Store, want int) {
		t.Helper()
		record, claim, err := store.Begin(ctx, keyOf("key"), over)
		require.NoError(t, err)
		require.Equal(t, want > 0, claim != nil)
		if want > 0 {
			require.Equal(t, want, record.Attempt)
		}
	}
	for name, test := range map[string]func(t *testing.T, s *service, store, other *dynamodbstore.Store){
		"takeover, and the owner renews": func(t *testing.T, s *service, store, _ *dynamodbstore.Store) {
			owner := lapsed(t, store, "key")
			s.inject("UpdateItem", pass, behind(func() { require.NoError(t, owner.Extend(ctx, time.Minute)) }))
			claims(t, store, 0)
			require.NoError(t, owner.Complete(ctx, answer, time.Hour))
		},
		"takeover, and the owner completes": func(t *testing.T, s *service, store, _ *dynamodbstore.Store) {
			owner := lapsed(t, store, "key")
			s.inject("UpdateItem", pass, behind(func() { require.NoError(t, owner.Complete(ctx, answer, time.Hour)) }))
			claims(t, store, 0)
			requireReplay(t, store, "key", answer)
		},
		"claim after a release, and another claims": func(t *testing.T, s *service, store, other *dynamodbstore.Store) {
			_, claim := begun(t, store, "key")
			require.NoError(t, claim.Release(ctx, time.Hour))
			s.inject("UpdateItem", pass, behind(func() { begun(t, other, "key") }))
			claims(t, store, 0)
		},
		"claim after a release, and another claims and releases": func(t *testing.T, s *service, store, other *dynamodbstore.Store) {
			_, claim := begun(t, store, "key")
			require.NoError(t, claim.Release(ctx, time.Hour))
			s.inject("UpdateItem", pass, behind(func() {
				_, claim := begun(t, other, "key")
				require.NoError(t, claim.Release(ctx, time.Hour))
			}))
			claims(t, store, 3)
		},
		"completion of what was lost, and another claims": func(t *testing.T, s *service, store, other *dynamodbstore.Store) {
			_, claim := begun(t, store, "key")
			s.forget("key")
			s.inject("UpdateItem", pass, behind(func() { begun(t, other, "key") }))
			require.ErrorIs(t, claim.Complete(ctx, answer, time.Hour), idempotency.ErrClaimLost)
		},
		"renewal of what was lost, and another claims": func(t *testing.T, s *service, store, other *dynamodbstore.Store) {
			_, claim := begun(t, store, "key")
			s.forget("key")
			s.inject("UpdateItem", pass, pass, behind(func() { begun(t, other, "key") }))
			require.ErrorIs(t, claim.Extend(ctx, time.Minute), idempotency.ErrClaimLost)
		},
		"forget, and another claims and releases": func(t *testing.T, s *service, store, other *dynamodbstore.Store) {
			_, claim := begun(t, store, "key")
			require.NoError(t, claim.Release(ctx, time.Hour))
			entry, err := store.Inspect(ctx, keyOf("key"))
			require.NoError(t, err)
			s.inject("DeleteItem", behind(func() {
				_, claim := begun(t, other, "key")
				require.NoError(t, claim.Release(ctx, time.Hour))
			}))
			require.ErrorIs(t, store.Forget(ctx, entry), idempotency.ErrEntryChanged)
			require.NotNil(t, s.item("key"))
		},
		"forget, and the owner renews": func(t *testing.T, s *service, store, _ *dynamodbstore.Store) {
			owner := lapsed(t, store, "key")
			entry, err := store.Inspect(ctx, keyOf("key"))
			require.NoError(t, err)
			s.inject("DeleteItem", behind(func() { require.NoError(t, owner.Extend(ctx, time.Minute)) }))
			require.ErrorIs(t, store.Forget(ctx, entry), idempotency.ErrInProgress)
		},
		"resolution, and the owner completes": func(t *testing.T, s *service, store, _ *dynamodbstore.Store) {
			owner := lapsed(t, store, "key")
			entry, err := store.Inspect(ctx, keyOf("key"))
			require.NoError(t, err)
			s.inject("UpdateItem", behind(func() { require.NoError(t, owner.Complete(ctx, answer, time.Hour)) }))
			not := idempotency.Resolution{Operator: "bob", Reason: "no charge", TTL: time.Hour}
			require.ErrorIs(t, store.Resolve(ctx, entry, not), idempotency.ErrEntryChanged)
			requireReplay(t, store, "key", answer)
		},
		"resolution, and the owner stores a step": func(t *testing.T, s *service, store, _ *dynamodbstore.Store) {
			owner := lapsed(t, store, "key")
			stores(t, owner, "first", "1")
			entry, err := store.Inspect(ctx, keyOf("key"))
			require.NoError(t, err)
			s.inject("UpdateItem", behind(func() { stores(t, owner, "second", "2") }))
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
			test(t, s, dynamodbstore.New(s.client, local), dynamodbstore.New(s.client, local))
		})
	}
}

// stores stores a step, which must be the first of its name.
func stores(t testing.TB, claim idempotency.Claim, name, data string) {
	t.Helper()
	stored, err := claim.(idempotency.Checkpointer).Checkpoint(context.Background(), name, []byte(data))
	require.NoError(t, err)
	require.Equal(t, data, string(stored))
}

// A claim that does not know which steps there are overwrites none.
func TestUnknownSteps(t *testing.T) {
	t.Parallel()
	store, s := newStore(t)
	_, claim := begun(t, store, "key")
	stores(t, claim, "first", "1")
	s.inject("UpdateItem", failLate, failLate, failLate, failLate)
	_, err := claim.(idempotency.Checkpointer).Checkpoint(t.Context(), "second", []byte("2"))
	require.Error(t, err)
	stores(t, claim, "third", "3")
	require.NoError(t, claim.Release(t.Context(), time.Hour))

	_, claim = begun(t, store, "key")
	stores(t, claim, "fourth", "4")
	all, err := claim.(idempotency.Checkpointer).Checkpoints(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[string][]byte{"first": []byte("1"), "second": []byte("2"), "third": []byte("3"), "fourth": []byte("4")}, all)
	require.Contains(t, s.item("key"), "steps")
	require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
	require.NotContains(t, s.item("key"), "steps")
	require.NotContains(t, s.item("key"), "steps_size")
}

// A claim that took long is renewed before it is granted: its lease counts from then.
func TestSlowClaim(t *testing.T) {
	t.Parallel()
	store, s := newStore(t)
	completed(t, store, "warm")
	s.taken()
	short := request
	short.Lease = 50 * time.Millisecond
	var late time.Time
	s.inject("UpdateItem", behind(func() {
		time.Sleep(short.Lease / 5) // is what the test is about
		late = time.Now()
	}))
	_, claim, err := store.Begin(t.Context(), keyOf("key"), short)
	require.NoError(t, err)
	require.NotNil(t, claim)
	require.Equal(t, "UpdateItem UpdateItem", s.taken())
	require.GreaterOrEqual(t, s.number(t, "key", "lease"), late.Add(short.Lease).UnixMicro())
}
