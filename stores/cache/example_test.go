package cache_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/cache"
)

// The memory of the process has the stored answer for clients that retry at once, or while Redis is down. If an
// operator deletes a record in Redis, a process may still replay it for up to MaxAge.
func ExampleNew() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer client.Close()
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	cached := cache.New(store, cache.Options{MaxAge: 10 * time.Second})
	idem, err := idempotency.New(cached, idempotency.SingleUser, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	_ = idem.Handler
}

// switchable is a store that can be down.
type switchable struct {
	idempotency.Store
	down bool
}

func (s *switchable) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	if s.down {
		return idempotency.Record{}, nil, errors.New("connection refused")
	}
	return s.Store.Begin(ctx, key, request)
}

// A cache replays an answer while the store is down. A new key needs the store.
func ExampleStore() {
	store := &switchable{Store: idempotency.NewMemoryStore(idempotency.MemoryOptions{})} // stands for one behind a network
	opts := idempotency.Options{Logger: slog.New(slog.DiscardHandler)}
	idem, err := idempotency.New(cache.New(store, cache.Options{}), idempotency.SingleUser, opts)
	if err != nil {
		log.Fatal(err)
	}
	handler := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "paid") }))
	for _, key := range []string{"order-1", "order-1", "order-2"} {
		r := httptest.NewRequest("POST", "/payments", nil)
		r.Header.Set("Idempotency-Key", key)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Println(key, w.Code)
		store.down = true
	}
	// Output:
	// order-1 200
	// order-1 200
	// order-2 503
}
