package database

import (
	"context"
	"crypto/rand"
	"errors"
	"log"
	"os"
	"os/exec"

	"github.com/redis/go-redis/v9"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

// CreateRedis chooses a prefix for records in the Redis at REDIS_URL or, if the variable is not set, in a private server. After
// CreateRedis, ConnectRedis uses the same prefix, in this process and in its children. empty removes all records with the
// prefix. drop removes them too, closes the connection, and stops a private server.
func CreateRedis(ctx context.Context) (empty, drop func()) {
	stop := func() {}
	if os.Getenv("REDIS_URL") == "" {
		server, err := servertest.StartRedis()
		if errors.Is(err, exec.ErrNotFound) {
			log.Fatalf("%v: install it, or set REDIS_URL", err)
		}
		demo.Check(err)
		demo.Check(os.Setenv("REDIS_URL", "redis://:"+servertest.RedisPassword()+"@"+server.Addr()))
		stop = server.Close
	}
	demo.Check(os.Setenv("REDIS_PREFIX", "example-"+rand.Text()+":"))
	client := connectRedis()
	empty = func() {
		records := client.Scan(ctx, 0, os.Getenv("REDIS_PREFIX")+"*", 1000).Iterator()
		for records.Next(ctx) {
			demo.Check(client.Del(ctx, records.Val()).Err())
		}
		demo.Check(records.Err())
	}
	return empty, func() {
		empty()
		demo.Check(client.Close())
		stop()
	}
}

// ConnectRedis returns a store with the prefix of CreateRedis.
func ConnectRedis() *idempotency.RedisStore {
	return idempotency.NewRedisStore(connectRedis(), idempotency.RedisOptions{Prefix: os.Getenv("REDIS_PREFIX")})
}

func connectRedis() *redis.Client {
	options, err := redis.ParseURL(os.Getenv("REDIS_URL"))
	demo.Check(err)
	return redis.NewClient(options)
}
