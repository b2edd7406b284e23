package compat_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/step"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// mail is a River job.
type mail struct {
	Request string `json:"request"`
}

// Kind returns the name of the job.
func (mail) Kind() string { return "mail" }

// queries is code as sqlc generates it for pgx.
type queries struct{ db sqlcDB }

type sqlcDB interface {
	Exec(context.Context, string, ...interface{}) (pgconn.CommandTag, error)
	Query(context.Context, string, ...interface{}) (pgx.Rows, error)
	QueryRow(context.Context, string, ...interface{}) pgx.Row
}

func (q *queries) createOrder(ctx context.Context, request string) error {
	_, err := q.db.Exec(ctx, "INSERT INTO orders (request) VALUES ($1)", request)
	return err
}

var errNoStock = errors.New("there is no stock")

// Libraries for pgx work in the transaction of a step: their rows exist once if the step succeeds, and do not exist
// if the step fails. A request without a key is served in a transaction of the handler.
func TestLibrariesOnPgx(t *testing.T) {
	t.Parallel()
	pool, jobs := startRiver(t)
	_, err := pool.Exec(t.Context(), "CREATE TABLE orders (request text)")
	require.NoError(t, err)
	libraries := map[string]struct {
		write func(ctx context.Context, tx pgx.Tx, request string) error
		count string // counts the rows of a request
	}{
		"River": {func(ctx context.Context, tx pgx.Tx, request string) error {
			_, err := jobs.InsertTx(ctx, tx, mail{request}, nil)
			return err
		}, "SELECT count(*) FROM river_job WHERE kind = 'mail' AND args->>'request' = $1"},
		"sqlc": {func(ctx context.Context, tx pgx.Tx, request string) error {
			return (&queries{tx}).createOrder(ctx, request)
		}, "SELECT count(*) FROM orders WHERE request = $1"},
	}
	requests := map[string]struct {
		key    string
		fails  error // the error of the step
		status int
		rows   int // after the request and a retry
	}{
		"booked":        {"booked", nil, http.StatusCreated, 1},
		"refused":       {"refused", errNoStock, http.StatusUnprocessableEntity, 0},
		"without a key": {"", nil, http.StatusCreated, 2},
	}
	for library, l := range libraries {
		for name, c := range requests {
			t.Run(library+" "+name, func(t *testing.T) {
				request := library + " " + name
				h := newMiddleware(t, pgxstore.New(pool, pgxstore.Options{}), idempotency.Options{}).Handler(
					orderHandler(pool, func(ctx context.Context, tx pgx.Tx) error {
						return errors.Join(l.write(ctx, tx, request), c.fails)
					}))
				for _, replayed := range []string{"", "true"} {
					r := httptest.NewRequest(http.MethodPost, "/"+library, nil)
					if c.key == "" {
						replayed = ""
					} else {
						r.Header.Set("Idempotency-Key", c.key)
					}
					w := httptest.NewRecorder()
					h.ServeHTTP(w, r)
					require.Equal(t, c.status, w.Code, w.Body)
					require.Equal(t, replayed, w.Header().Get(marker))
				}
				var rows int
				require.NoError(t, pool.QueryRow(t.Context(), l.count, request).Scan(&rows))
				require.Equal(t, c.rows, rows)
			})
		}
	}
}

// startRiver returns a database with the tables of a store and of River, and a client that inserts jobs.
func startRiver(t *testing.T) (*pgxpool.Pool, *river.Client[pgx.Tx]) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), servertest.Postgres(t).URL())
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	require.NoError(t, pgxstore.Migrate(t.Context(), pool, pgxstore.Options{}))
	quiet := slog.New(slog.DiscardHandler)
	tables, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: quiet})
	require.NoError(t, err)
	_, err = tables.Migrate(t.Context(), rivermigrate.DirectionUp, nil)
	require.NoError(t, err)
	jobs, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: quiet})
	require.NoError(t, err)
	return pool, jobs
}

// orderHandler books an order in a step. Without a key, the handler uses its own transaction.
func orderHandler(pool *pgxpool.Pool, book func(ctx context.Context, tx pgx.Tx) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		_, err := pgxstore.DoTx(ctx, "order", func(tx pgx.Tx) (string, error) { return "booked", book(ctx, tx) })
		if errors.Is(err, step.ErrNoClaim) {
			err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return book(ctx, tx) })
		}
		switch {
		case errors.Is(err, errNoStock):
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		case err != nil:
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		default:
			w.WriteHeader(http.StatusCreated)
			fmt.Fprint(w, "booked")
		}
	})
}
