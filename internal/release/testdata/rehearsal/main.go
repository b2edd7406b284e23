// Rehearsal is a service as its users write it: a route of gin that is guarded, with its records in the PostgreSQL at
// DATABASE_URL. It sends itself a payment twice, and fails unless the second answer is the first one.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/ginidempotency"
	"github.com/idempotency-go/idempotency/pgxstore"
)

func main() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	check(err)
	defer pool.Close()
	check(pgxstore.Migrate(ctx, pool, pgxstore.Options{}))
	m, err := idempotency.New(pgxstore.New(pool, pgxstore.Options{}), idempotency.SingleUser, idempotency.Options{})
	check(err)

	gin.SetMode(gin.ReleaseMode)
	charges := 0
	e := gin.New()
	e.POST("/payments", ginidempotency.Middleware(m), func(c *gin.Context) {
		charges++
		c.String(http.StatusCreated, "charge %d", charges)
	})
	server := httptest.NewServer(e)
	defer server.Close()

	first, replay := pay(server.URL), pay(server.URL)
	check(m.Shutdown(ctx))
	if first != "201 charge 1 " || replay != "201 charge 1 true" {
		log.Fatalf("answers %q and %q", first, replay)
	}
}

// pay sends a payment, and returns the status, the body and whether the answer is a replay.
func pay(url string) string {
	r, err := http.NewRequest(http.MethodPost, url+"/payments", strings.NewReader(`{"amount":4200}`))
	check(err)
	r.Header.Set("Idempotency-Key", "order-1")
	resp, err := http.DefaultClient.Do(r)
	check(err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	check(err)
	return fmt.Sprintf("%d %s %s", resp.StatusCode, body, resp.Header.Get("Idempotent-Replayed"))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
