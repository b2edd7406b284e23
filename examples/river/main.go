// River sells chairs, in the PostgreSQL at DATABASE_URL or else in a private one, and sends a mail for each order. The
// handler inserts a job for River in the transaction of the order, so that there is a job if and only if there is an order;
// the worker sends the mail afterwards: an outbox. An order of more chairs than there are is refused, and its job is rolled
// back. It ends with the line
//
//	orders: 1, jobs: 1, mails: 1
package main

import (
	"context"
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
	"github.com/idempotency-go/idempotency/pgxstore"
)

// Mail is a job.
type Mail struct {
	Order int64 `json:"order"`
}

// Kind names the job.
func (Mail) Kind() string { return "mail" }

// mailer is the worker. River may run a job again, so a mail is sent with the job's ID as its idempotency key.
type mailer struct {
	river.WorkerDefaults[Mail]
	sent chan int64
}

func (m *mailer) Work(_ context.Context, job *river.Job[Mail]) error {
	fmt.Printf("mail for order %d\n", job.Args.Order)
	m.sent <- job.ID
	return nil
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pool, drop := database.Create(ctx)
	defer drop()
	demo.Check(pgxstore.Migrate(ctx, pool, pgxstore.Options{}))
	_, err := pool.Exec(ctx, `CREATE TABLE stock AS SELECT 10 AS pieces;
		CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY, pieces int NOT NULL)`)
	demo.Check(err)
	mailer := &mailer{sent: make(chan int64, 10)}
	jobs := newJobs(ctx, pool, mailer)

	idem, err := idempotency.New(pgxstore.NewTx(pool, pgxstore.Options{}), idempotency.SingleUser,
		idempotency.Options{Required: true})
	demo.Check(err)
	handler := idem.Handler(shop{jobs})
	demo.OrderTwice(handler, 3, http.StatusCreated)
	demo.OrderTwice(handler, 8, http.StatusUnprocessableEntity)

	demo.Check(jobs.Start(ctx))
	<-mailer.sent
	demo.Check(jobs.Stop(ctx))
	var orders, inserted int
	err = pool.QueryRow(ctx, "SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM river_job)").Scan(&orders, &inserted)
	demo.Check(err)
	fmt.Printf("orders: %d, jobs: %d, mails: %d\n", orders, inserted, 1+len(mailer.sent))
}

func newJobs(ctx context.Context, pool *pgxpool.Pool, mailer *mailer) *river.Client[pgx.Tx] {
	quiet := slog.New(slog.DiscardHandler)
	tables, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: quiet})
	demo.Check(err)
	_, err = tables.Migrate(ctx, rivermigrate.DirectionUp, nil)
	demo.Check(err)
	workers := river.NewWorkers()
	river.AddWorker(workers, mailer)
	jobs, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Logger: quiet, Workers: workers, Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 1}},
	})
	demo.Check(err)
	return jobs
}

type shop struct{ jobs *river.Client[pgx.Tx] }

func (s shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	pieces, err := demo.Pieces(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	order, left, err := s.book(r.Context(), pieces)
	switch {
	case err != nil:
		http.Error(w, "try again", http.StatusServiceUnavailable) // not stored, rolled back
	case left < 0:
		http.Error(w, "there are not so many", http.StatusUnprocessableEntity) // stored, rolled back
	default:
		w.WriteHeader(http.StatusCreated) // stored, committed
		fmt.Fprintf(w, "order %d, %d left", order, left)
	}
}

func (s shop) book(ctx context.Context, pieces int) (order int64, left int, err error) {
	tx, _ := pgxstore.Tx(ctx) // there is one: keys are required
	err = tx.QueryRow(ctx, "INSERT INTO orders (pieces) VALUES ($1) RETURNING id", pieces).Scan(&order)
	if err != nil {
		return 0, 0, err
	}
	if _, err := s.jobs.InsertTx(ctx, tx, Mail{Order: order}, nil); err != nil {
		return 0, 0, err
	}
	err = tx.QueryRow(ctx, "UPDATE stock SET pieces = pieces - $1 RETURNING pieces", pieces).Scan(&left)
	return order, left, err
}
