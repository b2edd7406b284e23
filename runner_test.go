package idempotency_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/testservice"
)

func TestDoReturnsTheStoredResponse(t *testing.T) {
	t.Parallel()
	b := newBench(t, testservice.NewSpyStore(), idempotency.RunnerOptions{})
	var operation idempotency.Operation
	first, replayed, err := b.do(func(ctx context.Context) (idempotency.Response, error) {
		var ok bool
		operation, ok = idempotency.FromContext(ctx)
		assert.True(t, ok)
		return idempotency.Response{Status: 7, Header: "A: 1\n", Body: []byte("done")}, nil
	})
	require.NoError(t, err)
	require.False(t, replayed)
	require.Equal(t, someKey, operation.Key)
	require.Equal(t, 1, operation.Attempt)
	again, replayed, err := b.do(mustNotWork(t))
	require.NoError(t, err)
	require.True(t, replayed)
	require.Equal(t, first, again)
	require.Equal(t, operation.ID, b.journal.Last(t).Operation)
	require.Equal(t, 7, b.journal.Last(t).Status)
}

func TestDoSharesNoMemory(t *testing.T) {
	t.Parallel()
	b := newBench(t, testservice.NewSpyStore(), idempotency.RunnerOptions{})
	mine := idempotency.Response{Header: "A: 1\n", Trailer: "B: 2\n", Body: []byte("done")}
	want := mine.Clone()
	for range 3 {
		got, _, err := b.do(func(context.Context) (idempotency.Response, error) { return mine, nil })
		require.NoError(t, err)
		require.Equal(t, want, got)
		for _, resp := range []idempotency.Response{mine, got} {
			resp.Body[0] = 'x'
		}
	}
}

func TestDoMayBeTriedAgainAfterAnError(t *testing.T) {
	t.Parallel()
	b := newBench(t, testservice.NewSpyStore(), idempotency.RunnerOptions{})
	busy := errors.New("busy")
	var operations []idempotency.Operation
	work := func(err error) func(context.Context) (idempotency.Response, error) {
		return func(ctx context.Context) (idempotency.Response, error) {
			operation, _ := idempotency.FromContext(ctx)
			operations = append(operations, operation)
			return idempotency.Response{Status: 200}, err
		}
	}
	_, replayed, err := b.do(work(busy))
	require.Equal(t, busy, err)
	require.False(t, replayed)
	require.Equal(t, idempotency.OutcomeReleased, b.journal.Last(t).Outcome)
	require.Equal(t, busy, b.journal.Last(t).Err)
	require.PanicsWithValue(t, "boom", func() {
		_, _, _ = b.do(func(context.Context) (idempotency.Response, error) { panic("boom") })
	})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _, _ = b.do(func(context.Context) (idempotency.Response, error) {
			runtime.Goexit()
			return idempotency.Response{}, nil
		})
	}()
	<-ended
	_, _, err = b.do(work(nil))
	require.NoError(t, err)
	require.Equal(t, operations[0].ID, operations[1].ID)
	require.Equal(t, 1, operations[0].Attempt)
	require.Equal(t, 4, operations[1].Attempt)
}

func TestDoRefuses(t *testing.T) {
	t.Parallel()
	b := newBench(t, testservice.NewSpyStore(), idempotency.RunnerOptions{})
	refused := func(key idempotency.Key, payload string, is error) {
		t.Helper()
		_, _, err := b.Do(t.Context(), key, []byte(payload), mustNotWork(t))
		require.ErrorIs(t, err, is)
		refusal, ok := errors.AsType[*idempotency.Error](err)
		require.True(t, ok)
		require.NotZero(t, refusal.Status)
	}
	_, _, err := b.do(func(context.Context) (idempotency.Response, error) {
		refused(someKey, "payload", idempotency.ErrInProgress)
		refused(someKey, "other", idempotency.ErrKeyReused)
		return idempotency.Response{Status: 3, Omitted: true}, nil
	})
	require.NoError(t, err)
	refused(someKey, "payload", idempotency.ErrNotReplayable)
	refused(idempotency.Key{User: "u", Endpoint: "e"}, "", idempotency.ErrKeyInvalid)
	require.Equal(t, idempotency.OutcomeRejected, b.journal.Last(t).Outcome)
	b.store.OnBegin = testservice.Failing(testservice.Always, testservice.ErrDown)
	refused(someKey, "payload", testservice.ErrDown)
}

func TestDoGoesOnWhenItsCallerGivesUp(t *testing.T) {
	t.Parallel()
	b := newBench(t, testservice.NewSpyStore(), idempotency.RunnerOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	store := b.store
	store.OnBegin = func(ctx context.Context, _ int64, step func() error) error {
		select {
		case <-ctx.Done():
			t.Error("the step of the store ended with the request")
		default:
			assert.NoError(t, ctx.Err())
		}
		return step()
	}
	store.OnComplete = store.OnBegin
	_, _, err := b.Do(ctx, someKey, []byte("payload"), func(ctx context.Context) (idempotency.Response, error) {
		cancel()
		<-ctx.Done()
		return someWork(ctx)
	})
	require.NoError(t, err)
	_, replayed, err := b.Do(ctx, someKey, []byte("payload"), mustNotWork(t))
	require.NoError(t, err)
	require.True(t, replayed)
}

func TestStoreGetsTheValuesOfTheRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		type tracer struct{}
		store := testservice.NewSpyStore()
		var seen atomic.Int64
		see := func(ctx context.Context, _ int64, step func() error) error {
			assert.Equal(t, "span", ctx.Value(tracer{}))
			deadline, ok := ctx.Deadline()
			assert.True(t, ok)
			assert.LessOrEqual(t, time.Until(deadline), 2*time.Second)
			seen.Add(1)
			return step()
		}
		store.OnBegin, store.OnExtend, store.OnComplete, store.OnRelease = see, see, see, see
		b := newBench(t, store, idempotency.RunnerOptions{Lease: time.Minute, StoreTimeout: 2 * time.Second})
		ctx := context.WithValue(t.Context(), tracer{}, "span")
		for _, err := range []error{testservice.ErrDown, nil} {
			_, _, got := b.Do(ctx, someKey, nil, func(context.Context) (idempotency.Response, error) {
				time.Sleep(30 * time.Second)
				return idempotency.Response{}, err
			})
			require.Equal(t, err, got)
		}
		require.EqualValues(t, 6, seen.Load()) // twice Begin and Extend, Release and Complete
	})
}

func TestNewRunnerReportsEveryFault(t *testing.T) {
	t.Parallel()
	_, err := idempotency.NewRunner(nil, idempotency.RunnerOptions{
		TTL: time.Second, Lease: time.Minute, Wait: -1, StoreTimeout: time.Hour, Abandoned: 7,
	})
	for _, fault := range []string{"Store is nil", "TTL", "Wait", "StoreTimeout", "Abandoned"} {
		require.ErrorContains(t, err, fault)
	}
	_, err = idempotency.NewRunner(testservice.NewSpyStore(), idempotency.RunnerOptions{Lease: time.Microsecond, StoreTimeout: -1})
	require.ErrorContains(t, err, "Lease")
	require.ErrorContains(t, err, "StoreTimeout")
}

// receipt has a field that JSON leaves out, so that a test can tell it from its stored form.
type receipt struct {
	ID     string    `json:"id"`
	Paid   time.Time `json:"paid"`
	Secret string    `json:"-"`
}

func TestDoJSONKeepsTheResult(t *testing.T) {
	t.Parallel()
	runner, err := idempotency.NewRunner(testservice.NewSpyStore(), idempotency.RunnerOptions{})
	require.NoError(t, err)
	message := idempotency.Key{User: "billing", Endpoint: "orders", ID: "1526919030474-55"}
	want := receipt{ID: "r-1", Paid: time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)}

	for call := range 3 {
		got, replayed, err := idempotency.DoJSON(t.Context(), runner, message, []byte("order 1"),
			func(context.Context) (receipt, error) {
				require.Zero(t, call, "done again")
				return receipt{want.ID, want.Paid, "not kept"}, nil
			})
		require.NoError(t, err)
		require.Equal(t, call > 0, replayed)
		require.Equal(t, want, got, "the first result is what the others are")
	}
}

func TestDoJSONMayBeTriedAgainAfterAnError(t *testing.T) {
	t.Parallel()
	runner, err := idempotency.NewRunner(testservice.NewSpyStore(), idempotency.RunnerOptions{})
	require.NoError(t, err)
	declined := errors.New("declined")
	do := func(err error) (int, bool, error) {
		return idempotency.DoJSON(t.Context(), runner, idempotency.Key{ID: "1"}, nil,
			func(ctx context.Context) (int, error) {
				op, _ := idempotency.FromContext(ctx)
				return op.Attempt, err
			})
	}
	_, _, err = do(declined)
	require.ErrorIs(t, err, declined)
	attempt, replayed, err := do(nil)
	require.NoError(t, err)
	require.False(t, replayed)
	require.Equal(t, 2, attempt)
}

func TestDoJSONDoesNotRepeatWorkWhoseResultHasNoForm(t *testing.T) {
	t.Parallel()
	runner, err := idempotency.NewRunner(testservice.NewSpyStore(), idempotency.RunnerOptions{})
	require.NoError(t, err)
	runs := 0
	do := func() error {
		_, _, err := idempotency.DoJSON(t.Context(), runner, idempotency.Key{ID: "1"}, nil,
			func(context.Context) (chan int, error) {
				runs++
				return make(chan int), nil
			})
		return err
	}
	require.ErrorContains(t, do(), "unsupported type")
	require.ErrorIs(t, do(), idempotency.ErrNotReplayable)
	require.Equal(t, 1, runs)
}

func TestDoJSONReportsAResultOfAnotherType(t *testing.T) {
	t.Parallel()
	runner, err := idempotency.NewRunner(testservice.NewSpyStore(), idempotency.RunnerOptions{})
	require.NoError(t, err)
	key := idempotency.Key{ID: "1"}
	_, _, err = idempotency.DoJSON(t.Context(), runner, key, nil,
		func(context.Context) (string, error) { return "r-1", nil })
	require.NoError(t, err)
	_, replayed, err := idempotency.DoJSON(t.Context(), runner, key, nil,
		func(context.Context) (int, error) { panic("done again") })
	require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
	require.True(t, replayed)
}

// Work learns what was decided in it.
func TestDecided(t *testing.T) {
	t.Parallel()
	r, err := idempotency.NewRunner(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.RunnerOptions{})
	require.NoError(t, err)
	_, _, err = r.Do(t.Context(), idempotency.Key{ID: "1"}, nil, func(ctx context.Context) (idempotency.Response, error) {
		_, ok := idempotency.Decided(ctx)
		require.False(t, ok)
		idempotency.Decide(context.WithoutCancel(ctx), idempotency.Tombstone)
		decided, ok := idempotency.Decided(ctx)
		require.True(t, ok)
		require.Equal(t, idempotency.Tombstone, decided)
		return idempotency.Response{}, nil
	})
	require.NoError(t, err)
	_, ok := idempotency.Decided(t.Context())
	require.False(t, ok)
}
