package idempotency_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// receipt has a field that JSON leaves out, so that a test can tell it from its stored form.
type receipt struct {
	ID     string    `json:"id"`
	Paid   time.Time `json:"paid"`
	Secret string    `json:"-"`
}

func TestDoJSONKeepsTheResult(t *testing.T) {
	t.Parallel()
	runner, err := idempotency.NewRunner(newSpyStore(), idempotency.RunnerOptions{})
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
	runner, err := idempotency.NewRunner(newSpyStore(), idempotency.RunnerOptions{})
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
	runner, err := idempotency.NewRunner(newSpyStore(), idempotency.RunnerOptions{})
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
	runner, err := idempotency.NewRunner(newSpyStore(), idempotency.RunnerOptions{})
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
