package gqlgenidempotency_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/99designs/gqlgen/graphql/handler"
	"github.com/99designs/gqlgen/graphql/handler/transport"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/gqlgenidempotency"
	"github.com/idempotency-go/idempotency/adapters/gqlgenidempotency/testdata/shop"
)

// A repeated payment gets the first answer. Package shop stands for the code that gqlgen generates from your schema.
func Example() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{}) // or NewRedisStore
	runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{})
	if err != nil {
		log.Fatal(err)
	}
	guard, err := gqlgenidempotency.New(runner, account, gqlgenidempotency.Options{
		Required: func(field string) bool { return field == "pay" },
	})
	if err != nil {
		log.Fatal(err)
	}
	server := handler.New(shop.New(shop.Resolvers{Pay: new(bank).pay}))
	server.AddTransport(transport.POST{})
	server.Use(guard)

	const pay = `{"query": "mutation { pay(input: {cents: 4200}) @idempotent(key: \"order-1\") { id cents } }"}`
	for range 2 {
		r := httptest.NewRequest(http.MethodPost, "/graphql", strings.NewReader(pay))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		authenticate(server).ServeHTTP(w, r)
		fmt.Println(w.Body)
	}
	// Output:
	// {"data":{"pay":{"id":"charge 1","cents":4200}}}
	// {"data":{"pay":{"id":"charge 1","cents":4200}},"extensions":{"idempotency":{"replayed":["pay"]}}}
}

type accountKey struct{}

// authenticate stands for your authentication.
func authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), accountKey{}, "alice")))
	})
}

// account returns the ID of the authenticated caller.
var account gqlgenidempotency.UserFunc = func(ctx context.Context) (string, error) {
	name, _ := ctx.Value(accountKey{}).(string)
	return name, nil
}

// bank charges cards.
type bank struct{ charges int }

// pay is the resolver of the mutation.
func (b *bank) pay(_ context.Context, cents int) (*shop.Order, error) {
	b.charges++
	return &shop.Order{ID: fmt.Sprint("charge ", b.charges), Cents: cents}, nil
}
