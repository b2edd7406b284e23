package idempotency_test

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/redis/go-redis/v9"
)

// redisLog gives to slog what go-redis has to say. What this means for a request is said by the middleware, at the level ERROR.
type redisLog struct{}

func (redisLog) Printf(ctx context.Context, format string, values ...any) {
	slog.DebugContext(ctx, "go-redis: "+fmt.Sprintf(format, values...))
}

// go-redis writes to stderr, unless it is given a logger.
func ExampleNewRedisStore_logger() {
	redis.SetLogger(redisLog{}) // for all clients of the process
}
