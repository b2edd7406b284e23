package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idempotency-go/idempotency"
)

// A service stops in this order: its server, then the middleware, then the client of the store.
func ExampleMiddleware_Shutdown() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	idem, err := idempotency.New(store, account, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Handler: authenticate(idem.Handler(http.HandlerFunc(createPayment)))}

	stop := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		return errors.Join(
			server.Shutdown(ctx), // waits for the handlers
			idem.Shutdown(ctx),   // waits for the answers that are not stored yet
			client.Close(),
		)
	}
	fmt.Println(stop())
	// Output: <nil>
}
