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
	"errors"
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/database"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/internal/orders"
	"github.com/idempotency-go/idempotency/examples/internal/process"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
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
	transfers.DieAt(ctx, "claimed", "between the two bookings", "booked, not committed", "committed", process.Stored)
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

func serve(ctx context.Context) {
	store := pgxstore.New(database.Connect(ctx), pgxstore.Options{})
	idem, err := idempotency.New(store, idempotency.SingleUser, process.WithShortLease(idempotency.Options{Required: true}))
	demo.Check(err)
	process.Serve(idem.Handler(http.HandlerFunc(transfer)))
}

func transfer(w http.ResponseWriter, r *http.Request) {
	process.HaltAt("claimed")
	amount, err := demo.Pieces(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ctx := r.Context()
	id, err := pgxstore.DoTx(ctx, "book", func(tx pgx.Tx) (int64, error) { return book(ctx, tx, amount) })
	switch {
	case errors.Is(err, errTooMuch):
		http.Error(w, err.Error(), http.StatusUnprocessableEntity) // stored, and what was booked is rolled back
		return
	case err != nil:
		http.Error(w, "try again", http.StatusServiceUnavailable) // not stored: a retry finds what was booked, or books it
		return
	}
	process.HaltAt("committed")
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "transfer %d: %d", id, amount) // made from the result, which all attempts get
}

// limit is how far the account may be overdrawn.
const limit = 1_000_000

var errTooMuch = errors.New("alice has not so much")

// book books a transfer, and returns the ID of its last booking.
func book(ctx context.Context, tx pgx.Tx, amount int) (id int64, err error) {
	op, _ := idempotency.FromContext(ctx)
	const insert = "INSERT INTO bookings (transfer, account, amount) VALUES ($1, $2, $3) RETURNING id"
	if _, err := tx.Exec(ctx, insert, op.Key.ID, "alice", -amount); err != nil {
		return 0, err
	}
	process.HaltAt("between the two bookings")
	if err := tx.QueryRow(ctx, insert, op.Key.ID, "bob", amount).Scan(&id); err != nil {
		return 0, err
	}
	process.HaltAt("booked, not committed")
	var left int
	err = tx.QueryRow(ctx, "SELECT sum(amount) FROM bookings WHERE account = 'alice'").Scan(&left)
	if err == nil && left < -limit {
		err = errTooMuch
	}
	return id, err
}
