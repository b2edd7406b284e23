// Redis keeps the records in Redis: in the one at REDIS_ADDR, or else in an embedded miniredis. It ends with the line
//
//	operations: 1, requests: 3, charges: 1
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
)

func main() {
	addr := os.Getenv("REDIS_ADDR")
	if addr == "" {
		embedded, err := miniredis.Run()
		demo.Check(err)
		defer embedded.Close()
		addr = embedded.Addr()
	}
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	demo.Check(client.Ping(context.Background()).Err())

	// What does the promise rest on? A payment service might refuse to start on some of the findings.
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	if findings := store.Check(context.Background()); findings != nil {
		fmt.Printf("Check: %v\n\n", findings)
	} else {
		fmt.Print("Check: no findings\n\n")
	}

	idem, err := idempotency.New(store, demo.User, idempotency.Options{})
	demo.Check(err)
	var shop demo.Shop
	mux := http.NewServeMux()
	mux.Handle("POST /payments", idem.Handler(&shop))
	shop.Visit(demo.Authenticate(mux), "/payments")
}
