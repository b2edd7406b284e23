// Migrate moves a running service from its own table of keys to the middleware. An instance of the old version and an instance of
// the new version run side by side, with the same PostgreSQL, and clients send each order to both at once. Then the old instance
// stops. At the end, the old version starts again, as after a failed release. Package changeover keeps each order from being paid
// twice. The database is the PostgreSQL at DATABASE_URL, or else a private server. The program ends with the line
//
//	60 orders, each sent 9 times: 50 payments, 10 refusals, one answer for each order
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency/examples/internal/database"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

func main() {
	ctx := context.Background()
	pool, drop := database.Create(ctx)
	defer drop()
	_, err := pool.Exec(ctx, schema)
	demo.Check(err)
	demo.Check(pgxstore.Migrate(ctx, pool, pgxstore.Options{}))

	oldServer := httptest.NewServer(demo.Authenticate(&oldVersion{pool}))
	newServer := httptest.NewServer(demo.Authenticate(newVersion(pool)))
	customers := &clients{answerByOrder: make(map[int]string)}
	customers.sendOrders(0, 20, oldServer.URL)  // before the release
	customers.sendOrders(40, 60, newServer.URL) // during the release
	for range 3 {
		customers.sendOrders(0, 60, oldServer.URL, newServer.URL) // to both at once
	}
	oldServer.Close()
	customers.sendOrders(0, 60, newServer.URL) // after the release
	oldServer = httptest.NewServer(demo.Authenticate(&oldVersion{pool}))
	customers.sendOrders(20, 40, oldServer.URL) // after the release was taken back
	customers.sendOrders(0, 60, oldServer.URL)
	oldServer.Close()
	newServer.Close()

	verdict := customers.checkPayments(ctx, pool)
	fmt.Println(verdict)
	if verdict != "60 orders, each sent 9 times: 50 payments, 10 refusals, one answer for each order" {
		log.Fatal("this is broken")
	}
}

// clients send orders, and compare the answers.
type clients struct {
	mu            sync.Mutex
	answerByOrder map[int]string
	requestCount  int
}

// sendOrders sends the orders in the range [from, to) to each of urls at once, and waits for all answers.
func (c *clients) sendOrders(from, to int, urls ...string) {
	var all sync.WaitGroup
	for order := from; order < to; order++ {
		for _, url := range urls {
			all.Go(func() { c.storeAnswer(order, awaitAnswer(url, order)) })
		}
	}
	all.Wait()
}

// storeAnswer stores answer, and ends the program if an earlier answer to order was different.
func (c *clients) storeAnswer(order int, answer string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requestCount++
	if first, ok := c.answerByOrder[order]; ok && first != answer {
		log.Fatalf("this is broken: order %d has the answers %q and %q", order, first, answer)
	}
	c.answerByOrder[order] = answer
}

// awaitAnswer sends order to url, repeats the request while the answer is 409 or 503, and returns the final answer. The amount of
// every sixth order is too large.
func awaitAnswer(url string, order int) string {
	amount := order + 1
	if order%6 == 0 {
		amount += 100
	}
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(fmt.Sprint(amount)))
		demo.Check(err)
		req.SetBasicAuth("alice", "secret")
		req.Header.Set("Idempotency-Key", fmt.Sprint("order-", order))
		resp, err := http.DefaultClient.Do(req)
		demo.Check(err)
		body, err := io.ReadAll(resp.Body)
		demo.Check(err)
		demo.Check(resp.Body.Close())
		if resp.StatusCode != http.StatusConflict && resp.StatusCode != http.StatusServiceUnavailable {
			return fmt.Sprint(resp.StatusCode, " ", string(body))
		}
	}
	log.Fatalf("this is broken: order %d has no answer", order)
	return ""
}

// checkPayments compares the answers with the table of payments, and returns the last line of the program.
func (c *clients) checkPayments(ctx context.Context, pool *pgxpool.Pool) string {
	refusals := 0
	for order, answer := range c.answerByOrder {
		var paymentCount int
		count := pool.QueryRow(ctx, "SELECT count(*) FROM payments WHERE key = $1", fmt.Sprint("order-", order))
		demo.Check(count.Scan(&paymentCount))
		want := 1
		if strings.HasPrefix(answer, "422") {
			refusals++
			want = 0
		}
		if paymentCount != want {
			log.Fatalf("this is broken: order %d with the answer %q was paid %d times", order, answer, paymentCount)
		}
	}
	return fmt.Sprintf("%d orders, each sent %d times: %d payments, %d refusals, one answer for each order",
		len(c.answerByOrder), c.requestCount/len(c.answerByOrder), len(c.answerByOrder)-refusals, refusals)
}
