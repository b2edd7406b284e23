package sqlitestore_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/idempotency-go/idempotency/sqlitestore"
)

// A test gives a handler the transaction that it begins and rolls back. It needs no middleware and no key.
func ExampleWithTx() {
	ctx := context.Background() // t.Context() in a test
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := tx.Exec("CREATE TABLE payments (amount INTEGER)"); err != nil {
		log.Fatal(err)
	}
	r := httptest.NewRequestWithContext(sqlitestore.WithTx(ctx, tx), http.MethodPost, "/payments", nil)
	w := httptest.NewRecorder()
	http.HandlerFunc(pay).ServeHTTP(w, r)
	var payments int
	err = tx.QueryRow("SELECT count(*) FROM payments").Scan(&payments)
	fmt.Println(w.Code, payments, err)
	// Output: 201 1 <nil>
}
