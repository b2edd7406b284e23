package idempotency_test

import (
	"bytes"
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/testservice"
)

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
