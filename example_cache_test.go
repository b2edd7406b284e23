package idempotency_test

import (
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idempotency-go/idempotency"
)

// The memory of the process has the stored answer for clients that retry at once, or while Redis is down. If an
// operator deletes a record in Redis, a process may still replay it for up to MaxAge.
func ExampleNewCache() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer client.Close()
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	cached := idempotency.NewCache(store, idempotency.CacheOptions{MaxAge: 10 * time.Second})
	idem, err := idempotency.New(cached, account, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	_ = idem.Handler
}
