package idempotency_test

import (
	"context"
	"log"

	"github.com/idempotency-go/idempotency"
	"github.com/redis/go-redis/v9"
)

func ExampleNewRedisStore() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer client.Close()
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	if err := store.Check(context.Background()); err != nil {
		log.Print(err) // settings of the server that weaken the promise, each with its risk
	}
	idem, err := idempotency.New(store, account, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	_ = idem.Handler
}
