package idempotency_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/idempotency-go/idempotency"
)

// withHost binds keys to the host as well. The router must refuse hosts that are not the service's own.
func withHost(r *http.Request) string {
	return strings.ToLower(r.Host) + " " + idempotency.DefaultEndpoint(r)
}

// One mux answers for several hosts. The same key at two of them names two operations.
func ExampleOptions_hosts() {
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser,
		idempotency.Options{Endpoint: withHost})
	if err != nil {
		panic(err)
	}
	payments := idem.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		op, _ := idempotency.FromContext(r.Context())
		fmt.Println("runs", op.Key.Endpoint)
	}))
	for _, url := range []string{"http://north.example/payments", "http://south.example/payments", "http://NORTH.example/payments"} {
		r := httptest.NewRequest("POST", url, nil)
		r.Header.Set("Idempotency-Key", "1")
		payments.ServeHTTP(httptest.NewRecorder(), r)
	}
	// Output:
	// runs north.example POST /payments
	// runs south.example POST /payments
}

// Two versions of an API are two endpoints, unless Endpoint gives them one name. A client that moves to the new
// version between two attempts then makes one operation.
func ExampleOptions_versions() {
	sameAsV1 := func(r *http.Request) string {
		return strings.Replace(idempotency.DefaultEndpoint(r), " /v2/", " /v1/", 1)
	}
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser,
		idempotency.Options{Endpoint: sameAsV1})
	if err != nil {
		panic(err)
	}
	payments := idem.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		fmt.Println("runs", r.URL.Path)
	}))
	for _, url := range []string{"/v1/payments", "/v2/payments", "/v2/refunds"} {
		r := httptest.NewRequest("POST", url, nil)
		r.Header.Set("Idempotency-Key", "1")
		w := httptest.NewRecorder()
		payments.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Header()["Idempotent-Replayed"])
	}
	// Output:
	// runs /v1/payments
	// 200 []
	// 200 [true]
	// runs /v2/refunds
	// 200 []
}

// Services that share a Redis have a prefix each.
func ExampleRedisOptions_prefix() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer client.Close()
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: "staging:payments:idempotency:"})
	_ = store
}
