package kept

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

func openRedis(connections int) (*Target, error) {
	t := &Target{}
	server, err := servertest.StartRedis()
	if err != nil {
		return t.opened(err)
	}
	t.closers = append(t.closers, server.Close)
	client := redis.NewClient(&redis.Options{
		Addr: server.Addr(), Password: servertest.RedisPassword(), ContextTimeoutEnabled: true, PoolSize: connections,
	})
	t.closers = append(t.closers, func() { _ = client.Close() })
	t.Store = idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	t.Size = func() (int64, error) {
		info, err := client.InfoMap(context.Background(), "memory").Result()
		if err != nil {
			return 0, err
		}
		return strconv.ParseInt(info["Memory"]["used_memory_dataset"], 10, 64)
	}
	t.Copy = func(ctx context.Context, key idempotency.Key, n int, end time.Time) error {
		const batch = 10_000
		digest := key.Digest()
		original := []string{"idempotency:{" + hex.EncodeToString(digest[:]) + "}"}
		for done := 0; done < n; done += batch {
			if err := copies.Run(ctx, client, original, min(batch, n-done), end.UnixMilli(), rand.Text()).Err(); err != nil {
				return err
			}
		}
		return nil
	}
	return t.opened(nil)
}

// copies stores the record KEYS[1] under ARGV[1] names of the same length, until ARGV[2]. They follow from ARGV[3].
var copies = redis.NewScript(`
local record = redis.call('GET', KEYS[1])
for i = 1, ARGV[1] do
	local name = redis.sha1hex(ARGV[3] .. i) .. redis.sha1hex(i)
	redis.call('SET', 'idempotency:{' .. string.sub(name, 1, 64) .. '}', record, 'PXAT', ARGV[2])
end
return ARGV[1]`)
