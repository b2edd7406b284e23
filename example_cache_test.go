package idempotency_test

import (
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idempotency-go/idempotency"
)

// Clients that retry at once, and those that retry while Redis is down, get the stored answer from the memory of the
// process. An operator who deletes a record in Redis waits for MaxAge until no process replays it any more.
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
