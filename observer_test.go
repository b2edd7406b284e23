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

// The durations of the steps of an operation in these tests.
const (
	claimDuration      = 3 * time.Millisecond
	workDuration       = 50 * time.Millisecond
	completionDuration = 7 * time.Millisecond
)

// delayBy returns a hook that delays each step of a store.
func delayBy(d time.Duration) testservice.Hook {
	return func(_ context.Context, _ int64, step func() error) error {
		time.Sleep(d)
		return step()
	}
}

// newSlowStore returns a store whose steps take these durations.
func newSlowStore() *testservice.SpyStore {
	store := testservice.NewSpyStore()
	store.OnBegin, store.OnComplete, store.OnRelease = delayBy(claimDuration), delayBy(completionDuration), delayBy(completionDuration)
	return store
}

// observedEvent is an event with the context that the Observer got.
type observedEvent struct {
	idempotency.Event
	ctx context.Context
}

// observedRunner is a Runner whose Observer sends all events to events.
type observedRunner struct {
	*idempotency.Runner
	events chan observedEvent
}

// newObservedRunner returns a Runner. At the end, the test must have received all events.
func newObservedRunner(t *testing.T, store idempotency.Store, opts idempotency.RunnerOptions) observedRunner {
	t.Helper()
	events := make(chan observedEvent, 16)
	opts.Logger = slog.New(slog.DiscardHandler)
	opts.Observer = func(ctx context.Context, e idempotency.Event) { events <- observedEvent{e, ctx} }
	runner, err := idempotency.NewRunner(store, opts)
	require.NoError(t, err)
	t.Cleanup(func() {
		if !t.Failed() {
			require.Empty(t, events, "one event for each outcome")
		}
	})
	return observedRunner{runner, events}
}

var workResponse = idempotency.Response{Status: http.StatusCreated, Header: "A: b\n", Body: []byte("body")}

const workResponseBytes = len("A: b\n") + len("body")

// workSlowly returns workResponse after workDuration.
func workSlowly(context.Context) (idempotency.Response, error) {
	time.Sleep(workDuration)
	return workResponse, nil
}

// doOperation calls Do with payload and work, and returns the event without the fields that vary from run to run.
func (o observedRunner) doOperation(
	t *testing.T, payload string, work func(context.Context) (idempotency.Response, error),
) idempotency.Event {
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

// Each event has the durations of the steps, and the size of the stored answer.
func TestEventsHaveDurations(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		service := newObservedRunner(t, newSlowStore(), idempotency.RunnerOptions{})
		refusal := errors.New("declined")
		require.Equal(t, idempotency.Event{
			Outcome: idempotency.OutcomeReleased, Attempt: 1, Err: refusal,
			Claim: claimDuration, Completion: completionDuration, Total: claimDuration + completionDuration,
		}, service.doOperation(t, "a", func(context.Context) (idempotency.Response, error) { return idempotency.Response{}, refusal }))
		require.Equal(t, idempotency.Event{
			Outcome: idempotency.OutcomeExecuted, Attempt: 2, Status: http.StatusCreated, Stored: workResponseBytes,
			Claim: claimDuration, Work: workDuration, Completion: completionDuration,
			Total: claimDuration + workDuration + completionDuration,
		}, service.doOperation(t, "a", workSlowly))
		require.Equal(t, idempotency.Event{
			Outcome: idempotency.OutcomeReplayed, Attempt: 2, Status: http.StatusCreated, Stored: workResponseBytes,
			Claim: claimDuration, Total: claimDuration,
		}, service.doOperation(t, "a", workSlowly))
		require.Equal(t, idempotency.Event{
			Outcome: idempotency.OutcomeKeyReused, Attempt: 2, Err: idempotency.ErrKeyReused, Claim: claimDuration, Total: claimDuration,
			Fingerprints: &[2]idempotency.Fingerprint{sha256.Sum256([]byte("a")), sha256.Sum256([]byte("b"))},
		}, service.doOperation(t, "b", workSlowly))
	})
}

func TestEventsOfOmittedAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		service := newObservedRunner(t, newSlowStore(), idempotency.RunnerOptions{})
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

// The event of a refused request has the lease of the running attempt. Waited is separate from Claim.
func TestEventsOfTheRunningAttempt(t *testing.T) {
	t.Parallel()
	const lease = 10 * time.Second
	key := idempotency.Key{User: "u", Endpoint: "e", ID: "k"}
	for _, wait := range []time.Duration{0, time.Second} {
		synctest.Test(t, func(t *testing.T) {
			store := newSlowStore()
			request := idempotency.ClaimRequest{Fingerprint: sha256.Sum256([]byte("a")), Lease: lease, TTL: time.Hour}
			_, claim, err := store.Store.Begin(t.Context(), key, request)
			require.NoError(t, err)
			require.NotNil(t, claim)
			service := newObservedRunner(t, store, idempotency.RunnerOptions{Wait: wait})
			time.Sleep(lease / 4)
			e := service.doOperation(t, "a", workSlowly)
			require.Equal(t, idempotency.OutcomeInProgress, e.Outcome)
			require.Equal(t, claimDuration, e.Claim)
			require.Equal(t, e.Claim+e.Waited, e.Total)
			if wait == 0 {
				require.Zero(t, e.Waited)
				require.Equal(t, lease-lease/4-e.Total, e.LeaseLeft)
			} else {
				require.GreaterOrEqual(t, e.Waited, wait)
				require.Less(t, e.LeaseLeft, lease-lease/4-wait/2, "the lease at the last read of the record")
			}
		})
	}
}

// The event of a late answer has the context values of its request, although the context of the request has ended.
func TestEventOfALateAnswer(t *testing.T) {
	t.Parallel()
	type contextKey struct{}
	synctest.Test(t, func(t *testing.T) {
		const down = time.Minute
		store := &refusingStore{Store: testservice.NewSpyStore(), refusesUntil: time.Now().Add(down)}
		service := newObservedRunner(t, store, idempotency.RunnerOptions{StoreTimeout: time.Second, Lease: 3 * time.Second})
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), contextKey{}, "value"))
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
		require.Equal(t, "value", later.ctx.Value(contextKey{}))
		require.Equal(t, first.Began, later.Began)
		require.GreaterOrEqual(t, later.Completion, down-workDuration)
		require.Equal(t, workDuration+later.Completion, later.Total)
		require.False(t, later.Omitted)
		require.Equal(t, workResponseBytes, later.Stored, "without the note")
		require.Equal(t, someNote, later.Note)
		_, replayed, err := service.Do(t.Context(), idempotency.Key{ID: "k"}, nil, workSlowly)
		require.NoError(t, err)
		require.True(t, replayed)
		require.Equal(t, someNote, (<-service.events).Note)
		require.NoError(t, service.Shutdown(t.Context()))
	})
}

// The Report of a request keeps its outcome when the answer is settled later. The Report of the next request has the next outcome.
func TestReportOfALateAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &refusingStore{Store: testservice.NewSpyStore(), refusesUntil: time.Now().Add(time.Minute)}
		service := newObservedRunner(t, store, idempotency.RunnerOptions{StoreTimeout: time.Second, Lease: 3 * time.Second})
		do := func() (report *idempotency.Report) {
			ctx, report := idempotency.WithReport(t.Context())
			_, isKnown := report.Event()
			require.False(t, isKnown)
			require.Empty(t, report.LogValue().Group())
			_, _, err := service.Do(ctx, idempotency.Key{ID: "k"}, nil, workSlowly)
			require.NoError(t, err)
			return report
		}
		first := do()
		require.Equal(t, idempotency.OutcomeUnrecorded, (<-service.events).Outcome)
		require.Equal(t, idempotency.OutcomeRecorded, (<-service.events).Outcome)
		e, isKnown := first.Event()
		require.True(t, isKnown)
		require.Equal(t, idempotency.OutcomeUnrecorded, e.Outcome)
		require.Equal(t, "[outcome=unrecorded attempt=1 operation="+e.Operation.String()+"]", first.LogValue().String())

		second := do()
		e, _ = second.Event()
		require.Equal(t, (<-service.events).Event, e)
		require.Equal(t, idempotency.OutcomeReplayed, e.Outcome)
		require.NoError(t, service.Shutdown(t.Context()))
	})
}

// A Report needs no Observer, and the logger of a service without an Observer stays silent.
func TestReportWithoutObserver(t *testing.T) {
	t.Parallel()
	var logged bytes.Buffer
	runner, err := idempotency.NewRunner(testservice.NewSpyStore(), idempotency.RunnerOptions{
		Logger: slog.New(slog.NewTextHandler(&logged, nil)),
	})
	require.NoError(t, err)
	ctx, report := idempotency.WithReport(t.Context())
	_, _, err = runner.Do(ctx, idempotency.Key{}, nil, workSlowly)
	require.ErrorIs(t, err, idempotency.ErrKeyInvalid)
	require.Equal(t, "[outcome=rejected refusal=key-invalid]", report.LogValue().String())
	key := idempotency.Key{ID: "k"}
	_, _, err = runner.Do(ctx, key, nil, workSlowly)
	require.NoError(t, err)
	require.Equal(t, "[outcome=executed attempt=1 operation="+key.OperationID().String()+"]", report.LogValue().String())
	require.Empty(t, logged.String())
}

// refusingStore refuses all answers until the given time.
type refusingStore struct {
	idempotency.Store
	refusesUntil time.Time
}

func (s *refusingStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	record, claim, err := s.Store.Begin(ctx, key, request)
	if claim != nil {
		claim = refusingClaim{claim, s}
	}
	return record, claim, err
}

type refusingClaim struct {
	idempotency.Claim
	store *refusingStore
}

func (c refusingClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	if time.Now().Before(c.store.refusesUntil) {
		return errors.New("not taken")
	}
	return c.Claim.Complete(ctx, resp, ttl)
}

func TestEventsOfTheCache(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		service := newObservedRunner(t, cache.New(newSlowStore(), cache.Options{}), idempotency.RunnerOptions{})
		require.False(t, service.doOperation(t, "a", workSlowly).FromCache)
		replay := service.doOperation(t, "a", workSlowly)
		require.True(t, replay.FromCache)
		require.Zero(t, replay.Claim)
		require.Equal(t, workResponseBytes, replay.Stored)
	})
}

// A panic is a result of the work, too, so its event has the duration of the work.
func TestEventOfAPanicHasTheDurationOfTheWork(t *testing.T) {
	t.Parallel()
	for name, isDown := range map[string]bool{"claimed": false, "unprotected": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newSlowStore()
				if isDown {
					store.OnBegin = func(context.Context, int64, func() error) error { return errors.New("down") }
				}
				service := newObservedRunner(t, store, idempotency.RunnerOptions{FailOpen: isDown})
				require.Panics(t, func() {
					_, _, _ = service.Do(t.Context(), idempotency.Key{ID: "k"}, nil,
						func(context.Context) (idempotency.Response, error) {
							time.Sleep(workDuration)
							panic(http.ErrAbortHandler)
						})
				})
				require.Equal(t, workDuration, (<-service.events).Work)
			})
		})
	}
}

// A panic of the Observer in the background does not end the process, although no server recovers there.
func TestObserverPanicsInTheBackground(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var logged bytes.Buffer
		store := &refusingStore{Store: testservice.NewSpyStore(), refusesUntil: time.Now().Add(time.Minute)}
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
