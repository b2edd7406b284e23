// Migrate moves a service from a table of its own to the middleware while it serves. Instances of the old version and of
// the new one run side by side, in front of one PostgreSQL, and clients send each order to both at once. Then the old
// instance stops. At last it comes back, as after a failed release. Package changeover keeps each order from being paid
// twice. Without DATABASE_URL the server is a private one. The program ends with the line
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

	before := httptest.NewServer(demo.Authenticate(&oldVersion{pool}))
	after := httptest.NewServer(demo.Authenticate(newVersion(pool)))
	c := &clients{answers: make(map[int]string)}
	c.send(0, 20, before.URL) // before the release
	c.send(40, 60, after.URL) // during the release
	for range 3 {
		c.send(0, 60, before.URL, after.URL) // to both at once
	}
	before.Close()
	c.send(0, 60, after.URL) // after the release
	before = httptest.NewServer(demo.Authenticate(&oldVersion{pool}))
	c.send(20, 40, before.URL) // after the release was taken back
	c.send(0, 60, before.URL)
	before.Close()
	after.Close()

	verdict := c.verdict(ctx, pool)
	fmt.Println(verdict)
	if verdict != "60 orders, each sent 9 times: 50 payments, 10 refusals, one answer for each order" {
		log.Fatal("this is broken")
	}
}

// clients send orders, and know the answers.
type clients struct {
	mu      sync.Mutex
	answers map[int]string // by order
	sent    int
}

// send sends the orders in a range to each of the addresses at once, until there is an answer.
func (c *clients) send(from, to int, urls ...string) {
	var all sync.WaitGroup
	for order := from; order < to; order++ {
		for _, url := range urls {
			all.Go(func() { c.compare(order, finalAnswer(url, order)) })
		}
	}
	all.Wait()
}

// compare ends the program if an order has two answers.
func (c *clients) compare(order int, answer string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent++
	if first, ok := c.answers[order]; ok && first != answer {
		log.Fatalf("this is broken: order %d has the answers %q and %q", order, first, answer)
	}
	c.answers[order] = answer
}

// finalAnswer sends an order again as long as it is running somewhere. Every sixth order is too large.
func finalAnswer(url string, order int) string {
	amount := order + 1
	if order%6 == 0 {
		amount += 100
	}
	for giveUp := time.Now().Add(time.Minute); time.Now().Before(giveUp); time.Sleep(10 * time.Millisecond) {
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

// verdict compares the answers with the table of payments.
func (c *clients) verdict(ctx context.Context, pool *pgxpool.Pool) string {
	refusals := 0
	for order, answer := range c.answers {
		var paid int
		count := pool.QueryRow(ctx, "SELECT count(*) FROM payments WHERE key = $1", fmt.Sprint("order-", order))
		demo.Check(count.Scan(&paid))
		want := 1
		if strings.HasPrefix(answer, "422") {
			refusals++
			want = 0
		}
		if paid != want {
			log.Fatalf("this is broken: order %d with the answer %q was paid %d times", order, answer, paid)
		}
	}
	return fmt.Sprintf("%d orders, each sent %d times: %d payments, %d refusals, one answer for each order",
		len(c.answers), c.sent/len(c.answers), len(c.answers)-refusals, refusals)
}
