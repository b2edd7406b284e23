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
	"github.com/idempotency-go/idempotency/gqlgenidempotency"
	"github.com/idempotency-go/idempotency/gqlgenidempotency/testdata/shop"
)

// A payment that is sent again gets the first answer. Package shop is what gqlgen has generated.
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
	server := handler.New(shop.NewExecutableSchema(shop.Config{Resolvers: &bank{}}))
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

// authenticate stands for the authentication that you have.
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

// bank has the resolvers. Those that the example does not need are nil.
type bank struct {
	shop.ResolverRoot
	shop.MutationResolver
	charges int
}

func (b *bank) Mutation() shop.MutationResolver { return b }

func (b *bank) Pay(_ context.Context, input shop.PayInput) (*shop.Order, error) {
	b.charges++
	return &shop.Order{ID: fmt.Sprint("charge ", b.charges), Cents: input.Cents}, nil
}
