package mysqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/idempotency-go/idempotency/mysqlstore"
)

// A test gives a handler the transaction that it begins and rolls back.
func ExampleWithTx() {
	ctx := context.Background() // t.Context() in a test
	db, err := sql.Open("mysql", "app:secret@tcp(localhost:3306)/shop_test")
	if err != nil {
		log.Fatal(err)
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer tx.Rollback()
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tx, _ := mysqlstore.Tx(r.Context())
		if _, err := tx.ExecContext(r.Context(), "INSERT INTO payments (amount) VALUES (700)"); err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusCreated)
	})
	r := httptest.NewRequestWithContext(mysqlstore.WithTx(ctx, tx), http.MethodPost, "/payments", nil)
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	var payments int
	err = tx.QueryRowContext(ctx, "SELECT count(*) FROM payments").Scan(&payments)
	fmt.Println(w.Code, payments, err)
}

// A program of its own removes expired records, and needs no store for it.
func ExampleNewTable() {
	ctx := context.Background()
	db, err := sql.Open("mysql", "maintainer:secret@tcp(localhost:3306)/payments")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	if err := mysqlstore.NewTable(db, mysqlstore.Options{}).Maintain(ctx); err != nil {
		log.Fatal(err)
	}
}
