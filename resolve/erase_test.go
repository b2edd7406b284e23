package resolve_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/resolve"
	"github.com/idempotency-go/idempotency/stores/cache"
)

func TestEraseUser(t *testing.T) {
	t.Parallel()
	newMemoryStore := func() idempotency.Store { return idempotency.NewMemoryStore(idempotency.MemoryOptions{}) }
	for name, store := range map[string]idempotency.Store{
		"memory": newMemoryStore(),
		"sealed": testservice.MustSeal(t, newMemoryStore(), testservice.Sealing("2026")),
		"cached": cache.New(newMemoryStore(), cache.Options{}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testservice.RequireErasure(t, store)
		})
	}
}

// A user may have more records than EraseUser lists at a time. A record that stays is not listed again.
func TestEraseManyRecords(t *testing.T) {
	t.Parallel()
	const n = 20_050
	store := &changingStore{MemoryStore: idempotency.NewMemoryStore(idempotency.MemoryOptions{})}
	testservice.MustClaim(t, store, testservice.NumberedKey(0), testservice.AttemptFor(time.Hour))
	for i := 1; i < n; i++ {
		testservice.MustComplete(t, store, testservice.NumberedKey(i), testservice.BodyOf(0))
	}
	var found []int
	erased, err := resolve.EraseUser(t.Context(), store, "alice", resolve.EraseOptions{
		Progress: func(progress resolve.EraseProgress) { found = append(found, progress.Found) },
	})
	require.NoError(t, err)
	require.Equal(t, resolve.Erasure{Erased: n - 1, Running: 1}, erased)
	require.Equal(t, 3, store.lists)
	require.Len(t, found, n)
	require.Equal(t, n, found[n-1])
	require.Len(t, testservice.MustList(t, store).Entries, 1)
}

// changingStore is a store whose records change while EraseUser works.
type changingStore struct {
	*idempotency.MemoryStore
	lists        int
	afterList    func()       // nil: nothing changes
	beforeForget func() error // nil: Forget succeeds
	listing      func(*idempotency.Listing)
	request      idempotency.ListRequest // of the last List
}

func (s *changingStore) List(ctx context.Context, request idempotency.ListRequest) (idempotency.Listing, error) {
	s.lists++
	s.request = request
	listing, err := s.MemoryStore.List(ctx, request)
	if s.afterList != nil {
		s.afterList()
	}
	if s.listing != nil {
		s.listing(&listing)
	}
	return listing, err
}

func (s *changingStore) Forget(ctx context.Context, entry idempotency.Entry) error {
	if s.beforeForget != nil {
		if err := s.beforeForget(); err != nil {
			return err
		}
	}
	return s.MemoryStore.Forget(ctx, entry)
}

// A record that changes after List is removed in its new state, unless an attempt is running.
func TestEraseChangedRecords(t *testing.T) {
	t.Parallel()
	key := testservice.NumberedKey(0)
	for name, c := range map[string]struct {
		change func(*testing.T, *changingStore, idempotency.Claim)
		want   resolve.Erasure
	}{
		"completed": {func(t *testing.T, s *changingStore, claim idempotency.Claim) {
			require.NoError(t, claim.Complete(t.Context(), testservice.BodyOf(1), time.Hour))
		}, resolve.Erasure{Erased: 1}},
		"claimed again": {func(t *testing.T, s *changingStore, claim idempotency.Claim) {
			require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Hour}))
			testservice.MustClaim(t, s, key, testservice.AttemptFor(time.Hour))
		}, resolve.Erasure{Running: 1}},
		"forgotten": {func(t *testing.T, s *changingStore, claim idempotency.Claim) {
			require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: 0}))
		}, resolve.Erasure{}},
		"forgotten after the change": {func(t *testing.T, s *changingStore, claim idempotency.Claim) {
			require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Hour}))
			s.beforeForget = func() error {
				require.NoError(t, s.MemoryStore.Forget(t.Context(), testservice.MustInspect(t, s, key)))
				return idempotency.ErrEntryChanged
			}
		}, resolve.Erasure{}},
		"again and again": {func(_ *testing.T, s *changingStore, _ idempotency.Claim) {
			s.beforeForget = func() error { return idempotency.ErrEntryChanged }
		}, resolve.Erasure{Running: 1}},
		"damaged": {func(_ *testing.T, s *changingStore, _ idempotency.Claim) {
			s.beforeForget = func() error { return idempotency.ErrRecordInvalid }
		}, resolve.Erasure{Unreadable: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := &changingStore{MemoryStore: idempotency.NewMemoryStore(idempotency.MemoryOptions{})}
			claim := testservice.MustClaim(t, store, key, testservice.AttemptFor(time.Hour))
			store.afterList = func() { c.change(t, store, claim) }
			erased, err := resolve.EraseUser(t.Context(), store, "alice", resolve.EraseOptions{})
			require.NoError(t, err)
			require.Equal(t, c.want, erased)
			require.Len(t, testservice.MustList(t, store.MemoryStore).Entries, c.want.Running+c.want.Unreadable)
		})
	}
}

// The counts say what was done before an error. EraseUser goes on when it is repeated.
func TestEraseAfterAnError(t *testing.T) {
	t.Parallel()
	store := &changingStore{MemoryStore: idempotency.NewMemoryStore(idempotency.MemoryOptions{})}
	for i := range 3 {
		testservice.MustComplete(t, store, testservice.NumberedKey(i), testservice.BodyOf(1))
	}
	errDown, calls := errors.New("the store is down"), 0
	store.beforeForget = func() error {
		if calls++; calls == 2 {
			return errDown
		}
		return nil
	}
	erased, err := resolve.EraseUser(t.Context(), store, "alice", resolve.EraseOptions{})
	require.ErrorIs(t, err, errDown)
	require.Equal(t, resolve.Erasure{Erased: 1}, erased)
	erased, err = resolve.EraseUser(t.Context(), store, "alice", resolve.EraseOptions{})
	require.NoError(t, err)
	require.Equal(t, resolve.Erasure{Erased: 2}, erased)
}

// EraseUser hands on what List says of its bound, of its progress and of unreadable records.
func TestEraseReportsTheListing(t *testing.T) {
	t.Parallel()
	store := &changingStore{MemoryStore: idempotency.NewMemoryStore(idempotency.MemoryOptions{})}
	store.listing = func(listing *idempotency.Listing) {
		listing.Partial, listing.Unreadable = true, 2
		store.request.Progress(7, 9)
	}
	var last resolve.EraseProgress
	erased, err := resolve.EraseUser(t.Context(), store, "alice", resolve.EraseOptions{
		Scan: 5, Progress: func(progress resolve.EraseProgress) { last = progress },
	})
	require.NoError(t, err)
	require.Equal(t, resolve.Erasure{Partial: true, Unreadable: 2}, erased)
	require.Equal(t, resolve.EraseProgress{Read: 7, Total: 9}, last)
	require.Equal(t, 5, store.request.Scan)
	_, err = resolve.EraseUser(t.Context(), store, "alice", resolve.EraseOptions{})
	require.NoError(t, err)
	require.Equal(t, math.MaxInt, store.request.Scan)
}

func TestEraseRefusals(t *testing.T) {
	t.Parallel()
	store := &changingStore{MemoryStore: idempotency.NewMemoryStore(idempotency.MemoryOptions{})}
	_, err := resolve.EraseUser(t.Context(), store, "", resolve.EraseOptions{})
	require.ErrorContains(t, err, "no user")
	require.Zero(t, store.lists, "an empty user lists the records of all users")

	_, err = resolve.EraseUser(t.Context(), unlistable{store}, "alice", resolve.EraseOptions{})
	require.ErrorIs(t, err, errors.ErrUnsupported)
}

// unlistable is a store that cannot list.
type unlistable struct{ idempotency.Inspector }

func (unlistable) List(context.Context, idempotency.ListRequest) (idempotency.Listing, error) {
	return idempotency.Listing{}, errors.ErrUnsupported
}
