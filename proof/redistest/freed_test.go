package redistest_test

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// sentCommands is a hook that records the commands of a client.
type sentCommands struct {
	mu   sync.Mutex
	sent [][]any
}

func (*sentCommands) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (s *sentCommands) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.mu.Lock()
		args := make([]any, len(cmd.Args()))
		for i, arg := range cmd.Args() { // go-redis may reuse the buffer of an argument
			if args[i] = arg; i > 0 {
				if text, ok := arg.([]byte); ok {
					args[i] = slices.Clone(text)
				}
			}
		}
		s.sent = append(s.sent, args)
		s.mu.Unlock()
		return next(ctx, cmd)
	}
}

func (*sentCommands) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// go-redis has sent a claiming command twice. When the first copy arrives, the handler has run and freed the key.
// The late copy must claim nothing, because no attempt would renew or release the claim.
func TestLateClaimOfAFreedKey(t *testing.T) {
	testservice.OnRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		for name, before := range map[string]bool{"new key": false, "key that was freed before": true} {
			t.Run(name, func(t *testing.T) {
				require.NoError(t, client.FlushAll(t.Context()).Err())
				own := testservice.NewRedisClient(t, client.Options().Addr, testservice.WithContextTimeout)
				sent := &sentCommands{}
				own.AddHook(sent)
				store := idempotency.NewRedisStore(own, idempotency.RedisOptions{})
				key, request := testservice.NumberedKey(1), testservice.AttemptFor(time.Hour)
				free := func(request idempotency.ClaimRequest) (late [][]any) {
					record, claim, err := store.Begin(t.Context(), key, request)
					require.NoError(t, err)
					require.NotNil(t, claim, "the key is not free: %+v", record)
					require.Equal(t, 1, record.Attempt)
					late = slices.Clone(sent.sent)
					require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: 0}))
					return late
				}
				if before {
					free(request)
				}
				sent.sent = nil
				for _, command := range free(request) {
					_ = client.Do(t.Context(), command...).Err() // a SET that finds a record returns nil
				}
				request.TakeOver = false
				request.Fingerprint[0]++
				free(request)
			})
		}
	})
}
