package idempotency_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/testservice"
)

// wrapper is a store of somebody else's in front of another one.
type wrapper struct{ idempotency.Store }

func (w wrapper) Unwrap() idempotency.Store { return w.Store }

// A wrapper that knows nothing of transactions is what the store behind it is, unless it says otherwise.
func TestTransactionalBehindWrappers(t *testing.T) {
	t.Parallel()
	transactions := func(store idempotency.Store, is bool) idempotency.Store { return storeOfTransactions{store, is} }
	for name, row := range map[string]struct {
		store idempotency.Store
		want  bool
	}{
		"one":                    {wrapper{transactions(testservice.NewSpyStore(), true)}, true},
		"two":                    {wrapper{wrapper{transactions(testservice.NewSpyStore(), true)}}, true},
		"of leases":              {wrapper{transactions(testservice.NewSpyStore(), false)}, false},
		"of no answer":           {wrapper{testservice.NewSpyStore()}, false},
		"of nothing":             {wrapper{}, false},
		"the first answers: no":  {transactions(wrapper{transactions(testservice.NewSpyStore(), true)}, false), false},
		"the first answers: yes": {wrapper{transactions(wrapper{transactions(testservice.NewSpyStore(), false)}, true)}, true},
	} {
		t.Run(name, func(t *testing.T) { testservice.RequireTransactional(t, row.store, row.want) })
	}
}

// deadlineStore notes whether Begin had a deadline.
type deadlineStore struct {
	idempotency.Store
	had *bool
}

func (s deadlineStore) Unwrap() idempotency.Store { return s.Store }

func (s deadlineStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	_, *s.had = ctx.Deadline()
	return s.Store.Begin(ctx, key, request)
}

type immediateStore struct {
	deadlineStore
	immediate bool
}

func (s immediateStore) Immediate() bool { return s.immediate }

// Only a store that says itself that it never waits is asked without a deadline.
func TestImmediateStore(t *testing.T) {
	t.Parallel()
	had := false
	memory := deadlineStore{idempotency.NewMemoryStore(idempotency.MemoryOptions{}), &had}
	for name, row := range map[string]struct {
		store    idempotency.Store
		deadline bool
	}{
		"immediate":                 {immediateStore{memory, true}, false},
		"not immediate":             {immediateStore{memory, false}, true},
		"in front of one":           {memory, true},
		"in front of one that says": {wrapper{immediateStore{memory, true}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			testservice.Setup{Store: row.store}.Guard(t, testservice.Echo).Call("key", "body")
			require.Equal(t, row.deadline, had)
		})
	}
	require.True(t, idempotency.NewMemoryStore(idempotency.MemoryOptions{}).Immediate())
}

// recallingStore has one record at hand for every key.
type recallingStore struct {
	idempotency.Store
	record idempotency.Record
}

func (s recallingStore) Recall(idempotency.Key) (idempotency.Record, bool) { return s.record, true }

// What a store has at hand is judged and replayed without Begin. What a store behind it has at hand is not asked for.
func TestRecallingStore(t *testing.T) {
	t.Parallel()
	inner := testservice.NewSpyStore()
	first := testservice.Setup{Store: inner}.Guard(t, testservice.Echo).Call("key", "body")
	require.Equal(t, http.StatusCreated, first.Status)
	record, _, err := inner.Store.Begin(t.Context(), idempotency.Key{User: "single", Endpoint: "POST /payments", ID: "key"}, testservice.AttemptFor(time.Hour))
	require.NoError(t, err)
	recalling := recallingStore{inner, record}

	svc := testservice.Setup{Store: recalling}.Guard(t, testservice.Echo)
	testservice.RequireReplay(t, first, svc.Call("key", "body"))
	require.True(t, svc.Journal.Last(t).FromCache)
	testservice.RequireProblem(t, svc.Call("key", "another body"), http.StatusConflict, "key-reused")
	require.EqualValues(t, 1, inner.Begins.Load())

	svc = testservice.Setup{Store: wrapper{recalling}}.Guard(t, testservice.Echo)
	testservice.RequireReplay(t, first, svc.Call("key", "body"))
	require.False(t, svc.Journal.Last(t).FromCache)
	require.EqualValues(t, 2, inner.Begins.Load())
}
