package dynamodbstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

// tries is how often a step is begun while the service, or the way to it, fails.
const tries = 4

// retry repeats a step that may be repeated: while the service lacks capacity until ctx ends, and a few times if it fails.
// Its error wraps [idempotency.ErrStoreBusy] if it was the capacity that was missing when ctx ended.
func retry(ctx context.Context, step func() error) error {
	throttled := error(nil)
	for n, failed := 0, 0; ; n++ {
		err := step()
		switch {
		case isThrottled(err):
			throttled = err
		case err == nil || isAnswer(err) || isRefusal(err) || failed == tries-1:
			return err
		default:
			failed++
		}
		if sqlstore.Pause(ctx, sqlstore.Growing(n, 5*time.Millisecond)) {
			continue
		}
		if throttled != nil {
			return fmt.Errorf("%w: %w", idempotency.ErrStoreBusy, errors.Join(ctx.Err(), err))
		}
		return err
	}
}

// isRefusal reports whether a step has found that it must not be done.
func isRefusal(err error) bool {
	return errors.Is(err, idempotency.ErrRecordInvalid) || errors.Is(err, idempotency.ErrStoreFull) || errors.Is(err, ErrClock)
}
