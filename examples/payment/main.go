// Payment is a shop that charges cards at a payment provider, with its records in the PostgreSQL at DATABASE_URL or
// else in a private one. The shop is killed when the provider has charged a card and the shop does not know it yet. No
// transaction reaches that far. But the next attempt, when the lease has lapsed, asks the provider with the same key,
// and the provider is guarded as well. It ends with the line
//
//	attempts of the shop: 2, requests to the provider: 2, keys: 1, charges: 1, payments: 1
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/database"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/internal/process"
	"github.com/idempotency-go/idempotency/pgxstore"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if process.IsService() {
		newShop(ctx).serve()
		return
	}
	pool, drop := database.Create(ctx)
	defer drop()
	demo.Check(pgxstore.Migrate(ctx, pool, pgxstore.Options{}))
	_, err := pool.Exec(ctx, "CREATE TABLE payments (operation uuid PRIMARY KEY, receipt text)")
	demo.Check(err)
	provider := newProvider()
	bank := httptest.NewServer(provider)
	defer bank.Close()

	shop := process.New()
	shop.Start(ctx, "PROVIDER_URL="+bank.URL)
	key := uuid.NewString()
	answer := make(chan string)
	go func() { answer <- pay(ctx, shop.URL, key) }()
	<-provider.charged
	shop.Kill()
	fmt.Println("shop:     killed after the provider has charged the card")
	shop.Start(ctx, "PROVIDER_URL="+bank.URL)
	defer shop.Kill()
	first := <-answer
	fmt.Println("client:  ", first)
	retry := pay(ctx, shop.URL, key)
	fmt.Println("client:  ", retry)

	var attempts, payments int
	demo.Check(pool.QueryRow(ctx, "SELECT attempt, (SELECT count(*) FROM payments) FROM idempotency_records WHERE key = $1",
		key).Scan(&attempts, &payments))
	verdict := fmt.Sprintf("attempts of the shop: %d, %v, payments: %d", attempts, provider, payments)
	fmt.Println(verdict)
	promise := "attempts of the shop: 2, requests to the provider: 2, keys: 1, charges: 1, payments: 1"
	if verdict != promise || retry != first+", replayed" {
		log.Fatal("this is broken")
	}
}

// pay sends a payment until it is answered.
func pay(ctx context.Context, url, key string) (answer string) {
	ctx = idempotency.WithKey(ctx, key)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/payments", strings.NewReader("4200"))
	demo.Check(err)
	client := http.Client{Transport: &idempotency.Transport{Hosts: []string{"127.0.0.1"}, MaxAttempts: 10}}
	resp, err := client.Do(req)
	demo.Check(err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	demo.Check(err)
	answer = fmt.Sprint(resp.Status, " ", string(body))
	if resp.Header.Get("Idempotent-Replayed") == "true" {
		answer += ", replayed"
	}
	return answer
}
