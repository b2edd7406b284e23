package pgxstore_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency/pgxstore"
)

// A test gives a handler the transaction that it begins and rolls back.
func ExampleWithTx() {
	ctx, cancel := context.WithCancel(context.Background()) // t.Context() in a test
	defer cancel()
	pool, err := pgxpool.New(ctx, "postgres://localhost/shop_test")
	if err != nil {
		log.Fatal(err)
	}
	tx, err := pool.Begin(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer tx.Rollback(ctx)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tx, _ := pgxstore.Tx(r.Context())
		if _, err := tx.Exec(r.Context(), "INSERT INTO payments (amount) VALUES (700)"); err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusCreated)
	})
	r := httptest.NewRequestWithContext(pgxstore.WithTx(ctx, tx), http.MethodPost, "/payments", nil)
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	var payments int
	err = tx.QueryRow(ctx, "SELECT count(*) FROM payments").Scan(&payments)
	fmt.Println(w.Code, payments, err)
}
