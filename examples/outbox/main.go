// Outbox is a service with a mail for each order. The handler writes the order and the mail as rows, in one step. Later, a worker
// sends the mail and deletes the mail's row. The database is the PostgreSQL at DATABASE_URL, or else a private server. The program
// kills the service with its worker at each point of an order, and afterwards at random, while clients send retries. The program
// ends with the line
//
//	82 orders, 13 deaths: 82 rows, 82 mails, 82 answers replayed
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/database"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/internal/orders"
	"github.com/idempotency-go/idempotency/examples/internal/process"
	"github.com/idempotency-go/idempotency/examples/internal/provider"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if process.IsService() {
		runService(ctx)
		return
	}
	pool, drop := database.Create(ctx)
	defer drop()
	demo.Check(pgxstore.Migrate(ctx, pool, pgxstore.Options{}))
	_, err := pool.Exec(ctx, `CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY, pieces int);
		CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), order_id bigint)`)
	demo.Check(err)
	mails, stop := provider.Start()
	defer stop()

	sent := orders.New()
	sent.DieAt(ctx, "claimed", "written, not committed", "committed", process.Stored)
	sent.DieAt(ctx, "mailed, and the task is still there")
	sent.DieAtRandom(ctx, 8)
	defer sent.Stop()
	replayed := sent.Replayed(ctx)
	var rows int
	for unsentMails := -1; unsentMails != 0; time.Sleep(time.Millisecond) { // until the worker has sent all mails
		demo.Check(pool.QueryRow(ctx, "SELECT (SELECT count(*) FROM outbox), (SELECT count(*) FROM orders)").Scan(&unsentMails, &rows))
	}
	verdict := fmt.Sprintf("%v: %d rows, %d mails, %d answers replayed", sent, rows, mails.Acts(), replayed)
	fmt.Println(verdict)
	if verdict != "82 orders, 13 deaths: 82 rows, 82 mails, 82 answers replayed" {
		log.Fatal("this is broken")
	}
}

func runService(ctx context.Context) {
	pool := database.Connect(ctx)
	go sendMails(ctx, pool)
	idem, err := idempotency.New(pgxstore.New(pool, pgxstore.Options{}), idempotency.SingleUser,
		process.WithShortLease(idempotency.Options{Required: true}))
	demo.Check(err)
	process.Serve(idem.Handler(http.HandlerFunc(placeOrder)))
}

func placeOrder(w http.ResponseWriter, r *http.Request) {
	process.HaltAt("claimed")
	pieces, err := demo.Pieces(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ctx := r.Context()
	id, err := pgxstore.DoTx(ctx, "order", func(tx pgx.Tx) (int64, error) { return insertOrder(ctx, tx, pieces) })
	if err != nil {
		http.Error(w, "try again", http.StatusServiceUnavailable) // not stored, so a retry finds the rows or writes them
		return
	}
	process.HaltAt("committed")
	w.WriteHeader(http.StatusCreated)
	fmt.Fprint(w, "order ", id)
}

// insertOrder inserts an order and its mail.
func insertOrder(ctx context.Context, tx pgx.Tx, pieces int) (id int64, err error) {
	if err := tx.QueryRow(ctx, "INSERT INTO orders (pieces) VALUES ($1) RETURNING id", pieces).Scan(&id); err != nil {
		return 0, err
	}
	_, err = tx.Exec(ctx, "INSERT INTO outbox (order_id) VALUES ($1)", id)
	process.HaltAt("written, not committed")
	return id, err
}

// sendMails is the worker, which sends mails until the process ends.
func sendMails(ctx context.Context, pool *pgxpool.Pool) {
	for {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return sendMail(ctx, tx) })
		if errors.Is(err, pgx.ErrNoRows) {
			time.Sleep(5 * time.Millisecond)
		} else if err != nil {
			log.Print(err) // the row still exists, and the next iteration sends the mail
		}
	}
}

// sendMail sends one mail. If the process dies before the deletion of the row is committed, a later call sends the mail again, with
// the same key.
func sendMail(ctx context.Context, tx pgx.Tx) error {
	var id string
	var order int64
	err := tx.QueryRow(ctx, "SELECT id::text, order_id FROM outbox LIMIT 1 FOR UPDATE SKIP LOCKED").Scan(&id, &order)
	if err != nil {
		return err
	}
	if _, err := provider.Call(ctx, provider.Request{Key: id, Reference: fmt.Sprint("order ", order)}); err != nil {
		return err
	}
	process.HaltAt("mailed, and the task is still there")
	_, err = tx.Exec(ctx, "DELETE FROM outbox WHERE id = $1::uuid", id)
	return err
}
