package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/idempotency-go/idempotency"
)

// switchable is a Store that can be down.
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

// A Cache replays an answer while the store is down. A new key needs the store.
func ExampleCache() {
	store := &switchable{Store: idempotency.NewMemoryStore(idempotency.MemoryOptions{})} // stands for one behind a network
	cache := idempotency.NewCache(store, idempotency.CacheOptions{})
	idem, err := idempotency.New(cache, idempotency.SingleUser, idempotency.Options{Logger: slog.New(slog.DiscardHandler)})
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

// Wrapping a store is enough to count its steps, to log them, or to make it fail in a test.
func ExampleStore() {
	store := &switchable{Store: idempotency.NewMemoryStore(idempotency.MemoryOptions{}), down: true}
	opts := idempotency.Options{FailOpen: true, Logger: slog.New(slog.DiscardHandler)}
	idem, err := idempotency.New(store, idempotency.SingleUser, opts)
	if err != nil {
		log.Fatal(err)
	}
	handler := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		op, _ := idempotency.FromContext(r.Context())
		fmt.Println("attempt", op.Attempt, op.DownstreamKey("charge"))
	}))
	for range 2 {
		r := httptest.NewRequest("POST", "/payments", nil)
		r.Header.Set("Idempotency-Key", "1")
		handler.ServeHTTP(httptest.NewRecorder(), r)
	}
	// Output:
	// attempt 0 e47137d2-7929-5e00-be29-51573412aa45
	// attempt 0 e47137d2-7929-5e00-be29-51573412aa45
}

// A MemoryStore has bounds: one user cannot take the room of the others.
func ExampleNewMemoryStore() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: 64 << 10, MaxUserBytes: 8 << 10})
	user := func(r *http.Request) (string, error) { return r.Header.Get("X-User"), nil }
	idem, err := idempotency.New(store, user, idempotency.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	handler := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, strings.Repeat("x", 1<<10))
	}))
	send := func(user string, key int) int {
		r := httptest.NewRequest("POST", "/payments", nil)
		r.Header.Set("X-User", user)
		r.Header.Set("Idempotency-Key", fmt.Sprint(key))
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Code
	}
	answers := map[int]int{}
	for key := range 50 {
		answers[send("mallory", key)]++
	}
	fmt.Println("mallory refused:", answers[http.StatusTooManyRequests] > 0)
	fmt.Println("alice:", send("alice", 1))
	// Output:
	// mallory refused: true
	// alice: 200
}

// A service weighs what Check has found. This one may lose its records with the power, and nothing else.
func ExampleRedisStore_Check() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer client.Close()
	err := idempotency.NewRedisStore(client, idempotency.RedisOptions{}).Check(context.Background())
	for _, finding := range idempotency.Findings(err) {
		unsafe, ok := errors.AsType[*idempotency.UnsafeSetting](finding)
		if !ok || !strings.HasPrefix(unsafe.Setting, "append") {
			log.Fatal(finding) // or Redis does not answer
		}
		log.Print(unsafe.Node, unsafe.Setting, unsafe.Value, unsafe.Risk)
	}
}
