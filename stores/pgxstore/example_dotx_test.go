package pgxstore_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/step"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

type payment struct {
	ID      int64  `json:"id"`
	Receipt string `json:"receipt"`
}

// rowQuerier is a pgx.Tx, or what a service has on top of it.
type rowQuerier interface {
	pgxstore.Querier
	QueryRow(ctx context.Context, query string, args ...any) pgx.Row
}

func insertPayment(ctx context.Context, tx rowQuerier, receipt string) (payment, error) {
	made := payment{Receipt: receipt}
	err := tx.QueryRow(ctx, "INSERT INTO payments (receipt) VALUES ($1) RETURNING id", receipt).Scan(&made.ID)
	return made, err
}

// A handler charges a card in one step, and writes a row in another step. Options.Required of the middleware refuses requests
// without a key.
func ExampleDoTx() {
	var charge func(ctx context.Context, key string) (receipt string, err error) // calls the provider
	pay := func(ctx context.Context) (payment, error) {
		op, _ := idempotency.FromContext(ctx)
		receipt, err := step.Do(ctx, "charge", func(ctx context.Context) (string, error) {
			return charge(ctx, op.DownstreamKey("charge"))
		})
		if err != nil {
			return payment{}, err
		}
		return pgxstore.DoTx(ctx, "book", func(tx pgx.Tx) (payment, error) {
			return insertPayment(ctx, tx, receipt)
		})
	}
	http.HandleFunc("POST /payments", func(w http.ResponseWriter, r *http.Request) {
		made, err := pay(r.Context())
		if err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable) // the retry goes on where this attempt has stopped
			return
		}
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(made)
	})
}

// Where a key is not required, a request without a key has no claim. The handler serves it in a transaction of its own.
func ExampleDoTx_withoutKey() {
	var pool *pgxpool.Pool
	http.HandleFunc("POST /payments", func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		book := func(tx pgx.Tx) (payment, error) { return insertPayment(ctx, tx, "cash") }
		made, err := pgxstore.DoTx(ctx, "book", book)
		if errors.Is(err, step.ErrNoClaim) {
			err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) {
				made, err = book(tx)
				return err
			})
		}
		if err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(made)
	})
}

// A step runs in a transaction that the handler begins and commits.
func ExampleDoInTx() {
	var pool *pgxpool.Pool
	http.HandleFunc("POST /payments", func(w http.ResponseWriter, r *http.Request) {
		var made payment
		err := pgx.BeginFunc(r.Context(), pool, func(tx pgx.Tx) (err error) {
			made, err = pgxstore.DoInTx(r.Context(), tx, "book", func() (payment, error) {
				return insertPayment(r.Context(), tx, "cash")
			})
			return err
		})
		if err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(made)
	})
}
