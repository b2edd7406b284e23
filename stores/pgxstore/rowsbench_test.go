package pgxstore_test

import (
	"database/sql"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// BenchmarkRows compares ways to write one row exactly once over HTTP, with 16 clients and with one client. A round
// runs all ways one after the other, so all meet the same disturbances. The figures are medians of all rounds:
// requests per second and latency in ms with 16 clients, latency with one client, and the processor time of client,
// service and sessions in µs per request.
func BenchmarkRows(b *testing.B) {
	runOnDisks(b, func(b *testing.B, pool *pgxpool.Pool) {
		ways := map[string]func(int){
			"unprotected": newHTTPClient(b, newUnprotectedHandler(pool)),
			"by-hand":     newHTTPClient(b, newHandwrittenHandler(b, pool)),
			"DoTx":        newHTTPClient(b, newBookingHandler(b, pool, bookByPgx)),
			"DoSQLTx":     newHTTPClient(b, newBookingHandler(b, pool, bookBySQL)),
			"DoInTx":      newHTTPClient(b, newBookingHandler(b, pool, bookInTx(pool))),
			"New+unique":  newHTTPClient(b, newBookingHandler(b, pool, bookUnique(b, pool))),
		}
		figures := map[string]*rowFigures{}
		for name, way := range ways {
			figures[name] = &rowFigures{}
			runRound(way)
		}
		took := newCostMeter(b, pool)
		for b.Loop() {
			for name, way := range ways {
				f := figures[name]
				var crowd []float64
				f.processor = append(f.processor, took(func(i int) { way(i) }).sumNanoseconds()/1000/perRound)
				began := time.Now()
				crowd = measureLatencies(workers, perRound, way)
				f.rate = append(f.rate, perRound/time.Since(began).Seconds())
				f.crowd = append(f.crowd, median(crowd))
				f.alone = append(f.alone, median(measureLatencies(1, perRound/8, way)))
			}
		}
		for name, f := range figures {
			b.ReportMetric(median(f.rate), name+"-req/s")
			b.ReportMetric(median(f.crowd), name+"-ms-of-16")
			b.ReportMetric(median(f.alone), name+"-ms-of-1")
			b.ReportMetric(median(f.processor), name+"-us")
		}
		b.ReportMetric(0, "ns/op") // the time of a round is of no interest
	})
}

// rowFigures has a value for each round.
type rowFigures struct{ rate, crowd, alone, processor []float64 }

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// measureLatencies runs step n times with the given number of clients, and returns the milliseconds of each run.
func measureLatencies(clients, n int, step func(int)) []float64 {
	times := make([]float64, n)
	var next atomic.Int64
	var group sync.WaitGroup
	for range clients {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				began := time.Now()
				step(i)
				times[i] = time.Since(began).Seconds() * 1000
			}
		})
	}
	group.Wait()
	return times
}

// newBookingHandler returns a handler behind a store.
func newBookingHandler(b *testing.B, pool *pgxpool.Pool, book func(r *http.Request) error) http.Handler {
	middleware, err := idempotency.New(pgxstore.New(pool, newTable(b, pool, pgxstore.Options{})), idempotency.SingleUser,
		idempotency.Options{})
	require.NoError(b, err)
	return middleware.Handler(newCreatedHandler(book))
}

func bookByPgx(r *http.Request) error {
	_, err := pgxstore.DoTx(r.Context(), "book", func(tx pgx.Tx) (int, error) {
		_, err := tx.Exec(r.Context(), insertAmount, 7)
		return 7, err
	})
	return err
}

func bookBySQL(r *http.Request) error {
	_, err := pgxstore.DoSQLTx(r.Context(), "book", func(tx *sql.Tx) (int, error) {
		_, err := tx.ExecContext(r.Context(), insertAmount, 7)
		return 7, err
	})
	return err
}

func bookInTx(pool *pgxpool.Pool) func(r *http.Request) error {
	return func(r *http.Request) error {
		return pgx.BeginFunc(r.Context(), pool, func(tx pgx.Tx) error {
			_, err := pgxstore.DoInTx(r.Context(), tx, "book", func() (int, error) {
				_, err := tx.Exec(r.Context(), insertAmount, 7)
				return 7, err
			})
			return err
		})
	}
}

// bookUnique inserts a row that a unique index allows only once.
func bookUnique(b *testing.B, pool *pgxpool.Pool) func(r *http.Request) error {
	execStatement(b, pool, "CREATE TABLE IF NOT EXISTS unique_payments (key text PRIMARY KEY, amount bigint NOT NULL)")
	return func(r *http.Request) error {
		return pgx.BeginFunc(r.Context(), pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(r.Context(), "INSERT INTO unique_payments VALUES ($1, $2) ON CONFLICT DO NOTHING",
				r.Header.Get("Idempotency-Key"), 7)
			return err
		})
	}
}
