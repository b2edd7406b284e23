package idempotency_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/stores/cache"
)

// The times that the steps of an operation take in these tests.
const (
	claimTakes      = 3 * time.Millisecond
	workTakes       = 50 * time.Millisecond
	completionTakes = 7 * time.Millisecond
)

// delayBy returns a hook that delays each step of a store.
func delayBy(d time.Duration) testservice.Hook {
	return func(_ context.Context, _ int64, step func() error) error {
		time.Sleep(d)
		return step()
	}
}

func slowStore() *testservice.SpyStore {
	store := testservice.NewSpyStore()
	store.OnBegin, store.OnComplete, store.OnRelease = delayBy(claimTakes), delayBy(completionTakes), delayBy(completionTakes)
	return store
}

// told is an event with the context that came with it.
type told struct {
	idempotency.Event
	ctx context.Context
}

// observed is a Runner whose events a test sees.
type observed struct {
	*idempotency.Runner
	events chan told
}

func newObserved(t *testing.T, store idempotency.Store, opts idempotency.RunnerOptions) observed {
	t.Helper()
	events := make(chan told, 16)
	opts.Logger = slog.New(slog.DiscardHandler)
	opts.Observer = func(ctx context.Context, e idempotency.Event) { events <- told{e, ctx} }
	runner, err := idempotency.NewRunner(store, opts)
	require.NoError(t, err)
	t.Cleanup(func() {
		if !t.Failed() {
			require.Empty(t, events, "one event for each outcome")
		}
	})
	return observed{runner, events}
}

var answered = idempotency.Response{Status: http.StatusCreated, Header: "A: b\n", Body: []byte("body")}

const answeredBytes = len("A: b\n") + len("body")

func workSlowly(context.Context) (idempotency.Response, error) {
	time.Sleep(workTakes)
	return answered, nil
}

// doOperation runs work and returns its event, without the fields that vary from run to run.
func (o observed) doOperation(t *testing.T, payload string, work func(context.Context) (idempotency.Response, error)) idempotency.Event {
	t.Helper()
	key := idempotency.Key{User: "u", Endpoint: "e", ID: "k"}
	began := time.Now()
	_, _, _ = o.Do(t.Context(), key, []byte(payload), work)
	e := <-o.events
	require.Equal(t, key, e.Key)
	require.Equal(t, key.OperationID(), e.Operation)
	require.Equal(t, began, e.Began)
	e.Key, e.Operation, e.Began = idempotency.Key{}, uuid.Nil, time.Time{}
	return e.Event
}

// Each event says how long each step took, and what was stored.
func TestEventsHaveDurations(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		service := newObserved(t, slowStore(), idempotency.RunnerOptions{})
		refusal := errors.New("declined")
		require.Equal(t, idempotency.Event{
			Outcome: idempotency.OutcomeReleased, Attempt: 1, Err: refusal,
			Claim: claimTakes, Completion: completionTakes, Total: claimTakes + completionTakes,
		}, service.doOperation(t, "a", func(context.Context) (idempotency.Response, error) { return idempotency.Response{}, refusal }))
		require.Equal(t, idempotency.Event{
			Outcome: idempotency.OutcomeExecuted, Attempt: 2, Status: http.StatusCreated, Stored: answeredBytes,
			Claim: claimTakes, Work: workTakes, Completion: completionTakes, Total: claimTakes + workTakes + completionTakes,
		}, service.doOperation(t, "a", workSlowly))
		require.Equal(t, idempotency.Event{
			Outcome: idempotency.OutcomeReplayed, Attempt: 2, Status: http.StatusCreated, Stored: answeredBytes,
			Claim: claimTakes, Total: claimTakes,
		}, service.doOperation(t, "a", workSlowly))
		require.Equal(t, idempotency.Event{
			Outcome: idempotency.OutcomeKeyReused, Attempt: 2, Err: idempotency.ErrKeyReused, Claim: claimTakes, Total: claimTakes,
			Fingerprints: &[2]idempotency.Fingerprint{sha256.Sum256([]byte("a")), sha256.Sum256([]byte("b"))},
		}, service.doOperation(t, "b", workSlowly))
	})
}

func TestEventsTellOfAnswersThatAreNotKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		service := newObserved(t, slowStore(), idempotency.RunnerOptions{})
		first := service.doOperation(t, "a", func(ctx context.Context) (idempotency.Response, error) {
			idempotency.Decide(ctx, idempotency.Tombstone)
			return workSlowly(ctx)
		})
		require.Equal(t, idempotency.OutcomeExecuted, first.Outcome)
		require.True(t, first.Omitted)
		require.Zero(t, first.Stored)
		again := service.doOperation(t, "a", workSlowly)
		require.Equal(t, idempotency.OutcomeNotReplayable, again.Outcome)
		require.True(t, again.Omitted)
		require.Zero(t, again.Stored)
	})
}

// The lease of an attempt that runs is told to whoever is turned away, and a wait is told apart from the claim.
func TestEventsTellOfTheAttemptThatRuns(t *testing.T) {
	t.Parallel()
	const lease = 10 * time.Second
	key := idempotency.Key{User: "u", Endpoint: "e", ID: "k"}
	for _, wait := range []time.Duration{0, time.Second} {
		synctest.Test(t, func(t *testing.T) {
			store := slowStore()
			request := idempotency.ClaimRequest{Fingerprint: sha256.Sum256([]byte("a")), Lease: lease, TTL: time.Hour}
			_, claim, err := store.Store.Begin(t.Context(), key, request)
			require.NoError(t, err)
			require.NotNil(t, claim)
			service := newObserved(t, store, idempotency.RunnerOptions{Wait: wait})
			time.Sleep(lease / 4)
			e := service.doOperation(t, "a", workSlowly)
			require.Equal(t, idempotency.OutcomeInProgress, e.Outcome)
			require.Equal(t, claimTakes, e.Claim)
			require.Equal(t, e.Claim+e.Waited, e.Total)
			if wait == 0 {
				require.Zero(t, e.Waited)
				require.Equal(t, lease-lease/4-e.Total, e.LeaseLeft)
			} else {
				require.GreaterOrEqual(t, e.Waited, wait)
				require.Less(t, e.LeaseLeft, lease-lease/4-wait/2, "as it was at the last look")
			}
		})
	}
}

// The event of what is stored later has the values of its request, and a context that has not ended.
func TestEventsOfWhatIsStoredLater(t *testing.T) {
	t.Parallel()
	type name struct{}
	synctest.Test(t, func(t *testing.T) {
		const down = time.Minute
		store := &reluctantStore{Store: testservice.NewSpyStore(), until: time.Now().Add(down)}
		service := newObserved(t, store, idempotency.RunnerOptions{StoreTimeout: time.Second, Lease: 3 * time.Second})
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), name{}, "value"))
		_, _, err := service.Do(ctx, idempotency.Key{ID: "k"}, nil, func(ctx context.Context) (idempotency.Response, error) {
			require.NoError(t, idempotency.Annotate(ctx, someNote))
			return workSlowly(ctx)
		})
		require.NoError(t, err)
		cancel()
		first := <-service.events
		require.Equal(t, idempotency.OutcomeUnrecorded, first.Outcome)
		require.Zero(t, first.Stored)
		later := <-service.events
		require.Equal(t, idempotency.OutcomeRecorded, later.Outcome)
		require.NoError(t, later.ctx.Err())
		require.Equal(t, "value", later.ctx.Value(name{}))
		require.Equal(t, first.Began, later.Began)
		require.GreaterOrEqual(t, later.Completion, down-workTakes)
		require.Equal(t, workTakes+later.Completion, later.Total)
		require.False(t, later.Omitted)
		require.Equal(t, answeredBytes, later.Stored, "without the note")
		require.Equal(t, someNote, later.Note)
		_, replayed, err := service.Do(t.Context(), idempotency.Key{ID: "k"}, nil, workSlowly)
		require.NoError(t, err)
		require.True(t, replayed)
		require.Equal(t, someNote, (<-service.events).Note)
		require.NoError(t, service.Shutdown(t.Context()))
	})
}

// reluctantStore takes no answer before a time.
type reluctantStore struct {
	idempotency.Store
	until time.Time
}

func (s *reluctantStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	record, claim, err := s.Store.Begin(ctx, key, request)
	if claim != nil {
		claim = reluctantClaim{claim, s}
	}
	return record, claim, err
}

type reluctantClaim struct {
	idempotency.Claim
	store *reluctantStore
}

func (c reluctantClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	if time.Now().Before(c.store.until) {
		return errors.New("not taken")
	}
	return c.Claim.Complete(ctx, resp, ttl)
}

func TestEventsTellOfTheCache(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		service := newObserved(t, cache.New(slowStore(), cache.Options{}), idempotency.RunnerOptions{})
		require.False(t, service.doOperation(t, "a", workSlowly).FromCache)
		replay := service.doOperation(t, "a", workSlowly)
		require.True(t, replay.FromCache)
		require.Zero(t, replay.Claim)
		require.Equal(t, answeredBytes, replay.Stored)
	})
}

// A handler that panics has run, too: its event says for how long.
func TestEventOfAPanicTellsTheWork(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]bool{"claimed": false, "unprotected": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := slowStore()
				if open {
					store.OnBegin = func(context.Context, int64, func() error) error { return errors.New("down") }
				}
				service := newObserved(t, store, idempotency.RunnerOptions{FailOpen: open})
				require.Panics(t, func() {
					_, _, _ = service.Do(t.Context(), idempotency.Key{ID: "k"}, nil,
						func(context.Context) (idempotency.Response, error) {
							time.Sleep(workTakes)
							panic(http.ErrAbortHandler)
						})
				})
				require.Equal(t, workTakes, (<-service.events).Work)
			})
		})
	}
}

// An Observer that panics in the background, where no server recovers, does not end the process.
func TestObserverPanicsInTheBackground(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var logged bytes.Buffer
		store := &reluctantStore{Store: testservice.NewSpyStore(), until: time.Now().Add(time.Minute)}
		runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{
			StoreTimeout: time.Second, Lease: 3 * time.Second,
			Logger: slog.New(slog.NewTextHandler(&logged, nil)),
			Observer: func(_ context.Context, e idempotency.Event) {
				if e.Outcome == idempotency.OutcomeRecorded {
					panic("a fault of the Observer")
				}
			},
		})
		require.NoError(t, err)
		_, _, err = runner.Do(t.Context(), idempotency.Key{ID: "k"}, nil, workSlowly)
		require.NoError(t, err)
		require.NoError(t, runner.Shutdown(t.Context()))
		require.Contains(t, logged.String(), "a fault of the Observer")
		_, replayed, err := runner.Do(t.Context(), idempotency.Key{ID: "k"}, nil, workSlowly)
		require.NoError(t, err)
		require.True(t, replayed)
	})
}
