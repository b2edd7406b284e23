package sqlitestore_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/sqlitestore"
)

// A payment and its record are committed together. The service reads the file through its own connections.
func ExampleTx() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "payments.db")
	store, err := sqlitestore.OpenTx(context.Background(), path, sqlitestore.Options{Parameters: "_pragma=foreign_keys(1)"})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=foreign_keys(1)&_pragma=busy_timeout(5000)")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec("CREATE TABLE payments (amount INTEGER NOT NULL)"); err != nil {
		log.Fatal(err)
	}
	user := func(*http.Request) (string, error) { return "alice", nil }
	idem, err := idempotency.New(store, user, idempotency.Options{Required: true})
	if err != nil {
		log.Fatal(err)
	}
	handler := idem.Handler(http.HandlerFunc(pay))
	for range 2 {
		r := httptest.NewRequest(http.MethodPost, "/payments", nil)
		r.Header.Set("Idempotency-Key", "order-1")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		var payments int
		if err := db.QueryRow("SELECT count(*) FROM payments").Scan(&payments); err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%d %s, %d payment\n", w.Code, w.Body, payments)
	}
	// Output:
	// 201 paid, 1 payment
	// 201 paid, 1 payment
}

func pay(w http.ResponseWriter, r *http.Request) {
	tx, ok := sqlitestore.Tx(r.Context())
	if !ok { // not behind the middleware
		http.Error(w, "no transaction", http.StatusInternalServerError)
		return
	}
	if _, err := tx.ExecContext(r.Context(), "INSERT INTO payments VALUES (4200)"); err != nil {
		http.Error(w, "try again", http.StatusServiceUnavailable) // rolled back, not stored
		return
	}
	w.WriteHeader(http.StatusCreated) // committed, stored and replayed
	fmt.Fprint(w, "paid")
}

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
