package idempotency_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/internal/testservice"
)

// foundDone requires the answer that the handler has given.
func foundDone(t *testing.T, s *goldenService, got *goldenAnswer) {
	t.Helper()
	require.Zero(t, s.Runs.Load(), "the record was not found")
	first := newGoldenService(t, s.name, s.golden)
	want := first.ask(goldenBody)
	if want.Status == http.StatusInternalServerError {
		want = first.ask(goldenBody)
	}
	testservice.RequireReplay(t, want.Answer, got.Answer)
	require.Equal(t, want.trailer, got.trailer)
	testservice.RequireProblem(t, s.ask("another body").Answer, http.StatusConflict, "key-reused")
}

func foundOmitted(status int) func(*testing.T, *goldenService, *goldenAnswer) {
	return func(t *testing.T, s *goldenService, got *goldenAnswer) {
		t.Helper()
		problem := testservice.RequireProblem(t, got.Answer, http.StatusConflict, "not-replayable")
		require.Equal(t, status, problem.OriginalStatus)
		require.Zero(t, s.Runs.Load())
	}
}

// foundReleased requires that the next attempt has begun at the same operation.
func foundReleased(t *testing.T, s *goldenService, _ *goldenAnswer) {
	t.Helper()
	require.EqualValues(t, 1, s.Runs.Load())
	require.Equal(t, 2, s.last.Attempt)
	names := testservice.RedisKeys(t, s.client, "")
	require.Len(t, names, 1, "it has been found")
	require.Contains(t, s.client.Get(t.Context(), names[0]).Val(), " created=1763712000000\n", "the operation goes on")
	testservice.RequireProblem(t, s.ask("another body").Answer, http.StatusConflict, "key-reused")
}

// foundRunning requires that nothing runs before the lease has lapsed, and that the next attempt has begun then.
func foundRunning(t *testing.T, s *goldenService, got *goldenAnswer) {
	t.Helper()
	testservice.RequireProblem(t, got.Answer, http.StatusConflict, "in-progress")
	require.Zero(t, s.Runs.Load())
	names := testservice.RedisKeys(t, s.client, "")
	require.Len(t, names, 1)
	require.NoError(t, s.client.PExpire(t.Context(), names[0], goldenTTL-time.Minute).Err())
	require.Equal(t, http.StatusCreated, s.ask(goldenBody).Status)
	require.EqualValues(t, 1, s.Runs.Load())
	require.Equal(t, 2, s.last.Attempt)
}
