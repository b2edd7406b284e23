package pgxstore_test

import (
	"context"
	"database/sql"
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
	"github.com/idempotency-go/idempotency/stores/pgxstore"
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
	store := pgxstore.New(pool, pgxstore.Options{})
	if err := store.Check(ctx); err != nil {
		log.Fatal(err) // the promise would not hold
	}
	user := func(r *http.Request) (string, error) { return r.Header.Get("X-User"), nil } // of your authentication
	m, err := idempotency.New(store, user, idempotency.Options{Required: true})
	if err != nil {
		log.Fatal(err)
	}
	payments := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, err := pgxstore.DoTx(r.Context(), "book", func(tx pgx.Tx) (id int64, err error) {
			err = tx.QueryRow(r.Context(), "INSERT INTO payments (amount) VALUES ($1) RETURNING id", 700).Scan(&id)
			return id, err
		})
		if err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable) // is not stored; the rows are rolled back
			return
		}
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(map[string]int64{"id": id})
	})
	http.Handle("POST /payments", m.Handler(payments))
}

// Code that sqlc has generated takes the transaction through its method WithTx.
func ExampleDoTx_sqlc() {
	var queries *Queries // New(pool)
	http.HandleFunc("POST /payments", func(w http.ResponseWriter, r *http.Request) {
		_, err := pgxstore.DoTx(r.Context(), "book", func(tx pgx.Tx) (int, error) {
			return 700, queries.WithTx(tx).CreatePayment(r.Context(), 700)
		})
		if err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusCreated)
	})
}

// A savepoint undoes a part of the changes, so that the whole step need not fail.
func ExampleDoTx_savepoint() {
	http.HandleFunc("POST /orders", func(w http.ResponseWriter, r *http.Request) {
		inStock, err := pgxstore.DoTx(r.Context(), "order", func(tx pgx.Tx) (inStock bool, err error) {
			err = pgx.BeginFunc(r.Context(), tx, func(part pgx.Tx) error {
				_, err := part.Exec(r.Context(), "UPDATE stock SET pieces = pieces - 1 WHERE article = $1", 42)
				return err
			})
			if err == nil {
				return true, nil
			}
			_, err = tx.Exec(r.Context(), "INSERT INTO backorders (article) VALUES ($1)", 42)
			return false, err
		})
		switch {
		case err != nil:
			http.Error(w, "try again", http.StatusServiceUnavailable)
		case inStock:
			w.WriteHeader(http.StatusCreated)
		default:
			w.WriteHeader(http.StatusAccepted)
		}
	})
}

// GORM, sqlx, ent, bun and the code that sqlc generates for database/sql take a *sql.Tx.
func ExampleDoSQLTx() {
	http.HandleFunc("POST /payments", func(w http.ResponseWriter, r *http.Request) {
		id, err := pgxstore.DoSQLTx(r.Context(), "book", func(tx *sql.Tx) (id int64, err error) {
			err = tx.QueryRowContext(r.Context(), "INSERT INTO payments (amount) VALUES ($1) RETURNING id", 700).Scan(&id)
			return id, err
		})
		if err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(map[string]int64{"id": id})
	})
}

// A step runs in a transaction of package database/sql that the handler begins and commits. The function that writes the row takes
// a transaction of package database/sql, or of a library on top of it.
func ExampleDoInSQLTx() {
	type querier interface {
		pgxstore.SQLQuerier
		QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	}
	insert := func(ctx context.Context, tx querier) (id int64, err error) {
		err = tx.QueryRowContext(ctx, "INSERT INTO payments (amount) VALUES ($1) RETURNING id", 700).Scan(&id)
		return id, err
	}
	var db *sql.DB
	book := func(ctx context.Context) (int64, error) {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return 0, err
		}
		defer tx.Rollback()
		id, err := pgxstore.DoInSQLTx(ctx, tx, "book", func() (int64, error) { return insert(ctx, tx) })
		if err != nil {
			return 0, err
		}
		return id, tx.Commit()
	}
	_ = book
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
