package backlog_test

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/internal/backlog"
)

// What has ended makes room again, for as many tasks and as many bytes as before.
func TestRoom(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ tasks, size, most int }{
		"number":   {backlog.MostAnswers, 1, backlog.MostAnswers},
		"releases": {backlog.MostReleases, 0, backlog.MostReleases},
		"bytes":    {4, 8 << 20, backlog.MostAnswers},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, freed := backlog.New(), ""
			for range 2 {
				end, ended := make(chan struct{}), make(chan struct{}, test.tasks)
				for range test.tasks {
					run := func() bool {
						return b.Run(test.most, test.size, func() {
							<-end
							ended <- struct{}{}
						})
					}
					for !run() { // a task of the first round that has ended may still count for a moment
						require.NotEmpty(t, freed, "there is no room for all of them")
						runtime.Gosched()
					}
				}
				require.False(t, b.Run(test.most, test.size, func() {}))
				close(end)
				for range test.tasks {
					<-ended
				}
				freed = "the first round"
			}
			require.NoError(t, b.Shutdown(t.Context()))
			require.False(t, b.Run(test.most, test.size, func() {}), "after the end")
		})
	}
}

// Whoever gives up waiting ends the tasks, and is told how many there were.
func TestShutdownGivesUp(t *testing.T) {
	t.Parallel()
	b := backlog.New()
	for range 2 {
		require.True(t, b.Run(backlog.MostAnswers, 1, func() { <-b.Context.Done() }))
	}
	cause := errors.New("no time")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	err := b.Shutdown(ctx)
	require.ErrorIs(t, err, cause)
	require.ErrorContains(t, err, "2 operations are not settled")
	require.NoError(t, b.Shutdown(t.Context()), "they have ended")
}
