// River sells chairs, in the PostgreSQL at DATABASE_URL or else in a private one, and sends a mail for each order. The
// handler inserts a job for River in the transaction of the order, so that there is a job if and only if there is an order;
// the worker sends the mail afterwards: an outbox. An order of more chairs than there are is refused, and its job is rolled
// back. An order without a key is served, too. It ends with the line
//
//	orders: 2, jobs: 2, mails: 2
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/database"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/step"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// Mail is a job.
type Mail struct {
	Order int64 `json:"order"`
}

// Kind names the job.
func (Mail) Kind() string { return "mail" }

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pool, drop := database.Create(ctx)
	defer drop()
	demo.Check(pgxstore.Migrate(ctx, pool, pgxstore.Options{}))
	_, err := pool.Exec(ctx, `CREATE TABLE stock AS SELECT 10 AS pieces;
		CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY, pieces int NOT NULL)`)
	demo.Check(err)
	mails := make(chan int64, 10)
	jobs := newJobs(ctx, pool, mails)

	idem, err := idempotency.New(pgxstore.New(pool, pgxstore.Options{}), idempotency.SingleUser, idempotency.Options{})
	demo.Check(err)
	handler := idem.Handler(demo.HandleOrders(shop{pool, jobs}.order))
	demo.OrderTwice(handler, 3, http.StatusCreated)
	demo.OrderTwice(handler, 8, http.StatusUnprocessableEntity) // stored, rolled back
	demo.Order(handler, 1, http.StatusCreated)                  // without a key

	demo.Check(jobs.Start(ctx))
	<-mails
	<-mails
	demo.Check(jobs.Stop(ctx))
	var orders, inserted int
	err = pool.QueryRow(ctx, "SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM river_job)").Scan(&orders, &inserted)
	demo.Check(err)
	fmt.Printf("orders: %d, jobs: %d, mails: %d\n", orders, inserted, 2+len(mails))
}

// newJobs returns a client of River, whose worker sends the mails.
func newJobs(ctx context.Context, pool *pgxpool.Pool, mails chan<- int64) *river.Client[pgx.Tx] {
	quiet := slog.New(slog.DiscardHandler)
	tables, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: quiet})
	demo.Check(err)
	_, err = tables.Migrate(ctx, rivermigrate.DirectionUp, nil)
	demo.Check(err)
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(_ context.Context, job *river.Job[Mail]) error {
		fmt.Printf("mail for order %d\n", job.Args.Order)
		mails <- job.ID // River may run a job again, so a mail is sent with the job's ID as its idempotency key
		return nil
	}))
	jobs, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Logger: quiet, Workers: workers, Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 1}},
	})
	demo.Check(err)
	return jobs
}

type shop struct {
	pool *pgxpool.Pool
	jobs *river.Client[pgx.Tx]
}

// order books an order in a step or, if the request has no key, in a transaction as before there were keys.
func (s shop) order(ctx context.Context, pieces int) (id int64, err error) {
	book := func(tx pgx.Tx) (int64, error) { return s.book(ctx, tx, pieces) }
	id, err = pgxstore.DoTx(ctx, "order", book)
	if errors.Is(err, step.ErrNoClaim) {
		err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) (err error) {
			id, err = book(tx)
			return err
		})
	}
	return id, err
}

func (s shop) book(ctx context.Context, tx pgx.Tx, pieces int) (id int64, err error) {
	err = tx.QueryRow(ctx, "INSERT INTO orders (pieces) VALUES ($1) RETURNING id", pieces).Scan(&id)
	if err != nil {
		return 0, err
	}
	if _, err := s.jobs.InsertTx(ctx, tx, Mail{Order: id}, nil); err != nil {
		return 0, err
	}
	var left int
	err = tx.QueryRow(ctx, "UPDATE stock SET pieces = pieces - $1 RETURNING pieces", pieces).Scan(&left)
	if err == nil && left < 0 {
		err = demo.ErrTooFew
	}
	return id, err
}
