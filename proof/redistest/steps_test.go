package redistest_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/step"
)

// If Redis loses everything under the second attempt of an operation, the effects of the first attempt are unknown.
func TestStepsUnknownAfterFlush(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		for name, isRenewed := range map[string]bool{"seen by the step": false, "seen by a renewal": true} {
			t.Run(name, func(t *testing.T) {
				store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
				runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{
					Lease: 3 * time.Second, Logger: slog.New(slog.DiscardHandler),
				})
				require.NoError(t, err)
				sent := 0
				mail := func(ctx context.Context) error {
					_, err := step.AtMostOnce(ctx, "mail", func(context.Context) (int, error) {
						sent++
						return sent, nil
					}, nil)
					return err
				}
				attempt := func(run func(ctx context.Context)) {
					_, _, err := runner.Do(t.Context(), testservice.NumberedKey(1), nil,
						func(ctx context.Context) (idempotency.Response, error) {
							run(ctx)
							return idempotency.Response{}, testservice.ErrDown // causes another attempt
						})
					assert.Equal(t, testservice.ErrDown, err)
				}
				attempt(func(ctx context.Context) { assert.NoError(t, mail(ctx)) })
				attempt(func(ctx context.Context) {
					require.NoError(t, client.FlushAll(t.Context()).Err())
					if isRenewed {
						testservice.Until(t, func() bool { return client.DBSize(t.Context()).Val() > 0 })
					}
					assert.ErrorIs(t, mail(ctx), step.ErrUnknown)
				})
				attempt(func(ctx context.Context) { assert.ErrorIs(t, mail(ctx), step.ErrUnknown, "it stays unknown") })
				require.Equal(t, 1, sent)
				require.NoError(t, client.FlushAll(t.Context()).Err())
			})
		}
	})
}
