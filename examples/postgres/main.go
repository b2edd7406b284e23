// Postgres moves money between two accounts, in the PostgreSQL at DATABASE_URL or else in a private one. The two bookings
// of a transfer are a step: they are committed together with its result. The service is killed at each point of a
// transfer, and then at random, and the clients try again. At the end alice wants to transfer more than she can: the step
// books that, sees that it is too much, and returns an error; so the bookings are rolled back.
//
// Nothing else keeps a transfer from being booked twice: the ledger has no unique constraint. It ends with the line
//
//	81 orders, 13 deaths: 81 booked once, 81 answers replayed, one too large: 422, balances: -3321 and 3321
package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency/examples/internal/database"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/internal/orders"
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
	_, err := pool.Exec(ctx, "CREATE TABLE bookings (id bigint GENERATED ALWAYS AS IDENTITY, transfer text, account text, amount bigint)")
	demo.Check(err)

	transfers := orders.New()
	transfers.DieAt(ctx, claimed, between, booked, committed, process.Stored)
	transfers.DieAtRandom(ctx, 8)
	defer transfers.Stop()
	replayed := transfers.Replayed(ctx)
	refused := transfers.Send(ctx, uuid.NewString(), 2_000_000)
	verdict := fmt.Sprintf("%v: %s, %d answers replayed, one too large: %d, %s", transfers, query(ctx, pool, bookedOnce),
		replayed, refused.Status, query(ctx, pool, balances))
	fmt.Println(verdict)
	if verdict != "81 orders, 13 deaths: 81 booked once, 81 answers replayed, one too large: 422, balances: -3321 and 3321" {
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
