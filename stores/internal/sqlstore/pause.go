package sqlstore

import (
	"context"
	"math/rand/v2"
	"time"
)

// Pause waits for d or the end of ctx, and reports whether ctx is still open.
func Pause(ctx context.Context, d time.Duration) bool {
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	return ctx.Err() == nil
}

// Growing returns the pause before a repetition. The pause is first, doubled for each of times, at most a tenth of a
// second, less a random part of up to a half. If times is less than zero, the pause is zero.
func Growing(times int, first time.Duration) time.Duration {
	if times < 0 {
		return 0
	}
	d := min(first<<min(times, 10), 100*time.Millisecond)
	return d/2 + rand.N(d/2)
}

// TimeLeft returns the time until the deadline of ctx, or a second without a deadline.
func TimeLeft(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return time.Until(deadline)
	}
	return time.Second
}
