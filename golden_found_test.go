package idempotency_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// foundDone requires the answer that the handler has given.
func foundDone(t *testing.T, s *goldenService, got *goldenAnswer) {
	t.Helper()
	require.Zero(t, s.runs.Load(), "the record was not found")
	first := newGoldenService(t, s.name, s.golden)
	want := first.ask(goldenBody)
	if want.status == http.StatusInternalServerError {
		want = first.ask(goldenBody)
	}
	requireReplay(t, want.answer, got.answer)
	require.Equal(t, want.trailer, got.trailer)
	requireProblem(t, s.ask("another body").answer, http.StatusConflict, "key-reused")
}

func foundOmitted(status int) func(*testing.T, *goldenService, *goldenAnswer) {
	return func(t *testing.T, s *goldenService, got *goldenAnswer) {
		t.Helper()
		problem := requireProblem(t, got.answer, http.StatusConflict, "not-replayable")
		require.Equal(t, status, problem.OriginalStatus)
		require.Zero(t, s.runs.Load())
	}
}

// foundReleased requires that the next attempt has begun at the same operation.
func foundReleased(t *testing.T, s *goldenService, _ *goldenAnswer) {
	t.Helper()
	require.EqualValues(t, 1, s.runs.Load())
	require.Equal(t, 2, s.last.Attempt)
	names := redisKeys(t, s.client, "")
	require.Len(t, names, 1, "it has been found")
	require.Contains(t, s.client.Get(t.Context(), names[0]).Val(), " created=1763712000000\n", "the operation goes on")
	requireProblem(t, s.ask("another body").answer, http.StatusConflict, "key-reused")
}

// foundRunning requires that nothing runs before the lease has lapsed, and that the next attempt has begun then.
func foundRunning(t *testing.T, s *goldenService, got *goldenAnswer) {
	t.Helper()
	requireProblem(t, got.answer, http.StatusConflict, "in-progress")
	require.Zero(t, s.runs.Load())
	names := redisKeys(t, s.client, "")
	require.Len(t, names, 1)
	require.NoError(t, s.client.PExpire(t.Context(), names[0], goldenTTL-time.Minute).Err())
	require.Equal(t, http.StatusCreated, s.ask(goldenBody).status)
	require.EqualValues(t, 1, s.runs.Load())
	require.Equal(t, 2, s.last.Attempt)
}
