package pgxstore_test

import (
	"context"
	"encoding/json"
	"log"
	"net/http"
	"os"
	"os/signal"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/pgxstore"
)

func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	if err := pgxstore.Migrate(ctx, pool, pgxstore.Options{}); err != nil {
		log.Fatal(err)
	}
	store := pgxstore.NewTx(pool, pgxstore.Options{})
	if err := store.Check(ctx); err != nil {
		log.Fatal(err) // the promise would not hold
	}
	user := func(r *http.Request) (string, error) { return r.Header.Get("X-User"), nil } // of your authentication
	m, err := idempotency.New(store, user, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	payments := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tx, ok := pgxstore.Tx(r.Context())
		if !ok {
			http.Error(w, "an Idempotency-Key is needed", http.StatusBadRequest)
			return
		}
		var id int64
		err := tx.QueryRow(r.Context(), "INSERT INTO payments (amount) VALUES ($1) RETURNING id", 700).Scan(&id)
		if err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable) // is not stored; the transaction is rolled back
			return
		}
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(map[string]int64{"id": id})
	})
	http.Handle("POST /payments", m.Handler(payments))
}

// Code that sqlc has generated takes the transaction through its method WithTx.
func ExampleTx_sqlc() {
	var queries *Queries // New(pool)
	http.HandleFunc("POST /payments", func(w http.ResponseWriter, r *http.Request) {
		tx, ok := pgxstore.Tx(r.Context())
		if !ok {
			http.Error(w, "an Idempotency-Key is needed", http.StatusBadRequest)
			return
		}
		if err := queries.WithTx(tx).CreatePayment(r.Context(), 700); err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusCreated)
	})
}

// A savepoint undoes a part of the changes, so that the whole operation need not fail.
func ExampleTx_savepoint() {
	http.HandleFunc("POST /orders", func(w http.ResponseWriter, r *http.Request) {
		tx, ok := pgxstore.Tx(r.Context())
		if !ok {
			http.Error(w, "an Idempotency-Key is needed", http.StatusBadRequest)
			return
		}
		err := pgx.BeginFunc(r.Context(), tx, func(part pgx.Tx) error {
			_, err := part.Exec(r.Context(), "UPDATE stock SET pieces = pieces - 1 WHERE article = $1", 42)
			return err
		})
		if err == nil {
			w.WriteHeader(http.StatusCreated)
			return
		}
		if _, err := tx.Exec(r.Context(), "INSERT INTO backorders (article) VALUES ($1)", 42); err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusAccepted) // is stored with the back order
	})
}

// An answer of 400 or more is stored without the changes of the handler. KeepEffects commits them with it.
func ExampleKeepEffects() {
	http.HandleFunc("POST /coupons", func(w http.ResponseWriter, r *http.Request) {
		tx, ok := pgxstore.Tx(r.Context())
		if !ok {
			http.Error(w, "an Idempotency-Key is needed", http.StatusBadRequest)
			return
		}
		var left int
		const try = "UPDATE coupons SET tries_left = tries_left - 1 WHERE code = $1 RETURNING tries_left"
		if err := tx.QueryRow(r.Context(), try, "SUMMER").Scan(&left); err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		if left < 0 {
			pgxstore.KeepEffects(r.Context()) // the try counts
			http.Error(w, "used up", http.StatusUnprocessableEntity)
			return
		}
		w.WriteHeader(http.StatusCreated)
	})
}

func ExampleTable_Janitor() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var pool *pgxpool.Pool
	table := pgxstore.NewTable(pool, pgxstore.Options{})
	go table.Janitor(ctx, 5*time.Minute, func(err error) { log.Print(err) })
	_ = http.ListenAndServe("localhost:8080", nil)
}

// Queries stands for what sqlc generates.
type Queries struct{ db DBTX }

// DBTX is what sqlc calls a pool or a transaction.
type DBTX interface {
	Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
	Query(context.Context, string, ...any) (pgx.Rows, error)
	QueryRow(context.Context, string, ...any) pgx.Row
}

func (q *Queries) WithTx(tx pgx.Tx) *Queries { return &Queries{tx} }

func (q *Queries) CreatePayment(ctx context.Context, amount int64) error {
	_, err := q.db.Exec(ctx, "INSERT INTO payments (amount) VALUES ($1)", amount)
	return err
}
