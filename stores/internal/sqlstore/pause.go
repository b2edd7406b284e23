package sqlstore

import (
	"context"
	"math/rand/v2"
	"time"
)

// Pause waits, and reports whether ctx has not ended by then.
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

// Growing returns a pause that doubles each time, from first up to a tenth of a second, less up to a half at random: none
// if times is less than zero.
func Growing(times int, first time.Duration) time.Duration {
	if times < 0 {
		return 0
	}
	d := min(first<<min(times, 10), 100*time.Millisecond)
	return d/2 + rand.N(d/2)
}

// TimeLeft returns how long it is to the deadline of ctx, and a second if it has none.
func TimeLeft(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return time.Until(deadline)
	}
	return time.Second
}
