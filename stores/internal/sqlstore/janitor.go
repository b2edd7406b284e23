package sqlstore

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"
)

// Janitor calls maintain at once, and then every interval, plus or minus a tenth, until ctx ends. An interval of zero
// means five minutes. Each call of maintain has a timeout of interval, or of a minute if interval is shorter. Janitor
// passes errors of maintain to failed, or logs the errors if failed is nil.
func Janitor(ctx context.Context, interval time.Duration, maintain func(context.Context) error, failed func(error)) {
	if interval <= 0 {
		interval = 5 * time.Minute
	}
	if failed == nil {
		failed = func(err error) { slog.ErrorContext(ctx, err.Error()) }
	}
	for {
		turn, end := context.WithTimeout(ctx, max(interval, time.Minute)) // a server may never reply
		if err := maintain(turn); err != nil && ctx.Err() == nil {
			failed(err)
		}
		end()
		select {
		case <-time.After(interval - interval/10 + rand.N(interval/5+1)):
		case <-ctx.Done():
			return
		}
	}
}
