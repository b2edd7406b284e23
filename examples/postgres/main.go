// Postgres moves money between two accounts, in the PostgreSQL at DATABASE_URL or else in a private one. The bookings
// of a transfer and the record of its answer are committed together. The service is killed between the two bookings of
// a transfer, after both of them, and then at random. All clients try again until they have an answer. At the end alice
// wants to transfer more than she can: that is booked, seen to be too much, and refused; so the bookings are rolled back.
//
// Nothing else keeps a transfer from being booked twice: the ledger has no unique constraint. It ends with the line
//
//	201 transfers, 22 deaths, 201 booked once, 201 answers replayed, 422 for one too large, balances: -20301 and 20301
package main

import (
	"context"
	"fmt"
	"log"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency/examples/internal/database"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/internal/process"
	"github.com/idempotency-go/idempotency/pgxstore"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if process.IsService() {
		serve(ctx)
		return
	}
	pool, drop := database.Create(ctx)
	defer drop()
	demo.Check(pgxstore.Migrate(ctx, pool, pgxstore.Options{}))
	_, err := pool.Exec(ctx, "CREATE TABLE bookings (transfer text, account text, amount bigint)")
	demo.Check(err)

	service := process.New()
	clients := newClients(service.URL)
	clients.transfer(ctx, 1)
	for _, place := range []string{"between the two bookings", "after both bookings"} {
		service.Start(ctx, "HALT="+place)
		service.AwaitHalt()
		service.Kill()
		fmt.Println("service killed", place)
	}
	service.Start(ctx)
	defer service.Kill()
	clients.await(2)
	for range 20 {
		clients.transfer(ctx, 10)
		early := rand.IntN(20)
		clients.await(early)
		time.Sleep(rand.N(2 * time.Millisecond))
		service.Kill()
		service.Start(ctx)
		clients.await(20 - early)
	}
	fmt.Println("service killed at 20 random moments")

	replayed := clients.replay(ctx)
	refused := clients.overdraw(ctx)
	verdict := fmt.Sprintf("%d transfers, %d deaths, %s, %d answers replayed, %d for one too large, %s", len(clients.transfers),
		service.Deaths, query(ctx, pool, bookedOnce), replayed, refused.status, query(ctx, pool, balances))
	fmt.Println(verdict)
	if verdict != "201 transfers, 22 deaths, 201 booked once, 201 answers replayed, 422 for one too large, balances: -20301 and 20301" {
		log.Fatal("this is broken")
	}
}

const (
	bookedOnce = `SELECT count(*) || ' booked once' FROM (
		SELECT FROM bookings GROUP BY transfer HAVING array_agg(account ORDER BY account) = '{alice,bob}' AND sum(amount) = 0
	) AS balanced`
	balances = `SELECT 'balances: ' || sum(amount) FILTER (WHERE account = 'alice') || ' and ' ||
		sum(amount) FILTER (WHERE account = 'bob') FROM bookings`
)

func query(ctx context.Context, pool *pgxpool.Pool, sql string) string {
	rows, err := pool.Query(ctx, sql)
	demo.Check(err)
	text, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[string])
	demo.Check(err)
	return text
}
